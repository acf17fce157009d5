package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestASecondLockByKeyIsRefusedAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		lock(t, l, "k")
		sent := len(n.requests())
		wantErr(t, "Lock", l.Lock(t.Context(), "k"), dlock.ErrLockAlreadyHeld)
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, "TryLock", err, dlock.ErrLockAlreadyHeld)
		if got := len(n.requests()); got != sent {
			t.Errorf("%d requests were sent", got-sent)
		}
	})
}

func TestALockByKeyWhileOneIsBeingAcquired(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(slow(time.Second), opWait)
		go func() { _ = l.Lock(t.Context(), "k") }()
		time.Sleep(time.Millisecond)
		within(t, 0, "the calls", func() {
			wantErr(t, "Lock", l.Lock(t.Context(), "k"), dlock.ErrLockAlreadyHeld)
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, dlock.ErrLockAlreadyHeld)
			wantErr(t, "Unlock", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
			if _, ok := dlock.LeaseOf(l, "k"); ok {
				t.Error("LeaseOf has a lease before Lock returned")
			}
		})
		time.Sleep(2 * time.Second)
		if err := l.Unlock(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	})
}

func TestReentrantCountsByKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		lock(t, l, "k")
		lock(t, l, "k")
		if ok, err := l.TryLock(t.Context(), "k"); !ok || err != nil {
			t.Errorf("TryLock: %v, %v", ok, err)
		}
		for i := range 3 {
			if n.holder(t, "k") == 0 {
				t.Errorf("released after %d of 3 Unlocks", i)
			}
			if err := l.Unlock(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		}
		if n.holder(t, "k") != 0 {
			t.Error("held after the last Unlock")
		}
		wantErr(t, "one Unlock more", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
		if got := len(n.requests(opWait, opAcquire)); got != 1 {
			t.Errorf("%d acquires were sent, want 1", got)
		}
	})
}

func TestUnlockOfTheLeaseOfAHoldByKeyIsUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		lock(t, l, "k")
		lock(t, l, "k")
		x, _ := dlock.LeaseOf(l, "k")
		if err := x.Unlock(t.Context()); err != nil || !x.Held() {
			t.Errorf("the first of two Unlocks: %v, held %v", err, x.Held())
		}
		if err := x.Unlock(t.Context()); err != nil || n.holder(t, "k") != 0 {
			t.Errorf("the last Unlock: %v, holder %d", err, n.holder(t, "k"))
		}
		if _, ok := dlock.LeaseOf(l, "k"); ok {
			t.Error("the hold by key is still known")
		}
		wantErr(t, "Unlock", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
		lock(t, l, "k")
	})
}

func TestReentrantWaitsForTheAcquisitionUnderWay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		n.on(slow(time.Second), opWait)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { lock(t, l, "k") })
		}
		wg.Wait()
		if got := len(n.requests(opWait)); got != 1 {
			t.Errorf("%d acquires were sent, want 1", got)
		}
		for range 5 {
			if err := l.Unlock(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		}
		// When the first one fails, the next one tries for itself.
		n.on(func(ctx context.Context, o op, next func() error) error {
			if len(n.requests(opWait)) == 2 {
				<-ctx.Done()
				return ctx.Err()
			}
			return next()
		}, opWait)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wg.Go(func() { wantErr(t, "the first", l.Lock(ctx, "k"), context.DeadlineExceeded) })
		synctest.Wait()
		lock(t, l, "k")
		wg.Wait()
	})
}

func TestAfterALossTheRecordStaysUntilUnlocked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{Reentrant: true}), open(t, other, dlock.Config{})
		lock(t, l, "k")
		lock(t, l, "k")
		x, ok := dlock.LeaseOf(l, "k")
		if !ok {
			t.Fatal("LeaseOf has no lease")
		}
		n.snatch(t, "k")
		<-x.Done()
		lock(t, lo, "k")
		theirs := n.holder(t, "k")
		for range 2 {
			wantErr(t, "Lock", l.Lock(t.Context(), "k"), dlock.ErrOwnershipLost)
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, dlock.ErrOwnershipLost)
			wantErr(t, "Unlock", l.Unlock(t.Context(), "k"), dlock.ErrOwnershipLost)
		}
		wantErr(t, "third Unlock", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
		time.Sleep(time.Minute)
		if n.holder(t, "k") != theirs {
			t.Error("a late Unlock freed somebody else's lock")
		}
		if ok, err := l.TryLock(t.Context(), "k"); ok || err != nil {
			t.Errorf("TryLock when all is unlocked: %v, %v; want false", ok, err)
		}
	})
}

