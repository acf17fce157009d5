package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestUnlockEndsTheHoldBeforeAnythingIsSent(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		n.on(func(_ context.Context, _ op, next func() error) error {
			select {
			case <-x.Done():
			default:
				t.Error("Done is open when the release is sent")
			}
			if x.Held() {
				t.Error("held when the release is sent")
			}
			return next()
		}, opRelease)
		if err := x.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if n.holder(t, "k") != 0 {
			t.Error("Unlock returned nil and the store still has the token")
		}
	})
}

func TestUnlockThatFailsEndsTheHoldAllTheSame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		lock(t, l, "k")
		n.on(refuse)
		wantErr(t, "Unlock", l.Unlock(t.Context(), "k"), errNetwork)
		wantErr(t, "second Unlock", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
	})
}

func TestAFailedReleaseIsRepeatedUntilTheTTLHasPassed(t *testing.T) {
	const ttl = 6 * time.Second
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: ttl})
		x := acquire(t, l, "k")
		time.Sleep(10 * time.Second)
		n.on(refuse, opRelease)
		renewals := n.requests(opRenew)
		lastSent := renewals[len(renewals)-1].at
		wantErr(t, "Unlock", x.Unlock(t.Context()), errNetwork)
		time.Sleep(time.Minute)
		releases := n.requests(opRelease)
		end := releases[len(releases)-1].at.Sub(lastSent)
		if end < ttl-600*time.Millisecond || end > ttl+500*time.Millisecond {
			t.Errorf("the last release was sent %v after the last renewal, want until about %v", end, ttl)
		}
	})
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: ttl})
		x := acquire(t, l, "k")
		n.on(refuse, opRelease)
		_ = x.Unlock(t.Context())
		time.Sleep(time.Second)
		n.heal()
		time.Sleep(time.Second)
		if n.holder(t, "k") != 0 {
			t.Error("the token is in the store a second after the network healed")
		}
	})
}

func TestUnlockWithADeadCtxMakesOneAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		n.on(slow(20*time.Millisecond), opRelease)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := x.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		if n.holder(t, "k") != 0 {
			t.Error("the key is still held")
		}
	})
}

func TestUnlockOfWhatTheStoreGaveAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		x := acquire(t, l, "k")
		n.snatch(t, "k")
		y := acquire(t, lo, "k")
		wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrOwnershipLost)
		if n.holder(t, "k") != y.Fence() {
			t.Error("the late Unlock touched the next holder's lock")
		}
	})
}

func TestNotOwnerOnARetriedReleaseIsUnknown(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		x := acquire(t, l, "k")
		var y *dlock.Lease
		var once sync.Once
		n.on(func(_ context.Context, _ op, next func() error) error {
			err := next()
			once.Do(func() { // applied, reply lost, and somebody else takes the lock meanwhile
				y = acquire(t, lo, "k")
				err = errNetwork
			})
			return err
		}, opRelease)
		err := x.Unlock(t.Context())
		if err == nil || errors.Is(err, dlock.ErrOwnershipLost) || errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Unlock: %v; want an error that says the outcome is unknown", err)
		}
		wantErr(t, "Unlock", err, errNetwork)
		time.Sleep(time.Minute)
		if !y.Held() || n.holder(t, "k") != y.Fence() {
			t.Error("the retried release touched the next holder's lock")
		}
	})
}

func TestAFailedReleaseIsTriedOnceMoreAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		var once sync.Once
		n.on(func(_ context.Context, _ op, next func() error) (err error) {
			once.Do(func() { err = errNetwork })
			if err != nil {
				return err
			}
			return next()
		}, opRelease)
		if err := x.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock over a connection that broke once: %v", err)
		}
	})
}

