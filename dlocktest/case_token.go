package dlocktest

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var tokenCases = []testCase{
	{"token-release-wrong", "release by another", "Release with a token that does not hold the key answers ErrNotOwner and leaves the hold.", nil, tokenReleaseWrong},
	{"token-renew-wrong", "renewal by another", "Renew with a token that does not hold the key answers ErrNotOwner and leaves the hold as it is.", nil, tokenRenewWrong},
	{"token-near-miss", "almost the same token", "Tokens are compared byte for byte and in full.", nil, tokenNearMiss},
	{"token-owner-text", "tokens in owner texts", "Only Claim.Token gives a right to the key; what Claim.Owner says makes no difference.", nil, tokenOwnerText},
	{"token-same-owner", "the same owner", "Many tokens may have the same Claim.Owner: none of them has a right to another one's hold.", nil, tokenSameOwner},
	{"token-other-key", "another key", "A token has a right to the key that it holds and to no other: Renew and Release of another key by it answer ErrNotOwner and change nothing.", nil, tokenOtherKey},
	{"token-stale", "a released token", "A token that released its hold can neither renew nor release the hold of the next owner.", nil, tokenStale},
	{"token-stale-expired", "an expired token", "A token whose hold expired can neither renew nor release the hold of the next owner.", nil, tokenStaleExpired},
	{"token-atomic-release", "check and act", "Release checks the token and removes the hold in one step: a late one never removes the next owner's hold.", nil, tokenAtomicRelease},
	{"token-atomic-renew", "check and extend", "Renew checks the token and extends the hold in one step: a late one never extends the next owner's hold.", nil, tokenAtomicRenew},
	{"token-again", "acquire again", "Acquire with the token that holds the key is granted.", nil, tokenAgain},
	{"token-again-ttl", "acquire again counts anew", "Acquire with the token that holds the key counts the full TTL anew.", nil, tokenAgainTTL},
	{"token-again-never-shortens", "acquire again is never shorter", "Acquire with the token that holds the key never shortens: a hold with more than the claim's TTL left keeps what it has.", nil, tokenAgainNeverShortens},
	{"token-again-fence", "acquire again keeps the fence", "Acquire with the token that holds the key has the fence of the first time.", []need{needFence}, tokenAgainFence},
	{"token-refused-changes-nothing", "a refused attempt", "An Acquire that is refused changes nothing: the hold ends when it would have ended.", nil, tokenRefused},
	{"token-release-once", "release once", "Release of a hold that was released answers ErrNotOwner, and nil only when the token was removed.", nil, tokenReleaseOnce},
}

func tokenReleaseWrong(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	t.notOwner("Release of a key that nobody holds", t.tryRelease(a, c))
	t.acquire(a, c)
	t.notOwner("Release by another client", t.tryRelease(b, t.claim("k", ample)))
	t.notOwner("Release by another token of the same client", t.tryRelease(a, t.claim("k", ample)))
	t.taken(b, "k")
	t.release(a, c)
}

func tokenRenewWrong(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	t.notOwner("Renew by another client", t.tryRenew(b, t.claim("k", ample)))
	t.notOwner("Renew by another token of the same client", t.tryRenew(a, t.claim("k", ample)))
	t.takeOver(b, h)
}

func tokenNearMiss(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	c.Token = "0123456789abcdef0123456789abcdef"
	t.acquire(a, c)
	for _, token := range []string{
		"1123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdee", "0123456789abcdee0123456789abcdef",
		"0123456789abcdef0123456789abcde", "0123456789abcdef", strings.ToUpper(c.Token), c.Token + "0",
	} {
		near := c
		near.Token = token
		for _, client := range []driver.Backend{a, b} {
			if t.tryRelease(client, near) == nil {
				t.Errorf("Release with the token %q removed the hold of %q", token, c.Token)
			}
			if t.tryRenew(client, near) == nil {
				t.Errorf("Renew with the token %q was granted to the hold of %q", token, c.Token)
			}
		}
		t.taken(b, "k")
	}
	t.renew(a, c)
}