func TestLeasesQueueLocallyInOrder(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		first := acquire(t, l, "k")
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				x := acquire(t, l, "k")
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				_ = x.Unlock(t.Context())
			})
			synctest.Wait()
		}
		if got := len(n.requests(opWait, opAcquire)); got != 1 {
			t.Errorf("%d requests while the key is held locally, want only the holder's", got)
		}
		_ = first.Unlock(t.Context())
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("order %v, want first come first served", order)
		}
	})
}

func TestOnlyTheHeadOfTheQueueGoesToTheBackend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		theirs := acquire(t, lo, "k")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				x := acquire(t, l, "k")
				_ = x.Unlock(t.Context())
			})
		}
		time.Sleep(time.Second)
		if got := len(n.requests(opWait, opAcquire)); got != 1 {
			t.Errorf("%d requests, want only the head's", got)
		}
		_ = theirs.Unlock(t.Context())
		wg.Wait()
	})
}

func TestAQueuedGoroutineThatGivesUpDelaysNobody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		x := acquire(t, l, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			_, err := dlock.Acquire(ctx, l, "k")
			wantErr(t, "the one who gives up", err, dlock.ErrNotAcquired)
			wantErr(t, "the one who gives up", err, context.DeadlineExceeded)
		}()
		synctest.Wait()
		got := make(chan *dlock.Lease)
		go func() { got <- acquire(t, l, "k") }()
		time.Sleep(2 * time.Second)
		_ = x.Unlock(t.Context())
		synctest.Wait()
		select {
		case <-got:
		default:
			t.Error("the next one did not get the lock at once")
		}
	})
}

func TestATurnThatComesWithTheCancelGoesOn(t *testing.T) {
	for range 300 {
		virtual(t, func(t *testing.T) {
			l := open(t, memory.New(), dlock.Config{})
			x := acquire(t, l, "k")
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if y, err := dlock.Acquire(ctx, l, "k"); err == nil {
					_ = y.Unlock(t.Context())
				}
			})
			synctest.Wait()
			wg.Go(func() {
				y := acquire(t, l, "k")
				_ = y.Unlock(t.Context())
			})
			synctest.Wait()
			go cancel()
			_ = x.Unlock(t.Context())
			wg.Wait() // hangs, and so fails, if the turn is lost
			synctest.Wait()
			if got := dlock.Entries(l); got != 0 {
				t.Errorf("%d keys are still known", got)
			}
		})
	}
}

func TestHoldsByKeyAndByLeaseExcludeEachOther(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		x := acquire(t, l, "k")
		if ok, err := l.TryLock(t.Context(), "k"); ok || err != nil {
			t.Errorf("TryLock of a leased key: %v, %v; want false", ok, err)
		}
		wantErr(t, "Unlock of a leased key", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
		locked := make(chan error, 1)
		go func() { locked <- l.Lock(t.Context(), "k") }()
		synctest.Wait()
		if len(locked) > 0 {
			t.Fatal("Lock did not wait for the lease")
		}
		_ = x.Unlock(t.Context())
		if err := <-locked; err != nil {
			t.Fatal(err)
		}
		if _, ok, err := dlock.TryAcquire(t.Context(), l, "k"); ok || err != nil {
			t.Errorf("TryAcquire of a key held by key: %v, %v; want false", ok, err)
		}
		leased := make(chan *dlock.Lease, 1)
		go func() { leased <- acquire(t, l, "k") }()
		synctest.Wait()
		if len(leased) > 0 {
			t.Fatal("Acquire did not wait for Unlock")
		}
		if err := l.Unlock(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		<-leased
	})
}