func TestOneOfManyUnlocksReleases(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		var ok, notHeld atomic.Int32
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				switch err := x.Unlock(t.Context()); {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, dlock.ErrLockNotHeld):
					notHeld.Add(1)
				default:
					t.Errorf("Unlock: %v", err)
				}
			})
		}
		wg.Wait()
		if ok.Load() != 1 || notHeld.Load() != 99 || len(n.requests(opRelease)) != 1 {
			t.Errorf("%d nil, %d ErrLockNotHeld, %d releases; want 1, 99, 1", ok.Load(), notHeld.Load(), len(n.requests(opRelease)))
		}
	})
}

func TestALateRenewalDoesNotKeepALostLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 10 * time.Second})
		x := acquire(t, l, "k")
		n.on(loseReply, opRenew) // the store renews, we do not know
		<-x.Done()
		if n.holder(t, "k") == 0 {
			t.Fatal("the store has let go; the test shows nothing")
		}
		wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrOwnershipLost)
		time.Sleep(100 * time.Millisecond)
		if n.holder(t, "k") != 0 {
			t.Error("after Unlock of a lost hold its token is still in the store")
		}
	})
}

func TestCloseReleasesWakesAndRefuses(t *testing.T) {
	for name, b := range map[string]func(*network) driver.Backend{
		"waiting": func(n *network) driver.Backend { return n },
		"polling": func(n *network) driver.Backend { return polled{n} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n, other := named(t, t.Name()), named(t, t.Name())
				l := open(t, b(n), dlock.Config{})
				lo := open(t, other, dlock.Config{})
				lock(t, lo, "busy")
				lock(t, l, "mine")
				var leases []*dlock.Lease
				for i := range 100 {
					leases = append(leases, acquire(t, l, fmt.Sprint(i)))
				}
				n.on(slow(100*time.Millisecond), opRelease)
				var wg sync.WaitGroup
				for _, wait := range []func() error{
					func() error { return l.Lock(t.Context(), "busy") },
					func() error { _, err := dlock.Acquire(t.Context(), l, "busy"); return err },
					func() error { _, err := dlock.Acquire(t.Context(), l, "mine"); return err },
				} {
					wg.Go(func() { wantErr(t, "a waiting call", wait(), dlock.ErrClosed) })
				}
				time.Sleep(time.Second)
				within(t, 900*time.Millisecond, "Close", func() {
					if err := l.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
				wg.Wait()
				for _, x := range leases {
					select {
					case <-x.Done():
					default:
						t.Fatal("a Done is open after Close")
					}
					wantErr(t, "Err", x.Err(), dlock.ErrClosed)
					wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrClosed)
				}
				for i := range 100 {
					if other.holder(t, fmt.Sprint(i)) != 0 {
						t.Fatal("Close left a lock in the store")
					}
				}
				info, err := other.store.Inspect(t.Context(), "busy")
				if err != nil || len(info.Waiters) > 0 {
					t.Errorf("waiters %v are left in the queue (%v)", info.Waiters, err)
				}
				sent := len(n.requests())
				wantErr(t, "Lock", l.Lock(t.Context(), "k"), dlock.ErrClosed)
				_, err = l.TryLock(t.Context(), "k")
				wantErr(t, "TryLock", err, dlock.ErrClosed)
				wantErr(t, "Unlock", l.Unlock(t.Context(), "mine"), dlock.ErrClosed)
				wantErr(t, "Ping", dlock.Ping(t.Context(), l), dlock.ErrClosed)
				wantErr(t, "Extend", leases[0].Extend(t.Context(), time.Minute), dlock.ErrClosed)
				time.Sleep(time.Minute)
				if got := len(n.requests()); got != sent {
					t.Errorf("%d requests were sent after Close", got-sent)
				}
				if !n.closed {
					t.Error("the backend was not closed")
				}
			})
		})
	}
}

