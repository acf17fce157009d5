package dlocktest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var lockWaitCases = []testCase{
	{"lock-waits", "Lock waits", "Through a Locker: Lock waits while another owner has the key, and has it promptly afterwards.", nil, lockWaits},
	{"lock-fifo", "order of Lockers", "Through a Locker: Lockers that wait get the key in the order in which they came.", []need{needWaiter}, lockFIFO},
	{"lock-holder-expires", "a holder that vanished", "Through a Locker: when the holder's TTL has passed, those who wait get the key one after the other.", nil, lockHolderExpires},
	{"lock-gives-up", "giving up", "Through a Locker: Lock that gives up says that another owner has the key, and leaves nothing behind.", nil, lockGivesUp},
	{"lock-cancelled-waiter", "the next in line", "Through a Locker: a waiter that gives up does not delay the next one.", nil, lockCancelledWaiter},
	{"lock-leases-queue", "goroutines of one Locker", "Through a Locker: goroutines that acquire the same key all get their turn.", nil, lockLeasesQueue},
	{"lock-outage", "patience", "Through a Locker: Lock that begins in an outage has the key when the outage is over.", []need{needOutage}, lockOutage},
}

func lockWaits(t *caseT) {
	a, b := t.locker(ample), t.locker(ample)
	soon := t.soon()
	for range 3 {
		t.lock(a, "k", callLimit)
		p := t.locking(b, "k")
		t.sleep(t.ttl)
		t.waits(p)
		t.unlock(a, "k")
		t.granted(p, soon)
		t.unlock(b, "k")
	}
}

func lockFIFO(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	settle, soon := 50*time.Millisecond+5*t.roundTrip(), t.soon()
	t.acquire(b, first)
	var lockers []dlock.LeaseLocker
	var queue []*pending
	for i := range 4 {
		lockers = append(lockers, t.locker(ample))
		queue = append(queue, t.locking(lockers[i], "k"))
		t.pause(settle)
		t.inLine(b, "k", i+1)
	}
	t.release(b, first)
	for i, p := range queue {
		t.firstOf(queue[i:], soon)
		t.granted(p, soon)
		t.unlock(lockers[i], "k")
	}
}

func lockHolderExpires(t *caseT) {
	b := t.open()
	soon := t.soon()
	lockers := []dlock.LeaseLocker{t.locker(ample), t.locker(ample), t.locker(ample)}
	h := t.acquire(b, t.claim("k", t.steady()))
	limit := h.ttl() + late + 2*soon
	t.each(len(lockers), func(i int) {
		ctx, cancel := t.limited(limit)
		defer cancel()
		if err := lockers[i].Lock(ctx, "k"); err != nil {
			t.Fatalf("Lock returned %q, and the holder has expired", err)
		}
		if now := time.Now(); now.Before(h.lasts()) {
			t.Errorf("Lock returned %v before the holder's TTL had passed", h.lasts().Sub(now))
		}
		t.unlock(lockers[i], "k")
	})
}

func lockGivesUp(t *caseT) {
	a, b := t.open(), t.locker(ample)
	limit, soon := 300*time.Millisecond+5*t.roundTrip(), t.soon()
	c := t.claim("k", ample)
	t.acquire(a, c)
	giveUp := func() error {
		ctx, cancel := t.limited(limit)
		defer cancel()
		began := time.Now()
		err := b.Lock(ctx, "k")
		if d := time.Since(began); d > limit+soon {
			t.Errorf("Lock returned %v after it was called, and its context ended after %v", d, limit)
		}
		return err
	}
	err := giveUp()
	for limit < 5*time.Second && !errors.Is(err, dlock.ErrNotAcquired) { // there may not have been time for an answer
		limit *= 4
		err = giveUp()
	}
	if !errors.Is(err, dlock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock that gave up returned %v, want ErrNotAcquired and the context's error", err)
	}
	t.release(a, c)
	if !t.until(soon, func() bool { return t.got(a, t.claim("k", ample)) }) {
		t.Errorf("the key is held although everybody released it or gave up")
	}
}

func lockCancelledWaiter(t *caseT) {
	a, gone, next := t.open(), t.locker(ample), t.locker(ample)
	settle, soon := 100*time.Millisecond+5*t.roundTrip(), t.soon()
	c := t.claim("k", ample)
	t.acquire(a, c)
	p := t.locking(gone, "k")
	t.pause(settle)
	t.inLine(a, "k", 1)
	q := t.locking(next, "k")
	t.pause(settle)
	t.inLine(a, "k", 2)
	p.cancel()
	if !t.await(p.done, soon) {
		t.Fatalf("Lock has not returned %v after its context ended", soon)
	}
	t.waits(q)
	t.pause(settle)
	t.release(a, c)
	t.granted(q, soon)
	t.unlock(next, "k")
}

func lockLeasesQueue(t *caseT) {
	l := t.locker(ample)
	var inside, total atomic.Int32
	t.each(8, func(int) {
		x := t.lease(l, "k")
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d leases of one key are held at the same time", n)
		}
		total.Add(1)
		t.pause(time.Millisecond)
		inside.Add(-1)
		if err := x.Unlock(t.ctx); err != nil {
			t.Errorf("Unlock returned %q", err)
		}
	})
	if total.Load() != 8 {
		t.Errorf("%d of 8 goroutines got the key", total.Load())
	}
	t.free(t.open(), "k")
}

func lockOutage(t *caseT) {
	l := t.locker(ample)
	soon := t.soon()
	t.outage(true)
	p := t.locking(l, "k")
	t.sleep(500 * time.Millisecond)
	t.waits(p)
	t.outage(false)
	t.granted(p, soon+8*time.Second)
	t.taken(t.open(), "k")
	t.unlock(l, "k")
}