func TestALossPassesTheTurnOn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		got := make(chan *dlock.Lease, 1)
		go func() { got <- acquire(t, l, "k") }()
		synctest.Wait()
		n.snatch(t, "k")
		<-x.Done()
		synctest.Wait()
		if len(got) != 1 {
			t.Error("a lost lease that nobody unlocks keeps the others of its Locker out")
		}
	})
}

func TestTryAcquireIsAnsweredByTheStore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		// One goroutine is on its way to the key, and nobody has it: only the store can tell who will.
		n.on(slow(time.Second), opWait)
		first := make(chan *dlock.Lease, 1)
		go func() { first <- acquire(t, l, "k") }()
		time.Sleep(time.Millisecond)
		x, ok, err := dlock.TryAcquire(t.Context(), l, "k")
		if !ok || err != nil {
			t.Fatalf("TryAcquire: %v, %v; want true", ok, err)
		}
		time.Sleep(5 * time.Second)
		if len(first) > 0 {
			t.Fatal("two hold the key")
		}
		_ = x.Unlock(t.Context())
		y := <-first
		if y.Fence() <= x.Fence() {
			t.Errorf("fences %d, then %d", x.Fence(), y.Fence())
		}
	})
}

func TestLockingAgainUnderItsOwnContext(t *testing.T) {
	ways := map[string]func(ctx context.Context, l dlock.Locker) error{
		"Lock":    func(ctx context.Context, l dlock.Locker) error { return l.Lock(ctx, "k") },
		"TryLock": func(ctx context.Context, l dlock.Locker) error { _, err := l.TryLock(ctx, "k"); return err },
		"Acquire": func(ctx context.Context, l dlock.Locker) error { _, err := dlock.Acquire(ctx, l, "k"); return err },
		"TryAcquire": func(ctx context.Context, l dlock.Locker) error {
			_, _, err := dlock.TryAcquire(ctx, l, "k")
			return err
		},
		"Do": func(ctx context.Context, l dlock.Locker) error {
			return dlock.Do(ctx, l, "k", func(context.Context) error { return nil })
		},
	}
	for name, again := range ways {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, n, dlock.Config{})
				err := dlock.Do(t.Context(), l, "k", func(ctx context.Context) error {
					return dlock.Do(ctx, l, "other", func(ctx context.Context) error {
						ctx, cancel := context.WithCancel(ctx)
						defer cancel()
						return again(ctx, l)
					})
				})
				wantErr(t, "without Reentrant", err, dlock.ErrLockAlreadyHeld)
			})
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, n, dlock.Config{Reentrant: true})
				err := dlock.Do(t.Context(), l, "k", func(ctx context.Context) error { return again(ctx, l) })
				if err != nil {
					t.Errorf("with Reentrant: %v", err)
				}
				if got := len(n.requests(opAcquire, opWait)); got != 1 {
					t.Errorf("%d acquires were sent, want 1", got)
				}
			})
		})
	}
}

func TestAReentrantHoldEndsWithItsLastLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		outer := acquire(t, l, "k")
		inner, err := dlock.Acquire(outer.Context(t.Context()), l, "k")
		if err != nil {
			t.Fatal(err)
		}
		if inner.Fence() != outer.Fence() {
			t.Errorf("fences %d and %d of one hold", outer.Fence(), inner.Fence())
		}
		if err := inner.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if inner.Held() || !outer.Held() || n.holder(t, "k") == 0 {
			t.Errorf("after the inner Unlock: inner held %v, outer held %v", inner.Held(), outer.Held())
		}
		wantErr(t, "second inner Unlock", inner.Unlock(t.Context()), dlock.ErrLockNotHeld)
		third, err := dlock.Acquire(outer.Context(t.Context()), l, "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := outer.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if !third.Held() {
			t.Error("the outer Unlock ended the inner lease")
		}
		n.snatch(t, "k")
		<-third.Done()
		wantErr(t, "Err", third.Err(), dlock.ErrOwnershipLost)
		wantErr(t, "the outer lease's Err", outer.Err(), dlock.ErrLockNotHeld)
	})
}

