package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
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

func TestUnlockOfANilLease(t *testing.T) {
	var x *dlock.Lease
	wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrLockNotHeld)
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
		if want := "dlock: close (dlock_test): 2 of 2 locks were not released and end with their TTL: connection reset"; err.Error() != want {
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
