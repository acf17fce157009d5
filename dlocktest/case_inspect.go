package dlocktest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var inspectCases = []testCase{
	{"inspect-holder", "the holder", "Inspect shows the holder's owner text and fence, and what is left of the TTL, also after a renewal.", []need{needInspect}, inspectHolder},
	{"inspect-free", "a free key", "Inspect of a key that nobody holds gives an Info with the key alone.", []need{needInspect}, inspectFree},
	{"inspect-expired", "an expired hold", "Inspect and List show no hold that has expired.", []need{needInspect}, inspectExpired},
	{"inspect-waiters", "the queue", "Inspect shows the owner texts of those who wait, the first in line first.", []need{needInspect, needWaiter}, inspectWaiters},
	{"inspect-no-token", "no token", "No Info contains a token, be it the holder's or that of one who waits.", []need{needInspect}, inspectNoToken},
	{"list-prefix", "by prefix", "List yields the held locks whose key begins with the prefix, each once, and no others; a prefix is no pattern.", []need{needInspect}, listPrefix},
	{"list-many", "hundreds", "List yields every one of hundreds of locks once.", []need{needInspect}, listMany},
	{"list-stop", "stopping early", "List stops when its caller does.", []need{needInspect}, listStop},
	{"break-frees", "breaking a hold", "Break frees a key whose fence is the given one: its holder is told, and the next one gets it.", []need{needBreaker, needFence}, breakFrees},
	{"break-by-fence", "only this holder", "Break with another fence than the present hold's answers ErrNotOwner and leaves the hold.", []need{needBreaker, needFence}, breakByFence},
	{"break-passes-on", "to the queue", "After Break the key goes to the first who waits.", []need{needBreaker, needFence, needWaiter}, breakPassesOn},
}

func (t *caseT) inspect(b driver.Backend, key string) driver.Info {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	info, err := b.(driver.Inspector).Inspect(ctx, key)
	if err != nil {
		t.Fatalf("Inspect of %q returned %q", key, err)
	}
	return info
}

// list returns the keys that List yields, sorted.
func (t *caseT) list(b driver.Backend, prefix string) []string {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	keys := []string{}
	for info, err := range b.(driver.Inspector).List(ctx, prefix) {
		if err != nil {
			t.Fatalf("List of %q yielded %q", prefix, err)
		}
		keys = append(keys, info.Key)
	}
	slices.Sort(keys)
	return keys
}

func inspectHolder(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	c.Owner = "host-7:42 (worker)"
	h := t.acquire(a, c)
	t.sleep(t.ttl)
	info := t.inspect(b, "k")
	if info.Key != c.Key || info.Owner != c.Owner || info.Fence != h.grant.Fence {
		t.Errorf("Inspect shows %+v, want the key %q, the owner %q and the fence %d", info, c.Key, c.Owner, h.grant.Fence)
	}
	least, most := time.Until(h.lasts())-time.Second, time.Until(h.back.Add(h.ttl()))+time.Second+h.back.Sub(h.sent)
	if info.TTL < least || info.TTL > min(most, h.ttl()) {
		t.Errorf("Inspect shows %v left of a hold with %v to %v left", info.TTL, least, most)
	}
	c.TTL = 3 * ample
	t.renew(a, c)
	if got := t.inspect(b, "k").TTL; got < 2*ample {
		t.Errorf("Inspect shows %v left of a hold that was just renewed by %v", got, c.TTL)
	}
	if !info.Since.IsZero() && time.Since(info.Since).Abs() > time.Hour {
		t.Errorf("Inspect shows a hold since %v, and it was just granted", info.Since)
	}
	if len(info.Waiters) != 0 {
		t.Errorf("Inspect shows the waiters %q, and nobody waits", info.Waiters)
	}
}

func inspectFree(t *caseT) {
	b := t.open()
	t.onlyKey(t.inspect(b, "k"), "k")
	c := t.claim("k", ample)
	t.acquire(b, c)
	t.release(b, c)
	t.onlyKey(t.inspect(b, "k"), "k")
	if keys := t.list(b, ""); slices.Contains(keys, "k") {
		t.Errorf("List yields %q, and it was released", keys)
	}
}

// onlyKey asserts that info is that of a key which nobody holds.
func (t *caseT) onlyKey(info driver.Info, key string) {
	t.tb.Helper()
	if info.Key != key || info.Owner != "" || info.Fence != 0 || info.TTL != 0 || !info.Since.IsZero() || len(info.Waiters) != 0 {
		t.Errorf("Inspect of %q, which nobody holds, shows %+v", key, info)
	}
}

func inspectExpired(t *caseT) {
	a, b := t.open(), t.open()
	t.acquire(a, t.claim("listed", t.ttl))
	h := t.acquire(a, t.claim("k", t.ttl))
	t.sleep(h.ttl() + late)
	t.onlyKey(t.inspect(b, "k"), "k")
	if keys := t.list(b, "l"); len(keys) > 0 {
		t.Errorf("List yields %q, and it has expired", keys)
	}
}

