package dlocktest

import (
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var ttlCases = []testCase{
	{"ttl-expires", "holds end", "A hold that nobody renews ends when its TTL has passed, although its client is still there.", nil, ttlExpires},
	{"ttl-never-early", "never early", "A hold lasts for its full TTL, whatever unit the store counts in, and for Grant.TTL if that is more.", nil, ttlNeverEarly},
	{"ttl-granted", "Grant.TTL", "Grant.TTL is at least the TTL that was asked for, or 0: a TTL is never rounded down.", nil, ttlGranted},
	{"ttl-long", "a day", "A TTL of 24 hours is a TTL like any other.", nil, ttlLong},
	{"ttl-start-monotonic", "the clock of Grant.Start", "Grant.Start has a reading of the monotonic clock: the wall clock may be set.", []need{needClock}, ttlStartMonotonic},
	{"ttl-start", "Grant.Start", "A hold lasts for its TTL from Grant.Start on, if the grant has one.", nil, ttlStart},
}

func ttlExpires(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	for range 3 {
		h = t.takeOver(b, h)
		t.release(b, h.Claim)
		h = t.acquire(a, t.claim("k", t.ttl))
	}
}

func ttlNeverEarly(t *caseT) {
	b := t.open()
	for _, odd := range []time.Duration{t.ttl / 3, 999 * time.Millisecond} {
		h := t.acquire(b, t.claim("k", t.ttl+odd))
		h = t.takeOver(b, h)
		t.release(b, h.Claim)
	}
}

func ttlGranted(t *caseT) {
	b := t.open()
	for _, ttl := range []time.Duration{
		0, 1, 999 * time.Microsecond, 1500 * time.Microsecond, 999 * time.Millisecond, 90*time.Second - 1,
	} {
		ttl += t.steady()
		c := t.claim("k", ttl)
		h := t.acquire(b, c)
		if h.grant.TTL != 0 && h.grant.TTL < ttl {
			t.Errorf("Acquire with a TTL of %v was granted %v", ttl, h.grant.TTL)
		}
		c.TTL += t.ttl / 7
		if h = t.renew(b, c); h.grant.TTL != 0 && h.grant.TTL < c.TTL {
			t.Errorf("Renew with a TTL of %v was granted %v", c.TTL, h.grant.TTL)
		}
		t.release(b, c)
	}
}

func ttlLong(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", 24*time.Hour)
	if h := t.acquire(a, c); h.grant.TTL != 0 && h.grant.TTL < c.TTL {
		t.Errorf("Acquire with a TTL of %v was granted %v", c.TTL, h.grant.TTL)
	}
	t.sleep(t.ttl)
	t.taken(b, "k")
	t.renew(a, c)
	t.taken(b, "k")
	t.release(a, c)
	t.free(b, "k")
}

func ttlStartMonotonic(t *caseT) {
	b := t.open()
	check := func(op string, h hold) {
		if s := h.grant.Start; !s.IsZero() && !monotonic(s) {
			t.Errorf("Grant.Start of %s is %v, which is a reading of the wall clock alone", op, s)
		}
	}
	c := t.claim("k", ample)
	check("Acquire", t.acquire(b, c))
	check("a second Acquire", t.acquire(b, c))
	check("Renew", t.renew(b, c))
	if t.supports(b, needBatch) {
		check("RenewBatch", hold{grant: t.renewBatch(b, []driver.Claim{c})[0].Grant})
	}
	if t.supports(b, needWaiter) {
		p := t.enqueue(t.open(), t.claim("k", ample))
		t.release(b, c)
		check("Wait", t.granted(p, t.soon()))
	}
}

// monotonic reports whether s has a reading of the monotonic clock. Only its text tells.
func monotonic(s time.Time) bool { return strings.Contains(s.String(), " m=") }

func ttlStart(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.steady()))
	if h.start().After(h.back) {
		t.Errorf("Grant.Start is %v after Acquire returned", h.start().Sub(h.back))
	}
	t.sleep(h.TTL / 4)
	h = t.renew(a, h.Claim)
	if h.start().After(h.back) {
		t.Errorf("Grant.Start is %v after Renew returned", h.start().Sub(h.back))
	}
	t.takeOver(b, h)
}
