package dlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
)

func TestSlowDelaysEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		locker.Slow(100 * time.Millisecond)
		for name, call := range map[string]func() error{
			"Ping":    func() error { return dlock.Ping(t.Context(), locker) },
			"Lock":    func() error { return locker.Lock(t.Context(), "a") },
			"TryLock": func() error { _, err := locker.TryLock(t.Context(), "b"); return err },
			"Lock and Unlock": func() error {
				return dlock.Do(t.Context(), locker, "c", func(context.Context) error { return nil })
			},
		} {
			began, want := time.Now(), 100*time.Millisecond
			if name == "Lock and Unlock" {
				want *= 2
			}
			if err := call(); err != nil || time.Since(began) != want {
				t.Errorf("%s = %v after %v, want nil after %v", name, err, time.Since(began), want)
			}
		}
		locker.Slow(0)
		began := time.Now()
		if err := locker.Unlock(t.Context(), "a"); err != nil || time.Since(began) != 0 {
			t.Errorf("Unlock after Slow(0) = %v after %v, want nil at once", err, time.Since(began))
		}
	})
}

func TestSlowStoreIsNotBusy(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		locker.Slow(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := locker.Lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("Lock = %v, want DeadlineExceeded and not ErrNotAcquired", err)
		}
	})
}

// What was given up on before the store applied it never happens; after that it happens unseen, and
// is cleaned up.
func TestSlowStoreAppliesHalfway(t *testing.T) {
	for _, c := range []struct {
		patience time.Duration
		applied  bool
	}{{400 * time.Millisecond, false}, {600 * time.Millisecond, true}} {
		synctest.Test(t, func(t *testing.T) {
			locker := dlocktest.NewLocker(t)
			locker.Slow(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), c.patience)
			defer cancel()
			if err := locker.Lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock = %v, want DeadlineExceeded", err)
			}
			if locker.Held("k") != c.applied {
				t.Errorf("given up on after %v, the key is held: %v, want %v", c.patience, !c.applied, c.applied)
			}
			locker.Slow(0)
			if time.Sleep(2 * time.Second); locker.Held("k") {
				t.Error("the key was not cleaned up")
			}
		})
	}
}

func TestSlowStoreLosesLocksWhenRenewalsTakeTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		x, err := locker.Acquire(t.Context(), "k", dlock.WithTTL(6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		locker.Slow(600 * time.Millisecond)
		if time.Sleep(time.Minute); !x.Held() {
			t.Fatalf("a store that answers in a tenth of the TTL lost the lock: %v", x.Err())
		}
		locker.Slow(time.Minute)
		until := x.ValidUntil()
		<-x.Done()
		if !errors.Is(x.Err(), dlock.ErrOwnershipLost) || time.Now().Before(until) {
			t.Errorf("the lease ended with %v, %v before its deadline", x.Err(), time.Until(until))
		}
	})
}

func TestLoseIsNotSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		locker.Slow(time.Hour)
		began := time.Now()
		locker.Lose("k")
		if lease, _ := dlock.LeaseOf(locker, "k"); lease.Held() || time.Since(began) > time.Millisecond {
			t.Errorf("after Lose, which took %v, Held is %v", time.Since(began), lease.Held())
		}
	})
}

func TestLostReplyToALockIsMadeUpFor(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		locker.LoseReply()
		if err := locker.Lock(t.Context(), "a"); err != nil || !locker.Held("a") {
			t.Errorf("Lock whose reply was lost = %v, held %v", err, locker.Held("a"))
		}
		locker.LoseReply()
		if ok, err := locker.TryLock(t.Context(), "b"); !ok || err != nil {
			t.Errorf("TryLock whose reply was lost = %v, %v", ok, err)
		}
		locker.LoseReply()
		locker.LoseReply()
		if ok, err := locker.TryLock(t.Context(), "c"); ok || err == nil {
			t.Errorf("TryLock of which both replies were lost = %v, %v; want an error", ok, err)
		}
	})
}

func TestLostReplyToAnUnlockIsAnErrorThatIsNotALoss(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		err := dlock.Do(t.Context(), locker, "k", func(context.Context) error {
			locker.LoseReply()
			return nil
		})
		if err == nil || errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Do = %v, want an error that is not ErrOwnershipLost", err)
		}
		if locker.Held("k") {
			t.Error("the store did not apply the request whose reply was lost")
		}
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Errorf("Lock afterwards = %v", err)
		}
		if err := locker.Unlock(t.Context(), "k"); err != nil {
			t.Errorf("Unlock afterwards = %v", err)
		}
	})
}

func TestLostReplyWaitsForWhoCanTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		locker.LoseReply()
		time.Sleep(time.Minute) // of renewals
		if err := locker.Unlock(t.Context(), "k"); err == nil {
			t.Error("Unlock = nil, want an error: its reply is the one that is lost")
		}
	})
}
