package dlocktest

import (
	"time"

	"github.com/dlock-go/dlock/driver"
)

var renewCases = []testCase{
	{"renew-keeps", "held by renewals", "A hold that is renewed in time lasts, for many times its TTL.", nil, renewKeeps},
	{"renew-full-ttl", "the full TTL from now", "After Renew the hold lasts for the full TTL from the call on.", nil, renewFullTTL},
	{"renew-sets", "set, not added", "Renew sets what is left of the hold and does not add to it: many renewals make no long hold.", nil, renewSets},
	{"renew-longer", "another TTL", "Renew goes by its own claim's TTL, which may be longer than the one that the key was acquired with.", nil, renewLonger},
	{"renew-never-shortens", "never shorter", "Renew never shortens: a hold with more than the claim's TTL left keeps what it has.", nil, renewNeverShortens},
	{"renew-granted", "Grant.TTL", "Grant.TTL of Renew, and of an Acquire by the holder, is the TTL that was asked for, rounded up, or that of an earlier grant with a Start from before the call; never what the store says is left.", nil, renewGranted},
	{"renew-never-creates", "never re-creates", "Renew never creates a key: of one that nobody holds the answer is ErrNotOwner, and it stays free.", nil, renewNeverCreates},
	{"renew-after-expiry", "too late", "Renew of a hold that has expired answers ErrNotOwner and does not revive it.", nil, renewAfterExpiry},
	{"renew-fresh", "no answer from before", "Renew asks the store: an earlier answer does not serve for a later call.", []need{needDelete}, renewFresh},
}

func renewKeeps(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.steady()))
	for end := h.sent.Add(5 * h.TTL); h.back.Before(end); {
		t.sleep(h.TTL / 3)
		h = t.renew(a, h.Claim)
		t.taken(b, "k")
	}
	t.release(a, h.Claim)
	t.free(b, "k")
}

func renewFullTTL(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.steady()))
	t.sleep(h.TTL / 2)
	t.takeOver(b, t.renew(a, h.Claim))
}

func renewSets(t *caseT) {
	a, b := t.open(), t.open()
	first := t.acquire(a, t.claim("k", t.steady()))
	h := first
	for range 3 + 3*late/t.steady() {
		h = t.renew(a, h.Claim)
	}
	// What the renewals say that they set is not asked here: they might all say too much.
	h.grant.TTL = first.grant.TTL
	t.takeOver(b, h)
}

func renewLonger(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", t.steady())
	t.acquire(a, c)
	c.TTL += 2 * t.ttl
	t.takeOver(b, t.renew(a, c))
}

func renewNeverShortens(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", t.steady()+2*t.ttl)
	h := t.acquire(a, c)
	c.TTL = t.ttl
	t.renew(a, c)
	t.takeOver(b, h)
}

// renewGranted asks for a short TTL while an hour is left. How the store rounds the short one is seen by
// another key; a minute more is for stores that round up to a moment of their clock.
func renewGranted(t *caseT) {
	b, short := t.open(), steady(t.ttl)
	most := t.acquire(b, t.claim("short", short)).ttl() + time.Minute
	c := t.claim("k", time.Hour)
	first := t.acquire(b, c)
	t.sleep(t.ttl)
	c.TTL = short
	check := func(op string, h hold) {
		earlier := h.ttl() == first.ttl() && h.start().Before(h.sent)
		if h.ttl() > most && !earlier {
			t.Errorf("%s with a TTL of %v, while more is left of %v, was granted %v with Grant.Start %v after the call",
				op, short, first.ttl(), h.ttl(), h.start().Sub(h.sent))
		}
	}
	check("Renew", t.renew(b, c))
	check("a second Acquire", t.acquire(b, c))
	if t.supports(b, needBatch) {
		sent := time.Now()
		check("RenewBatch", hold{Claim: c, sent: sent, grant: t.renewBatch(b, []driver.Claim{c})[0].Grant})
	}
	if t.supports(b, needWaiter) {
		check("Wait by the holder", t.granted(t.wait(b, c), t.soon()))
	}
}

func renewNeverCreates(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	t.notOwner("Renew of a key that was never held", t.tryRenew(a, c))
	t.free(b, "k")
	t.acquire(a, c)
	t.release(a, c)
	t.notOwner("Renew of a hold that was released", t.tryRenew(a, c))
	t.free(b, "k")
}

func renewAfterExpiry(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	t.sleep(h.ttl() + late)
	h.TTL = ample
	t.notOwner("Renew of a hold that expired", t.tryRenew(a, h.Claim))
	t.free(b, "k")
}

func renewFresh(t *caseT) {
	b := t.open()
	for range 3 {
		c := t.claim("k", ample)
		t.acquire(b, c)
		t.renew(b, c)
		t.store.Delete("k")
		t.notOwner("Renew right after the hold was deleted from outside", t.tryRenew(b, c))
	}
}