func TestAnEndedHoldIsNotReentered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		ctx := context.WithoutCancel(x.Context(t.Context()))
		_ = x.Unlock(t.Context())
		if _, err := dlock.Acquire(ctx, l, "k"); err != nil {
			t.Errorf("Acquire under the context of a hold that is over: %v", err)
		}
	})
}

func TestDoReleasesWhateverFnDoes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		free := func(what string) {
			t.Helper()
			if n.holder(t, "k") != 0 {
				t.Errorf("%s: the key is still held", what)
			}
		}
		boom := errors.New("boom")
		err := dlock.Do(t.Context(), l, "k", func(context.Context) error { return boom })
		if err != boom { //nolint:errorlint // it must be untouched
			t.Errorf("Do changed fn's error to %v", err)
		}
		free("error")
		func() {
			defer func() {
				if r := recover(); r != "panic" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = dlock.Do(t.Context(), l, "k", func(context.Context) error { panic("panic") })
		}()
		free("panic")
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = dlock.Do(t.Context(), l, "k", func(context.Context) error { runtime.Goexit(); return nil })
		})
		wg.Wait()
		free("Goexit")
		ctx, cancel := context.WithCancel(t.Context())
		if err := dlock.Do(ctx, l, "k", func(context.Context) error { cancel(); return nil }); err != nil {
			t.Errorf("ctx cancelled within fn: %v", err)
		}
		free("cancelled")
	})
}

func TestDoTellsOfLossAndOfFailure(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		boom := errors.New("boom")
		err := dlock.Do(t.Context(), l, "k", func(ctx context.Context) error {
			n.snatch(t, "k")
			<-ctx.Done()
			wantErr(t, "cause", context.Cause(ctx), dlock.ErrOwnershipLost)
			return boom
		})
		wantErr(t, "Do", err, boom)
		wantErr(t, "Do", err, dlock.ErrOwnershipLost)
		n.on(refuse, opRelease)
		err = dlock.Do(t.Context(), l, "k", func(context.Context) error { return nil })
		wantErr(t, "Do", err, errNetwork)
		var e *dlock.Error
		if !errors.As(err, &e) || e.Op != "unlock" {
			t.Errorf("a failed release has Op %q, want unlock", e.Op)
		}
		n.heal()
		ran := false
		done, cancel := context.WithCancel(t.Context())
		cancel()
		err = dlock.Do(done, l, "k", func(context.Context) error { ran = true; return nil })
		if !errors.As(err, &e) || e.Op != "lock" || ran {
			t.Errorf("fn ran %v, Op %q; want false, lock", ran, e.Op)
		}
	})
}

func TestFenceIsTheInnermostHolds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		if _, ok := dlock.Fence(t.Context()); ok {
			t.Error("a fence without a hold")
		}
		x, y := acquire(t, l, "x"), acquire(t, l, "y")
		ctx := y.Context(x.Context(t.Context()))
		if got, ok := dlock.Fence(ctx); !ok || got != y.Fence() {
			t.Errorf("Fence: %d, %v; want the inner one, %d", got, ok, y.Fence())
		}
	})
}

