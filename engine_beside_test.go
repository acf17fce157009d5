package dlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
)

func TestALockBesideCleanUpsThatHaveJustEndedGoesOn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: time.Second})
		n.on(refuse)
		for range 3 { // each leaves a token that might be in the store, and whose releases fail
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, errNetwork)
		}
		time.Sleep(1050 * time.Millisecond) // they have expired, and the next look at them has not come yet
		n.heal()
		lock(t, l, "k")
	})
}

func TestACleanUpGoesOnAfterReleasesThatCallersMade(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: time.Minute})
		var lost, slow atomic.Bool
		lost.Store(true)
		n.on(func(_ context.Context, o op, next func() error) error {
			switch {
			case o == opRelease && slow.Load():
				time.Sleep(700 * time.Millisecond)
				return errNetwork
			case o == opRelease:
				return errNetwork
			case o == opAcquire && lost.Load():
				return loseReply(nil, o, next)
			}
			return next()
		})
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, "TryLock", err, errNetwork)
		lost.Store(false)
		time.Sleep(2 * time.Second) // by now half a second is between two releases in the background
		slow.Store(true)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, _, err := dlock.TryAcquire(t.Context(), l, "k")
				wantErr(t, "TryAcquire", err, errNetwork)
			})
		}
		wg.Wait()
		n.heal()
		gone(t, n, "k", time.Second)
	})
}

func TestAGrantEndsTheHoldThatTheStoreHasForgotten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{})
		n.on(delay(10*time.Millisecond), opAcquire)
		var x *dlock.Lease
		var wg sync.WaitGroup
		wg.Go(func() { x = acquire(t, l, "k") })
		time.Sleep(5 * time.Millisecond) // x has the turn, and not yet the key
		var y *dlock.Lease
		wg.Go(func() { y, _, _ = dlock.TryAcquire(t.Context(), l, "k") })
		time.Sleep(7 * time.Millisecond)
		synctest.Wait()
		n.snatch(t, "k")
		wg.Wait()
		if y == nil || !y.Held() {
			t.Fatal("the store has granted the key again, and the grant is no hold")
		}
		if x.Held() {
			t.Error("two holds of one Locker at the same time")
		}
	})
}

func TestErrOfALeaseContextStaysWhatItWas(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		x := acquire(t, l, "k")
		parent, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ctx := x.Context(parent)
		if err := x.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Err", ctx.Err(), context.Canceled)
		time.Sleep(2 * time.Second)
		wantErr(t, "Err, after the parent's end", ctx.Err(), context.Canceled)
		wantErr(t, "the cause, after the parent's end", context.Cause(ctx), dlock.ErrLockNotHeld)
	})
}
