package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var closeCases = []testCase{
	{"close-refuses", "nothing afterwards", "After Close every call fails, with an error that does not claim to know who holds the key, and nothing is written.", nil, closeRefuses},
	{"close-no-renewal", "no renewals afterwards", "After Close a hold is no longer renewed by anybody: it ends with its TTL at the latest.", nil, closeNoRenewal},
	{"close-in-flight", "calls under way", "Once Close has returned nothing is written, by the calls that were under way either; they return.", nil, closeInFlight},
	{"close-ends-wait", "waits under way", "Close ends the calls that wait, with an error that is not ErrHeld.", []need{needWaiter}, closeEndsWait},
	{"close-others", "other clients", "Close ends one client: holds, waits and calls of the others go on.", nil, closeOthers},
	{"close-others-wait", "waiters of other clients", "Close of one client does not end the waits of another.", []need{needWaiter}, closeOthersWait},
}

func (t *caseT) close(b driver.Backend) {
	t.tb.Helper()
	if err := b.Close(); err != nil {
		t.Errorf("Close returned %q", err)
	}
}

func closeRefuses(t *caseT) {
	a, b := t.open(), t.open()
	held, free := t.claim("held", ample), t.claim("free", ample)
	t.acquire(a, held)
	t.close(a)
	for _, c := range []driver.Claim{free, held} {
		for _, call := range calls {
			t.trouble(call.op+" after Close", t.during(a, call.make, c))
		}
		if w, ok := a.(driver.Waiter); ok {
			t.trouble("Wait after Close", t.during(w, t.waitCall().make, c))
		}
		if r, ok := a.(driver.BatchRenewer); ok {
			for _, answer := range r.RenewBatch(t.ctx, []driver.Claim{c}) {
				t.trouble("RenewBatch after Close", answer.Err)
			}
		}
	}
	t.free(b, "free")
}

func closeNoRenewal(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.steady()))
	h = t.renew(a, h.Claim)
	t.close(a)
	if !t.until(time.Until(h.back.Add(h.ttl()+late)), func() bool { return t.got(b, t.claim("k", ample)) }) {
		t.Errorf("the key is still held %v after its last renewal, and its client was closed", time.Since(h.back))
	}
}

// closeInFlight closes a client with calls under way. What they had written by then is not known, but it does not change any more.
func closeInFlight(t *caseT) {
	const n = 12
	a, b := t.open(), t.open()
	settle := 50*time.Millisecond + 5*t.roundTrip()
	claims := make([]driver.Claim, n)
	var under []*pending
	for i := range claims {
		claims[i] = t.claim(fmt.Sprintf("k%d", i), ample)
		under = append(under, t.start(func(ctx context.Context, p *pending) { _, p.err = a.Acquire(ctx, claims[i]) }))
	}
	t.pause(time.Millisecond)
	t.close(a)
	t.pause(settle)
	first := t.heldOf(b, claims)
	t.pause(4*settle + 300*time.Millisecond)
	if then := t.heldOf(b, claims); !slices.Equal(first, then) {
		t.Errorf("after Close these were held: %q, and somewhat later these: %q", first, then)
	}
	for _, p := range under {
		if !t.await(p.done, t.soon()) {
			t.Fatalf("Acquire has not returned %v after Close", t.soon())
		}
	}
}

// heldOf returns the keys out of claims that are held.
func (t *caseT) heldOf(b driver.Backend, claims []driver.Claim) []string {
	t.tb.Helper()
	held := make([]bool, len(claims))
	t.each(len(claims), func(i int) {
		c := t.claim(claims[i].Key, ample)
		if held[i] = !t.got(b, c); !held[i] {
			t.release(b, c)
		}
	})
	var keys []string
	for i, c := range claims {
		if held[i] {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

func closeEndsWait(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	c := t.claim("k", ample)
	t.acquire(a, c)
	p := t.enqueue(b, t.claim("k", ample))
	t.close(b)
	if !t.await(p.done, soon) {
		t.Fatalf("Wait has not returned %v after Close", soon)
	}
	if p.err == nil || errors.Is(p.err, driver.ErrHeld) {
		t.Errorf("Wait that Close ended returned %v, want an error that does not match ErrHeld", p.err)
	}
	t.release(a, c)
}

func closeOthers(t *caseT) {
	a, b, other := t.open(), t.open(), t.open()
	held := t.claim("held", ample)
	t.acquire(b, held)
	t.acquire(a, t.claim("a", ample))
	t.close(a)
	t.taken(other, "held")
	t.renew(b, held)
	c := t.claim("k", ample)
	t.acquire(b, c)
	t.taken(other, "k")
	t.release(b, c)
	t.release(b, held)
	t.free(t.open(), "held")
}

func closeOthersWait(t *caseT) {
	a, b, gone := t.open(), t.open(), t.open()
	soon := t.soon()
	c := t.claim("k", ample)
	t.acquire(a, c)
	t.acquire(a, t.claim("other", ample))
	t.enqueue(gone, t.claim("other", ample))
	p := t.enqueue(b, t.claim("k", ample))
	t.close(gone)
	t.waits(p)
	t.release(a, c)
	t.granted(p, soon)
	t.release(b, p.Claim)
}