func TestExclusionUnderLoad(t *testing.T) {
	const lockers, goroutines, rounds = 4, 8, 50
	var backends []*memory.Backend
	for range lockers {
		b, err := memory.Driver{}.Open("memory://" + t.Name())
		if err != nil {
			t.Fatal(err)
		}
		backends = append(backends, b.(*memory.Backend))
	}
	counters := make([]int, 3) // unguarded but for the locks: the race detector watches too
	last := make([]uint64, 3)
	var wg sync.WaitGroup
	for i := range lockers {
		var l dlock.Locker
		if i%2 == 0 {
			l = open(t, backends[i], dlock.Config{})
		} else {
			l = open(t, polled{&network{store: backends[i]}}, dlock.Config{RetryInterval: time.Millisecond})
		}
		for g := range goroutines {
			wg.Go(func() {
				for r := range rounds {
					k := (g + r) % len(counters)
					err := dlock.Do(t.Context(), l, fmt.Sprint(k), func(ctx context.Context) error {
						counters[k]++
						f, _ := dlock.Fence(ctx)
						if f <= last[k] {
							t.Errorf("fence %d after %d", f, last[k])
						}
						last[k] = f
						return nil
					})
					if err != nil {
						t.Errorf("Do: %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
	if got := counters[0] + counters[1] + counters[2]; got != lockers*goroutines*rounds {
		t.Errorf("counted to %d, want %d", got, lockers*goroutines*rounds)
	}
}

func TestInputsAreCheckedBeforeAnythingIsSent(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{RenewInterval: time.Second})
		held := acquire(t, l, "held")
		sent := len(n.requests())
		calls := map[string]func(key string, ttl time.Duration) error{
			"Lock": func(k string, d time.Duration) error { return l.Lock(t.Context(), k, dlock.WithTTL(d)) },
			"TryLock": func(k string, d time.Duration) error {
				_, err := l.TryLock(t.Context(), k, dlock.WithTTL(d))
				return err
			},
			"Acquire": func(k string, d time.Duration) error {
				_, err := dlock.Acquire(t.Context(), l, k, dlock.WithTTL(d))
				return err
			},
			"TryAcquire": func(k string, d time.Duration) error {
				_, _, err := dlock.TryAcquire(t.Context(), l, k, dlock.WithTTL(d))
				return err
			},
		}
		for name, call := range calls {
			for _, key := range []string{"", strings.Repeat("k", dlock.MaxKeyLen+1)} {
				wantErr(t, fmt.Sprintf("%s, key of %d bytes", name, len(key)), call(key, 10*time.Second), dlock.ErrInvalidKey)
			}
			for _, ttl := range []time.Duration{0, -1, 1, dlock.MinTTL - 1, dlock.MaxTTL + 1, 1 << 62, time.Second, time.Second + time.Millisecond} {
				wantErr(t, fmt.Sprintf("%s, TTL %v", name, ttl), call("k", ttl), dlock.ErrInvalidTTL)
				wantErr(t, fmt.Sprintf("Extend, TTL %v", ttl), held.Extend(t.Context(), ttl), dlock.ErrInvalidTTL)
			}
		}
		if got := len(n.requests()); got != sent {
			t.Errorf("%d requests were sent", got-sent)
		}
		l = open(t, newNetwork(), dlock.Config{})
		for _, key := range []string{"k", strings.Repeat("k", dlock.MaxKeyLen), "\x00\xff\r\n{}/.."} {
			for _, ttl := range []time.Duration{dlock.MinTTL, dlock.MaxTTL} {
				x := acquire(t, l, key, dlock.WithTTL(ttl))
				if x.Key() != key {
					t.Errorf("Key is %q, want %q", x.Key(), key)
				}
				_ = x.Unlock(t.Context())
			}
		}
	})
}

func TestTheStoreSeesPrefixAndOwner(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Prefix: "app:", Owner: "me"})
		lock(t, l, "k")
		info, err := n.store.Inspect(t.Context(), "app:k")
		if err != nil || info.Owner != "me" {
			t.Errorf("the store says owner %q, %v; want me", info.Owner, err)
		}
	})
}

func TestReentrantTryLockDoesNotWaitForTheAcquisitionUnderWay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		n.on(slow(time.Second), opWait)
		go func() { _ = l.Lock(t.Context(), "k") }()
		synctest.Wait()
		within(t, 0, "TryLock", func() {
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, dlock.ErrLockAlreadyHeld)
		})
		time.Sleep(2 * time.Second)
	})
}

func TestLeaseOfIsThereFromLockToUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		lock(t, l, "k")
		x, _ := dlock.LeaseOf(l, "k")
		n.snatch(t, "k")
		<-x.Done()
		if y, ok := dlock.LeaseOf(l, "k"); !ok || y != x {
			t.Errorf("after the loss LeaseOf says %v, %v; want the lease that was lost", y, ok)
		}
		_ = l.Unlock(t.Context(), "k")
		if _, ok := dlock.LeaseOf(l, "k"); ok {
			t.Error("LeaseOf has a lease after Unlock")
		}
		acquire(t, l, "leased")
		if _, ok := dlock.LeaseOf(l, "leased"); ok {
			t.Error("LeaseOf has a lease of a key that is not held by key")
		}
	})
}