func TestCloseTakesTwoSecondsAtMost(t *testing.T) {
	for _, o := range []op{opAcquire, opWait, opRelease, opRenew, opBatch} {
		t.Run(string(o), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, batched{n}, dlock.Config{DefaultTTL: 9 * time.Second})
				acquire(t, l, "held")
				unlocking := acquire(t, l, "unlocking")
				stuck, free := hang(t)
				n.on(stuck, o)
				time.Sleep(3200 * time.Millisecond) // a renewal is under way
				var wg sync.WaitGroup
				wg.Go(func() { _ = l.Lock(t.Context(), "lock") })
				wg.Go(func() { _, _ = l.TryLock(t.Context(), "try") })
				wg.Go(func() { _ = unlocking.Unlock(t.Context()) })
				time.Sleep(10 * time.Millisecond)
				within(t, 2*time.Second, "Close", func() { _ = l.Close() })
				wg.Wait()
				sent := len(n.requests())
				time.Sleep(time.Minute)
				free()
				time.Sleep(time.Minute)
				if got := len(n.requests()); got != sent {
					t.Errorf("%d requests were sent after Close", got-sent)
				}
			})
		})
	}
}

func TestCloseTwiceAndAtTheSameTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		acquire(t, l, "k")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := l.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestCloseSaysWhatItCouldNotRelease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		acquire(t, l, "a")
		acquire(t, l, "b")
		n.on(refuse, opRelease)
		err := l.Close()
		wantErr(t, "Close", err, errNetwork)
		if want := "dlock: close (dlock_test): the release of 2 locks was not confirmed; " +
			"they may stay in the store until their TTL has passed: connection reset"; err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	})
}

func TestCloseDuringUseIsClean(t *testing.T) {
	for range 50 {
		l := open(t, memory.New(), dlock.Config{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for {
					err := dlock.Do(t.Context(), l, fmt.Sprint(i%3), func(context.Context) error { return nil })
					if err != nil {
						wantErr(t, "Do", err, dlock.ErrClosed)
						return
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		wg.Wait()
	}
}

func TestUnlockOfWhatTheStoreHasTakenNeedsNoCleanUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		n.snatch(t, "k")
		<-x.Done()
		wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrOwnershipLost)
		time.Sleep(time.Minute)
		if got := len(n.requests(opRelease)); got != 0 {
			t.Errorf("%d releases of a token that the store said is gone", got)
		}
	})
}

func TestALostHoldIsCleanedUpOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 10 * time.Second})
		x := acquire(t, l, "k")
		n.on(loseReply, opRenew)
		<-x.Done()
		var together atomic.Int32
		n.on(most(50*time.Millisecond, &together), opRelease)
		for range 10 {
			wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrOwnershipLost)
		}
		time.Sleep(time.Minute)
		if got := together.Load(); got != 1 {
			t.Errorf("%d clean-ups of one token at the same time, want 1", got)
		}
	})
}

func TestTheTurnComesWhenTheReleaseIsDone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		var wg sync.WaitGroup
		wg.Go(func() { acquire(t, l, "k") })
		synctest.Wait()
		n.on(slow(500*time.Millisecond), opRelease)
		unlocked := time.Now()
		_ = x.Unlock(t.Context())
		wg.Wait()
		waits := n.requests(opWait)
		if got := waits[len(waits)-1].at.Sub(unlocked); got != 500*time.Millisecond {
			t.Errorf("the next one went to the store %v after Unlock was called, want when the release was done, 500ms", got)
		}
	})
}

func TestUnlockIsBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Hour})
		x := acquire(t, l, "k")
		f, _ := hang(t)
		n.on(f, opRelease)
		within(t, 2200*time.Millisecond, "Unlock", func() {
			if err := x.Unlock(t.Context()); err == nil {
				t.Error("Unlock: nil, and nothing was confirmed")
			}
		})
	})
}

func TestAGrantThatComesWithCloseIsTakenBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l := open(t, n, dlock.Config{})
		open(t, other, dlock.Config{}) // keeps the store
		n.on(slowReply(30*time.Millisecond), opWait)
		locked := make(chan error, 1)
		go func() { locked <- l.Lock(t.Context(), "k") }()
		time.Sleep(10 * time.Millisecond)
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		wantErr(t, "Lock", <-locked, dlock.ErrClosed)
		if other.holder(t, "k") != 0 {
			t.Error("Close left a lock in the store")
		}
	})
}

