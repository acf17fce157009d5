package dlocktest

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
)

var leaseCases = []testCase{
	{"lease-renewed", "held for five TTLs", "Through a Locker: a hold is renewed and lasts for many times its TTL.", nil, leaseRenewed},
	{"lease-many-renewed", "many holds", "Through a Locker: many holds of one Locker are all renewed.", nil, leaseManyRenewed},
	{"lease-runs-out", "WithoutRenewal", "Through a Locker: a hold WithoutRenewal runs out, and then the key is free.", nil, leaseRunsOut},
	{"lease-deadline", "told in time", "Through a Locker: nobody else has the key while Held is true, also when no renewal is possible.", nil, leaseDeadline},
	{"lease-deadline-wait", "told in time, after a wait", "Through a Locker: the same for a lock that was waited for.", []need{needWaiter}, leaseDeadlineWait},
	{"lease-extend", "Extend", "Through a Locker: Extend makes a hold last for at least the TTL it is given.", nil, leaseExtend},
	{"lease-fence", "fences", "Through a Locker: every lease of a key has a greater fence than the one before, and keeps it.", []need{needFence}, leaseFence},
	{"lease-context", "the caller's context", "Through a Locker: the context bounds the call, not the hold.", nil, leaseContext},
	{"unlock-cancelled", "Unlock with a dead context", "Through a Locker: Unlock releases although its context has ended.", nil, unlockCancelled},
}

func leaseRenewed(t *caseT) {
	l, b := t.locker(t.steady()), t.open()
	x := t.lease(l, "k")
	for end := time.Now().Add(5 * t.steady()); time.Now().Before(end); {
		t.sleep(t.steady() / 2)
		t.taken(b, "k")
		if !x.Held() {
			t.Fatalf("the hold was lost: %v", x.Err())
		}
	}
	if err := x.Unlock(t.ctx); err != nil {
		t.Errorf("Unlock returned %q", err)
	}
	t.free(b, "k")
}

func leaseManyRenewed(t *caseT) {
	const n = 20
	b := t.open()
	_, took := t.dryRun(b, n, n)
	ttl := t.steady() + 5*took
	l := t.locker(ttl)
	leases := make([]*dlock.Lease, n)
	t.each(n, func(i int) { leases[i] = t.lease(l, "k"+string(rune('A'+i))) })
	t.sleep(ttl + 2*t.steady())
	for _, x := range leases {
		if x == nil || !x.Held() {
			t.Fatalf("a hold out of %d was lost", n)
		}
	}
	t.each(n, func(i int) { t.taken(b, leases[i].Key()) })
}

func leaseRunsOut(t *caseT) {
	l, b := t.locker(t.ttl), t.open()
	began := time.Now()
	x := t.lease(l, "k", dlock.WithoutRenewal())
	until := x.ValidUntil()
	if !t.await(x.Done(), time.Until(until)+time.Second) {
		t.Fatalf("Done is not closed %v after the end of a hold that is not renewed", time.Since(until))
	}
	if until.Sub(began) < t.ttl*9/10 {
		t.Errorf("a hold with a TTL of %v was valid for %v", t.ttl, until.Sub(began))
	}
	if !t.until(time.Until(until)+x.ValidUntil().Sub(began)/10+late, func() bool { return t.got(b, t.claim("k", ample)) }) {
		t.Errorf("the key is held %v after its hold ran out", time.Since(until))
	}
}

// exclusive asserts that another owner gets the key when the holder of x knows that it holds it no longer, and not sooner.
func (t *caseT) exclusive(x *dlock.Lease) {
	t.tb.Helper()
	b, c := t.open(), t.claim(x.Key(), ample)
	limit := time.Until(x.ValidUntil()) + late + t.ttl
	granted := t.until(limit, func() bool {
		ok := t.got(b, c)
		if ok && x.Held() {
			t.Errorf("another owner has the key %v before ValidUntil, and Held is true", time.Until(x.ValidUntil()))
		}
		return ok
	})
	if !granted {
		t.Errorf("the key is held %v after its hold ran out", time.Since(x.ValidUntil()))
	}
}

func leaseDeadline(t *caseT) {
	t.exclusive(t.lease(t.locker(t.steady()), "k", dlock.WithoutRenewal()))
	x := t.lease(t.locker(t.steady()), "again", dlock.WithoutRenewal())
	if err := x.Extend(t.ctx, t.steady()+t.ttl); err != nil {
		t.Fatalf("Extend returned %q", err)
	}
	t.exclusive(x)
}

func leaseDeadlineWait(t *caseT) {
	b, l := t.open(), t.locker(t.steady())
	soon := t.soon()
	c := t.claim("k", ample)
	t.acquire(b, c)
	var x *dlock.Lease
	p := t.start(func(ctx context.Context, p *pending) { x, p.err = l.Acquire(ctx, "k", dlock.WithoutRenewal()) })
	t.sleep(2 * t.steady())
	t.waits(p)
	t.release(b, c)
	t.granted(p, soon)
	t.exclusive(x)
}

func leaseExtend(t *caseT) {
	l, b := t.locker(t.steady()), t.open()
	x := t.lease(l, "k", dlock.WithoutRenewal())
	long := t.steady() + 2*t.ttl
	sent := time.Now()
	if err := x.Extend(t.ctx, long); err != nil {
		t.Fatalf("Extend returned %q", err)
	}
	if got := x.ValidUntil().Sub(sent); got < long*98/100 {
		t.Errorf("after Extend by %v the hold is valid for %v", long, got)
	}
	for until := x.ValidUntil(); time.Until(until) > long/10; t.sleep(long / 10) {
		held, taken := x.Held(), t.got(b, t.claim("k", t.ttl))
		switch {
		case time.Now().After(until): // the answer came late
			return
		case taken:
			t.Fatalf("another owner got the key %v after Extend by %v", time.Since(sent), long)
		case !held:
			t.Fatalf("the hold was lost %v after Extend by %v: %v", time.Since(sent), long, x.Err())
		}
	}
}

func leaseFence(t *caseT) {
	a, b := t.locker(t.steady()), t.locker(t.steady())
	var last uint64
	for i := range 6 {
		x := t.lease([]dlock.LeaseLocker{a, b}[i/2%2], "k")
		if x.Fence() <= last {
			t.Fatalf("a lease has the fence %d, and the one before had %d", x.Fence(), last)
		}
		last = x.Fence()
		if f, ok := dlock.Fence(x.Context(t.ctx)); !ok || f != last {
			t.Errorf("the lease's context has the fence %d, and the lease %d", f, last)
		}
		if err := x.Unlock(t.ctx); err != nil {
			t.Errorf("Unlock returned %q", err)
		}
	}
}

func leaseContext(t *caseT) {
	l, b := t.locker(t.steady()), t.open()
	ctx, cancel := context.WithCancel(t.ctx)
	x, err := l.Acquire(ctx, "k")
	if err != nil {
		t.Fatalf("Acquire returned %q", err)
	}
	cancel()
	for range 5 {
		t.sleep(t.steady() / 2)
		t.taken(b, "k")
	}
	if !x.Held() {
		t.Errorf("the hold was lost after the context of its acquisition had ended: %v", x.Err())
	}
}

func unlockCancelled(t *caseT) {
	l, b := t.locker(ample), t.open()
	t.lock(l, "k", callLimit)
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if err := l.Unlock(ctx, "k"); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Unlock with a context that has ended returned %q", err)
	}
	if !t.until(t.soon(), func() bool { return t.got(b, t.claim("k", ample)) }) {
		t.Errorf("the key is still held %v after Unlock with a context that had ended", t.soon())
	}
}
