package dlocktest

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
)

// locker returns a Locker on another client of the store, with the given default TTL.
func (t *caseT) locker(ttl time.Duration) dlock.LeaseLocker {
	t.tb.Helper()
	return t.lockerWith(dlock.Config{DefaultTTL: ttl})
}

func (t *caseT) lockerWith(cfg dlock.Config) dlock.LeaseLocker {
	t.tb.Helper()
	b := t.store.Open(t.tb)
	l, err := dlock.New(b, &cfg)
	if err != nil {
		t.Fatalf("dlock.New returned %q", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(dlock.LeaseLocker)
}

// lock locks key within limit.
func (t *caseT) lock(l dlock.Locker, key string, limit time.Duration) {
	t.tb.Helper()
	ctx, cancel := t.limited(limit)
	defer cancel()
	if err := l.Lock(ctx, key); err != nil {
		t.Fatalf("Lock returned %q", err)
	}
}

// tryLock reports whether TryLock got key.
func (t *caseT) tryLock(l dlock.Locker, key string) bool {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	ok, err := l.TryLock(ctx, key)
	if err != nil {
		t.Fatalf("TryLock returned %q", err)
	}
	return ok
}

func (t *caseT) unlock(l dlock.Locker, key string) {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	if err := l.Unlock(ctx, key); err != nil {
		t.Fatalf("Unlock returned %q", err)
	}
}

// lease acquires key.
func (t *caseT) lease(l dlock.LeaseLocker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	x, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		t.Fatalf("Acquire returned %q", err)
	}
	return x
}

// locking starts a Lock.
func (t *caseT) locking(l dlock.Locker, key string) *pending {
	return t.start(func(ctx context.Context, p *pending) { p.err = l.Lock(ctx, key) })
}

// lost asserts that the holder of x is told of its loss, in every way there is, when the hold can
// last no longer at the latest.
func (t *caseT) lost(x *dlock.Lease, ctx context.Context) {
	t.tb.Helper()
	if !t.await(x.Done(), time.Until(x.ValidUntil())+time.Second) {
		t.Fatalf("Done is not closed, and the hold is gone")
	}
	if x.Held() || !errors.Is(x.Err(), dlock.ErrOwnershipLost) {
		t.Errorf("after the loss Held is %v and Err is %v, want false and ErrOwnershipLost", x.Held(), x.Err())
	}
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), dlock.ErrOwnershipLost) {
		t.Errorf("after the loss the lease's context has the error %v and the cause %v, want ErrOwnershipLost", ctx.Err(), context.Cause(ctx))
	}
}

// unlockLost asserts that Unlock tells of the loss.
func (t *caseT) unlockLost(unlock func(ctx context.Context) error) {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	if err := unlock(ctx); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("Unlock of a hold that was lost returned %v, want ErrOwnershipLost", err)
	}
}