func TestCloseWakesWhoeverPauses(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, polled{n}, dlock.Config{RetryInterval: time.Hour}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		locked := make(chan error, 1)
		go func() { locked <- l.Lock(t.Context(), "k") }()
		time.Sleep(time.Minute)
		within(t, 0, "Close", func() { _ = l.Close() })
		within(t, 0, "the wait for Lock", func() { wantErr(t, "Lock", <-locked, dlock.ErrClosed) })
	})
}

// closer is a backend whose Close takes its time, or fails.
type closer struct {
	*network
	takes time.Duration
	err   error
}

func (b closer) Close() error {
	time.Sleep(b.takes)
	return errors.Join(b.err, b.network.Close())
}

func TestCloseDoesNotWaitForABackendThatHangs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, closer{n, time.Hour, nil}, dlock.Config{})
		acquire(t, l, "k")
		f, free := hang(t)
		n.on(f, opRelease)
		within(t, 2*time.Second, "Close", func() {
			if err := l.Close(); err == nil {
				t.Error("Close: nil, and the backend is not closed")
			}
		})
		free()
		time.Sleep(2 * time.Hour)
	})
}

func TestCloseTellsWhatTheBackendSays(t *testing.T) {
	virtual(t, func(t *testing.T) {
		why := errors.New("could not flush")
		l := open(t, closer{newNetwork(), 0, why}, dlock.Config{})
		wantErr(t, "Close", l.Close(), why)
	})
}

func TestEveryCloseReturnsWhenAllIsClosed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l := open(t, n, dlock.Config{})
		open(t, other, dlock.Config{})
		acquire(t, l, "k")
		n.on(slow(500*time.Millisecond), opRelease)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_ = l.Close()
				if other.holder(t, "k") != 0 || !n.closed {
					t.Error("Close returned, and another Close is still at it")
				}
			})
		}
		wg.Wait()
	})
}

func TestCloseEndsTheContextsOfItsCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Hour})
		var under atomic.Int32
		n.on(func(ctx context.Context, _ op, _ func() error) error {
			under.Add(1)
			<-ctx.Done()
			under.Add(-1)
			return ctx.Err()
		}, opRelease)
		for i := range 5 {
			acquire(t, l, fmt.Sprint(i))
		}
		_ = l.Close()
		synctest.Wait()
		if got := under.Load(); got != 0 {
			t.Errorf("%d calls are still under way after Close, with a ctx that has not ended", got)
		}
	})
}

// bare has no optional method.
type bare struct{ driver.Backend }

func TestAClosedLockerSaysSoWhateverIsAsked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, bare{newNetwork()}, dlock.Config{})
		_ = l.Close()
		wantErr(t, "Lock", l.Lock(t.Context(), "k"), dlock.ErrClosed)
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, "TryLock", err, dlock.ErrClosed)
		wantErr(t, "Unlock of what was never locked", l.Unlock(t.Context(), "k"), dlock.ErrClosed)
		wantErr(t, "Ping", dlock.Ping(t.Context(), l), dlock.ErrClosed)
	})
}

func TestCloseHurriesTheCleanUp(t *testing.T) {
	for _, after := range []time.Duration{10 * time.Second, 10150 * time.Millisecond, 10300 * time.Millisecond} { // the pauses are long by now
		t.Run(after.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n, other := named(t, t.Name()), named(t, t.Name())
				l := open(t, n, dlock.Config{DefaultTTL: time.Hour})
				open(t, other, dlock.Config{}) // keeps the store
				x := acquire(t, l, "k")
				n.on(refuse, opRelease)
				wantErr(t, "Unlock", x.Unlock(t.Context()), errNetwork)
				time.Sleep(after)
				n.heal()
				within(t, 50*time.Millisecond, "Close", func() { _ = l.Close() })
				if other.holder(t, "k") != 0 {
					t.Error("Close left a lock in the store whose release had failed before")
				}
			})
		})
	}
}