func tokenOwnerText(t *caseT) {
	a, b := t.open(), t.open()
	for _, owner := range []string{"", "host:1", "a b", `"|{}%:-+*\`, "日本語", strings.Repeat("x", 112)} {
		c, thief := t.claim("k", ample), t.claim("k", ample)
		c.Owner, thief.Owner = owner+thief.Token+owner, c.Token // 256 bytes at most
		t.acquire(a, c)
		t.refuse(b, thief)
		t.notOwner("Renew by a token that is in the holder's owner text", t.tryRenew(b, thief))
		t.notOwner("Release by a token that is in the holder's owner text", t.tryRelease(b, thief))
		thief.Owner = owner
		t.refuse(b, thief)
		t.release(a, c)
	}
}

func tokenSameOwner(t *caseT) {
	a, b := t.open(), t.open()
	c, same := t.claim("k", ample), t.claim("k", ample)
	same.Owner = c.Owner
	t.acquire(a, c)
	for _, client := range []driver.Backend{a, b} {
		t.refuse(client, same)
		t.notOwner("Renew by another token of the same owner", t.tryRenew(client, same))
		t.notOwner("Release by another token of the same owner", t.tryRelease(client, same))
	}
	t.release(a, c)
}

// tokenOtherKey uses the token of one hold for a key that nobody has and for one that another has.
func tokenOtherKey(t *caseT) {
	a, b := t.open(), t.open()
	c, other := t.claim("k", ample), t.claim("other", ample)
	t.acquire(a, c)
	t.acquire(b, other)
	for _, key := range []string{"free", "other"} {
		wrong := c
		wrong.Key = key
		t.notOwner("Renew of another key by a token that holds one", t.tryRenew(a, wrong))
		t.notOwner("Release of another key by a token that holds one", t.tryRelease(a, wrong))
	}
	t.free(b, "free")
	t.taken(b, "k")
	t.release(a, c)
	t.release(b, other)
}

func tokenStale(t *caseT) {
	a, b := t.open(), t.open()
	stale, next := t.claim("k", ample), t.claim("k", ample)
	t.acquire(a, stale)
	t.release(a, stale)
	t.acquire(b, next)
	t.notOwner("Renew by a token that was released", t.tryRenew(a, stale))
	t.notOwner("Release by a token that was released", t.tryRelease(a, stale))
	t.taken(a, "k")
	t.renew(b, next)
}

func tokenStaleExpired(t *caseT) {
	a, b := t.open(), t.open()
	stale := t.acquire(a, t.claim("k", t.ttl))
	next := t.takeOver(b, stale)
	t.notOwner("Renew by a token whose hold expired", t.tryRenew(a, stale.Claim))
	t.notOwner("Release by a token whose hold expired", t.tryRelease(a, stale.Claim))
	t.taken(a, "k")
	t.renew(b, next.Claim)
}

// tokenAtomicRelease releases one hold many times over while another owner tries to get the key.
func tokenAtomicRelease(t *caseT) {
	const n = 8
	a, b := t.open(), t.open()
	for range t.rounds(10) {
		old, next := t.claim("k", ample), t.claim("k", ample)
		t.acquire(a, old)
		var removed atomic.Int32
		t.each(n+1, func(i int) {
			if i == n {
				for look := 0; !t.got(b, next); look++ {
					t.pause(tick(look) / 4)
				}
				return
			}
			t.pause(time.Duration(i) * 500 * time.Microsecond)
			if t.tryRelease(a, old) == nil {
				removed.Add(1)
			}
		})
		if removed.Load() == 0 {
			t.Errorf("none of %d releases of one hold returned nil", n)
		}
		t.taken(a, "k")
		t.release(b, next)
	}
}

func tokenAtomicRenew(t *caseT) {
	const n = 8
	a, b := t.open(), t.open()
	old, next := t.claim("k", ample), t.claim("k", t.ttl)
	t.acquire(a, old)
	var h hold
	t.each(n+1, func(i int) {
		t.pause(time.Duration(i) * 500 * time.Microsecond)
		if i < n {
			_ = t.tryRenew(a, old)
			return
		}
		t.release(a, old)
		h = t.acquire(b, next)
	})
	t.takeOver(a, h)
}

func tokenAgain(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	t.acquire(a, c)
	t.acquire(a, c)
	t.taken(b, "k")
	t.acquire(a, c)
	t.release(a, c)
	t.free(b, "k")
}

func tokenAgainTTL(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", 2*t.ttl)
	h := t.acquire(a, c)
	t.sleep(h.ttl() / 2)
	t.takeOver(b, t.acquire(a, c))
}

func tokenAgainNeverShortens(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", 3*t.ttl)
	h := t.acquire(a, c)
	c.TTL = t.ttl
	t.acquire(a, c)
	t.takeOver(b, h)
}

func tokenAgainFence(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	h := t.acquire(a, c)
	for range 3 {
		t.taken(b, "k")
		if got := t.acquire(a, c); got.grant.Fence != h.grant.Fence {
			t.Fatalf("Acquire with the holder's token had the fence %d, and the first time %d", got.grant.Fence, h.grant.Fence)
		}
		t.renew(a, c)
	}
}

func tokenRefused(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.steady()))
	c := t.claim("k", ample)
	for range 5 {
		t.refuse(b, c)
	}
	t.takeOver(b, h) // which tries all the time
}

func tokenReleaseOnce(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	t.acquire(a, c)
	t.release(a, c)
	t.notOwner("a second Release", t.tryRelease(a, c))
	t.notOwner("a third Release, by another client", t.tryRelease(b, c))
	t.free(b, "k")
}
