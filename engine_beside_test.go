package dlock_test

import (
	"sync"
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