func inspectWaiters(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	queue := t.queue(first, b, 3)
	var want []string
	for _, p := range queue {
		want = append(want, p.Owner)
	}
	if got := t.inspect(b, "k").Waiters; !slices.Equal(got, want) {
		t.Errorf("Inspect shows the waiters %q, want %q", got, want)
	}
	t.release(b, first)
	t.granted(queue[0], t.soon())
	if got := t.inspect(b, "k"); !slices.Equal(got.Waiters, want[1:]) || got.Owner != want[0] {
		t.Errorf("Inspect shows the holder %q and the waiters %q, want %q and %q", got.Owner, got.Waiters, want[0], want[1:])
	}
}

func inspectNoToken(t *caseT) {
	b := t.open()
	waits := t.supports(b, needWaiter)
	for _, owner := range []string{"", "somebody"} {
		c := t.claim("k", ample)
		c.Owner = owner
		t.acquire(b, c)
		var waiter *pending
		if waits {
			next := t.claim("k", ample)
			next.Owner = owner
			waiter = t.enqueue(b, next)
		}
		infos := []driver.Info{t.inspect(b, "k")}
		for info, err := range b.(driver.Inspector).List(t.ctx, "") {
			if err == nil {
				infos = append(infos, info)
			}
		}
		for _, info := range infos {
			if strings.Contains(strings.ToLower(fmt.Sprintf("%+v", info)), c.Token) {
				t.Errorf("an Info contains the holder's token: %+v", info)
			}
			if waiter != nil && strings.Contains(strings.ToLower(fmt.Sprintf("%+v", info)), waiter.Token) {
				t.Errorf("an Info contains the token of one who waits: %+v", info)
			}
		}
		t.release(b, c)
		if waiter != nil {
			t.granted(waiter, t.soon())
			t.release(waiter.b, waiter.Claim)
		}
	}
}

func listPrefix(t *caseT) {
	a, b := t.open(), t.open()
	keys := []string{"a", "app1:x", "app1:y", "app10:x", "App1:x", "b:app1:x", "app*:x", "app?:x", "[ap]:x", "app_:x", "app%:x", `app\x`, "app1", "other"}
	for _, key := range keys {
		t.acquire(a, t.claim(key, ample))
	}
	for _, prefix := range []string{"", "app1:", "app1", "app*", "app?", "[ap]", "app_", "app%", `app\`, "a", "none", "app1:x"} {
		var want []string
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		slices.Sort(want)
		if got := t.list(b, prefix); !slices.Equal(got, want) {
			t.Errorf("List of %q yields %q, want %q", prefix, got, want)
		}
	}
}

func listMany(t *caseT) {
	const n = 250
	b := t.open()
	want := make([]string, n)
	t.each(20, func(i int) {
		for ; i < n; i += 20 {
			want[i] = fmt.Sprintf("many:%03d", i)
			t.acquire(b, t.claim(want[i], ample))
		}
	})
	if got := t.list(b, "many:"); !slices.Equal(got, want) {
		t.Errorf("List yields %d keys, %d of them different; want each of %d once", len(got), len(slices.Compact(got)), n)
	}
}

func listStop(t *caseT) {
	b := t.open()
	for i := range 5 {
		t.acquire(b, t.claim(fmt.Sprintf("k%d", i), ample))
	}
	calls := 0
	b.(driver.Inspector).List(t.ctx, "k")(func(driver.Info, error) bool {
		calls++
		return calls < 2
	})
	if calls != 2 {
		t.Errorf("List called its caller %d times, who had enough after 2", calls)
	}
	t.free(b, "free")
}

// breakHold breaks h.
func (t *caseT) breakHold(b driver.Backend, h hold) {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	if err := b.(driver.Breaker).Break(ctx, h.Key, h.grant.Fence); err != nil {
		t.Fatalf("Break of %q with the holder's fence returned %q", h.Key, err)
	}
}

func (t *caseT) tryBreak(b driver.Backend, key string, fence uint64) error {
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	return b.(driver.Breaker).Break(ctx, key, fence)
}

func breakFrees(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", ample))
	t.breakHold(b, h)
	t.notOwner("Renew by the holder that was broken", t.tryRenew(a, h.Claim))
	t.notOwner("Release by the holder that was broken", t.tryRelease(a, h.Claim))
	next := t.acquire(b, t.claim("k", ample))
	t.notOwner("Release by the holder that was broken, after the next one got the key", t.tryRelease(a, h.Claim))
	t.renew(b, next.Claim)
}

func breakByFence(t *caseT) {
	a, b := t.open(), t.open()
	old := t.acquire(a, t.claim("k", ample))
	t.release(a, old.Claim)
	t.notOwner("Break of a free key", t.tryBreak(b, "k", old.grant.Fence))
	h := t.acquire(a, t.claim("k", ample))
	for _, fence := range []uint64{old.grant.Fence, h.grant.Fence + 1, h.grant.Fence - 1, 0} {
		if err := t.tryBreak(b, "k", fence); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Break with the fence %d of a hold with %d returned %v, want ErrNotOwner", fence, h.grant.Fence, err)
		}
	}
	t.taken(b, "k")
	t.renew(a, h.Claim)
}

func breakPassesOn(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	h := t.acquire(b, first)
	p := t.enqueue(t.open(), t.claim("k", ample))
	t.breakHold(b, h)
	next := t.granted(p, t.soon())
	t.above(next, h)
	t.taken(b, "k")
	t.notOwner("Renew by the holder that was broken", t.tryRenew(b, first))
	t.release(p.b, p.Claim)
}