func TestATurnThatComesAfterTheCancelGoesOn(t *testing.T) {
	// On one processor nobody runs between the cancel and the turn.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 20 {
		virtual(t, func(t *testing.T) {
			l := open(t, memory.New(), dlock.Config{})
			x := acquire(t, l, "k")
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := dlock.Acquire(ctx, l, "k")
				wantErr(t, "the one who gave up", err, context.Canceled)
			})
			synctest.Wait()
			wg.Go(func() {
				y := acquire(t, l, "k")
				_ = y.Unlock(t.Context())
			})
			synctest.Wait()
			cancel()
			_ = x.Unlock(t.Context())
			wg.Wait() // hangs, and so fails, if the turn is lost
			if got := dlock.Entries(l); got != 0 {
				t.Errorf("%d keys are still known", got)
			}
		})
	}
}

func TestTryAcquireDoesNotTakeADeadHoldForAnOwner(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		n.snatch(t, "k")
		x.Pause(time.Minute) // no timer has fired, nobody has looked
		if _, ok, err := dlock.TryAcquire(t.Context(), l, "k"); !ok || err != nil {
			t.Errorf("TryAcquire: %v, %v; want true: the deadline of the hold has passed, and the store has let go", ok, err)
		}
	})
}

func TestAMarkIsForItsKeyAndItsLocker(t *testing.T) {
	for _, reentrant := range []bool{false, true} {
		t.Run(fmt.Sprint("reentrant ", reentrant), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n, other := named(t, fmt.Sprint(reentrant)), named(t, fmt.Sprint(reentrant))
				l, lo := open(t, n, dlock.Config{Reentrant: reentrant}), open(t, other, dlock.Config{Reentrant: reentrant})
				x := acquire(t, l, "x")
				ctx := x.Context(t.Context())
				y, err := dlock.Acquire(ctx, l, "y")
				if err != nil {
					t.Fatalf("another key under the context of a hold: %v", err)
				}
				if y.Fence() == x.Fence() || n.holder(t, "y") != y.Fence() {
					t.Error("another key re-entered the hold")
				}
				if _, ok, err := dlock.TryAcquire(ctx, lo, "x"); ok || err != nil {
					t.Errorf("TryAcquire by another Locker: %v, %v; want false: it is held", ok, err)
				}
			})
		})
	}
}

func TestReenteringByKeyIsAHoldByKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		x := acquire(t, l, "k")
		if err := l.Lock(x.Context(t.Context()), "k"); err != nil {
			t.Fatal(err)
		}
		lock(t, l, "k") // counts, though not under the context
		if err := x.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for i := range 2 {
			if n.holder(t, "k") == 0 {
				t.Errorf("released after %d of 2 Unlocks by key", i)
			}
			if err := l.Unlock(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		}
		if n.holder(t, "k") != 0 {
			t.Error("held after the last Unlock")
		}
		wantErr(t, "one Unlock more", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
		if got := dlock.Entries(l); got != 0 {
			t.Errorf("%d keys are still known", got)
		}
	})
}

func TestTryAcquireOfWhatOneOfUsHoldsAsksNobody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		acquire(t, l, "k")
		sent := len(n.requests())
		if _, ok, err := dlock.TryAcquire(t.Context(), l, "k"); ok || err != nil {
			t.Errorf("TryAcquire: %v, %v; want false", ok, err)
		}
		if got := len(n.requests()); got != sent {
			t.Errorf("%d requests were sent", got-sent)
		}
	})
}

func TestALossEndsEveryLeaseOfAHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		outer := acquire(t, l, "k")
		inner, err := dlock.Acquire(outer.Context(t.Context()), l, "k")
		if err != nil {
			t.Fatal(err)
		}
		n.snatch(t, "k")
		<-outer.Done()
		<-inner.Done()
		wantErr(t, "outer", outer.Err(), dlock.ErrOwnershipLost)
		wantErr(t, "inner", inner.Err(), dlock.ErrOwnershipLost)
	})
}
