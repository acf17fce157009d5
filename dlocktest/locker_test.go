package dlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
)

// leader is a service as somebody might write it: it works while it leads, and stops when it does not.
func leader(ctx context.Context, l dlock.Locker) error {
	return dlock.Do(ctx, l, "leader", func(ctx context.Context) error {
		<-ctx.Done() // the work
		return nil
	})
}

// cron holds by key.
func cron(ctx context.Context, l dlock.Locker) error {
	if err := l.Lock(ctx, "cron"); err != nil {
		return err
	}
	lease, _ := dlock.LeaseOf(l, "cron")
	select {
	case <-lease.Done():
	case <-ctx.Done():
	}
	return l.Unlock(context.WithoutCancel(ctx), "cron")
}

// inBothTimes runs f in virtual and in real time.
func inBothTimes(t *testing.T, f func(t *testing.T)) {
	t.Run("virtual", func(t *testing.T) { synctest.Test(t, f) })
	t.Run("real", f)
}

func TestServiceThatLosesItsLock(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		for key, service := range map[string]func(context.Context, dlock.Locker) error{"leader": leader, "cron": cron} {
			locker := dlocktest.NewLocker(t)
			var err error
			var wg sync.WaitGroup
			wg.Go(func() { err = service(t.Context(), locker) })
			locker.Lose(key)
			if wg.Wait(); !errors.Is(err, dlock.ErrOwnershipLost) {
				t.Errorf("%s returned %v after it lost its lock, want ErrOwnershipLost", key, err)
			}
		}
	})
}

func TestLoseHasHappenedWhenItReturns(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t, dlocktest.WithConfig(dlock.Config{Prefix: "app:"}))
		x, err := locker.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ctx := x.Context(t.Context())
		began := time.Now()
		locker.Lose("k")
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), dlock.ErrOwnershipLost) || x.Held() {
			t.Errorf("after Lose the context's cause is %v and Held is %v", context.Cause(ctx), x.Held())
		}
		if locker.Held("k") {
			t.Error("after Lose the key is held")
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("Lose took %v", d)
		}
		if err := locker.Peer().Lock(t.Context(), "k"); err != nil {
			t.Errorf("another process got %v for the key that was lost", err)
		}
		if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock after Lose = %v, want ErrOwnershipLost", err)
		}
		if !locker.Held("k") {
			t.Error("Unlock of the hold that was lost freed the key of the next one")
		}
	})
}

func TestLoseGivesTheKeyToWhoWaits(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		peer := locker.Peer()
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { err = peer.Lock(t.Context(), "k") })
		time.Sleep(20 * time.Millisecond)
		locker.Lose("k")
		if wg.Wait(); err != nil {
			t.Errorf("Lock of another process = %v", err)
		}
		if err := locker.Unlock(t.Context(), "k"); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
		}
		if lease, _ := dlock.LeaseOf(peer, "k"); !lease.Held() {
			t.Errorf("another process lost its hold: %v", lease.Err())
		}
	})
}

func TestExpireEndsTheHoldAtItsDeadline(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		x, ok, err := locker.TryAcquire(t.Context(), "k", dlock.WithTTL(3*time.Second))
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		for first := x.ValidUntil(); x.Held() && !x.ValidUntil().After(first); time.Sleep(10 * time.Millisecond) {
		}
		if !x.Held() {
			t.Fatalf("the hold was not renewed: %v", x.Err())
		}
		until := x.ValidUntil()
		locker.Expire("k")
		if time.Now().Before(until) || x.Held() || !errors.Is(x.Err(), dlock.ErrOwnershipLost) {
			t.Errorf("after Expire, %v past the deadline, Err is %v", time.Since(until), x.Err())
		}
		if locker.Held("k") {
			t.Error("after Expire the key is held")
		}
		if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock after Expire = %v, want ErrOwnershipLost", err)
		}
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Errorf("Lock after Expire = %v", err)
		}
	})
}

func TestFailReachesEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		locker := dlocktest.NewLocker(t)
		x, err := locker.Acquire(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		locker.Fail(boom)
		if ok, err := locker.TryLock(t.Context(), "k"); ok || !errors.Is(err, boom) {
			t.Errorf("TryLock = %v, %v; want boom", ok, err)
		}
		if err := dlock.Ping(t.Context(), locker); !errors.Is(err, boom) {
			t.Errorf("Ping = %v, want boom", err)
		}
		<-x.Done()
		if !errors.Is(x.Err(), dlock.ErrOwnershipLost) || !errors.Is(x.Err(), boom) {
			t.Errorf("the lease ended with %v, want ErrOwnershipLost because of boom", x.Err())
		}
		locker.Fail(driver.Permanent(boom))
		if err := locker.Lock(t.Context(), "k"); !errors.Is(err, boom) {
			t.Errorf("Lock = %v, want boom at once", err)
		}
		locker.Fail(nil)
		if err := dlock.Ping(t.Context(), locker); err != nil {
			t.Errorf("Ping after Fail(nil) = %v", err)
		}
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Errorf("Lock after Fail(nil) = %v", err)
		}
	})
}

func TestFailReachesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t)
		peer := locker.Peer()
		if err := peer.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { err = locker.Lock(t.Context(), "k") })
		synctest.Wait()
		locker.Fail(driver.Permanent(errors.New("boom")))
		if wg.Wait(); err == nil || errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("Lock = %v, want boom", err)
		}
		if ok, err := peer.TryLock(t.Context(), "other"); !ok || err != nil {
			t.Errorf("Fail of one Locker reached another: %v, %v", ok, err)
		}
	})
}

func TestLoseOfAKeyThatNobodyHoldsFailsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeTB{TB: t}
		locker := dlocktest.NewLocker(fake)
		locker.Lose("k")
		fake.failedOnce(t, `Lose("k"): nobody holds it`)
		locker.Expire("k")
		fake.failedOnce(t, `Expire("k"): nobody holds it`)
	})
}

func TestLoseOfAKeyThatAPeerHoldsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeTB{TB: t}
		locker := dlocktest.NewLocker(fake)
		peer := locker.Peer()
		x, err := peer.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		locker.Lose("k")
		fake.failedOnce(t, `Lose("k"): nobody holds it through this Locker, but a Peer does; call Lose of that Peer`)
		locker.Expire("k")
		fake.failedOnce(t, "call Expire of that Peer")
		if !x.Held() || !locker.Held("k") {
			t.Error("the key of another process was freed")
		}
		if peer.Lose("k"); x.Held() || locker.Held("k") {
			t.Error("after Lose of the Peer its key is held")
		}
	})
}

// Of a holder and the next one exactly one is told, whoever comes first.
func TestLoseHitsOneHoldAlone(t *testing.T) {
	for range 3000 {
		locker := dlocktest.NewLocker(t)
		x, err := locker.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		var first, second error
		var wg sync.WaitGroup
		wg.Go(func() { first = x.Unlock(t.Context()) })
		wg.Go(func() {
			if y, err := locker.Acquire(t.Context(), "k"); err == nil {
				<-y.Done()
				second = y.Unlock(t.Context())
			}
		})
		locker.Lose("k")
		_ = locker.Close() // which ends the second one if it was spared
		wg.Wait()
		if errors.Is(first, dlock.ErrOwnershipLost) == errors.Is(second, dlock.ErrOwnershipLost) {
			t.Fatalf("one Lose: the Unlock of one hold returned %v, and of the next %v; want exactly one loss", first, second)
		}
	}
}

func TestExpireOfAHoldThatIsUnlockedFailsTheTest(t *testing.T) {
	inBothTimes(t, func(t *testing.T) {
		fake := &fakeTB{TB: t}
		locker := dlocktest.NewLocker(fake)
		x, err := locker.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { locker.Expire("k") })
		time.Sleep(50 * time.Millisecond)
		if err := x.Unlock(t.Context()); err == nil || errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock while the store does not answer = %v, want an error that is not ErrOwnershipLost", err)
		}
		wg.Wait()
		fake.failedOnce(t, `Expire("k"): the hold did not expire, it ended before: `)
		if locker.Held("k") {
			t.Error("after Expire the key is held")
		}
	})
}

func TestExpireOutlastsAnInnerLeaseOfTheSameHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t, dlocktest.WithConfig(dlock.Config{Reentrant: true}))
		err := dlock.Do(t.Context(), locker, "k", func(ctx context.Context) error {
			inner, err := locker.Acquire(ctx, "k")
			if err != nil {
				return err
			}
			var wg sync.WaitGroup
			wg.Go(func() { locker.Expire("k") })
			synctest.Wait()
			if err := inner.Unlock(ctx); err != nil {
				t.Errorf("Unlock of the inner lease = %v", err)
			}
			wg.Wait()
			return ctx.Err()
		})
		if !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Do = %v, want ErrOwnershipLost", err)
		}
	})
}

// fakeTB takes the failures that it is told of.
type fakeTB struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
	cleaned  bool // Cleanup is left to the test
}

func (f *fakeTB) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}

func (f *fakeTB) Cleanup(do func()) {
	if !f.cleaned {
		f.TB.Cleanup(do)
		return
	}
	f.cleanups = append(f.cleanups, do)
}

// failedOnce asserts that there was one failure since the last call.
func (f *fakeTB) failedOnce(t *testing.T, with string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.failures) != 1 || !strings.Contains(f.failures[0], with) {
		t.Errorf("the test was failed with %q, want it once, with %q", f.failures, with)
	}
	f.failures = nil
}

func TestReentrantHoldIsLostAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(t, dlocktest.WithConfig(dlock.Config{Reentrant: true}))
		for range 2 {
			if err := locker.Lock(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		locker.Lose("k")
		for range 2 {
			if err := locker.Unlock(t.Context(), "k"); !errors.Is(err, dlock.ErrOwnershipLost) {
				t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
			}
		}
	})
}
