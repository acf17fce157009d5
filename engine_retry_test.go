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
)

func TestLockRetriesWithTheSameToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(func(_ context.Context, _ op, next func() error) error {
			if len(n.requests(opWait)) < 10 {
				return errNetwork
			}
			return next()
		}, opWait)
		lock(t, l, "k")
		reqs := n.requests(opWait)
		for _, s := range reqs {
			if s.token != reqs[0].token {
				t.Error("a retry with another token")
			}
		}
		if len(reqs[0].token) != 32 {
			t.Errorf("a token of %d characters, want 32 hexadecimal digits", len(reqs[0].token))
		}
	})
}

func TestEveryAcquisitionHasATokenOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		seen := map[string]bool{}
		for range 100 {
			x := acquire(t, l, "k")
			_ = x.Unlock(t.Context())
		}
		for _, s := range n.requests(opWait) {
			if seen[s.token] {
				t.Fatal("a token was used twice")
			}
			seen[s.token] = true
		}
	})
}

func TestPollingHasJitterAndGrows(t *testing.T) {
	const interval = 50 * time.Millisecond
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, polled{n}, dlock.Config{RetryInterval: interval}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantErr(t, "Lock", l.Lock(ctx, "k"), dlock.ErrNotAcquired)
		reqs := n.requests(opAcquire)
		var longest time.Duration
		distinct := map[time.Duration]bool{}
		for i := 1; i < len(reqs); i++ {
			gap := reqs[i].at.Sub(reqs[i-1].at)
			longest = max(longest, gap)
			distinct[gap] = true
			if gap < interval/2 || gap > 10*interval || i == 1 && gap > interval {
				t.Errorf("poll %d after %v; want from half of %v up, the first within %v, all within ten times that", i, gap, interval, interval)
			}
		}
		if longest < 5*interval || len(distinct) < len(reqs)/2 {
			t.Errorf("longest pause %v, %d different ones of %d; want growth and jitter", longest, len(distinct), len(reqs))
		}
	})
}

func TestMaxRetriesArePolledAtTheInterval(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l := open(t, n, dlock.Config{MaxRetries: 4, RetryInterval: 100 * time.Millisecond})
		lo := open(t, other, dlock.Config{})
		lock(t, lo, "k")
		err := l.Lock(t.Context(), "k")
		wantErr(t, "Lock", err, dlock.ErrNotAcquired)
		reqs := n.requests(opAcquire)
		if len(reqs) != 5 || len(n.requests(opWait)) > 0 {
			t.Fatalf("%d attempts and %d waits, want 5 and none", len(reqs), len(n.requests(opWait)))
		}
		for i := 1; i < len(reqs); i++ {
			if gap := reqs[i].at.Sub(reqs[i-1].at); gap != 100*time.Millisecond {
				t.Errorf("attempt %d after %v, want 100ms", i, gap)
			}
		}
		n.on(refuse, opAcquire)
		err = l.Lock(t.Context(), "k")
		wantErr(t, "Lock during an outage", err, errNetwork)
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v: an outage is not busy", err)
		}
	})
}

func TestPermanentErrorsAreReturnedAtOnce(t *testing.T) {
	noAuth := errors.New("NOAUTH")
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(func(context.Context, op, func() error) error { return driver.Permanent(noAuth) }, opWait, opAcquire)
		within(t, 0, "both calls", func() {
			wantErr(t, "Lock", l.Lock(t.Context(), "k"), noAuth)
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, noAuth)
		})
		if got := len(n.requests()); got != 2 {
			t.Errorf("%d requests, want 2", got)
		}
	})
}

func TestAPermanentErrorAfterTheClaimWasQueuedTakesItOutOfTheQueue(t *testing.T) {
	noPerm := errors.New("NOPERM")
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		n.on(func(_ context.Context, _ op, next func() error) error {
			go func() { _ = next() }()
			synctest.Wait() // until it is queued
			return driver.Permanent(noPerm)
		}, opWait)
		wantErr(t, "Lock", l.Lock(t.Context(), "k"), noPerm)
		time.Sleep(time.Second)
		info, err := other.store.Inspect(t.Context(), "k")
		if err != nil || len(info.Waiters) > 0 {
			t.Errorf("Inspect = %+v, %v; want nobody in the queue", info, err)
		}
	})
}

func TestWaitTimeoutEndsTheWait(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{WaitTimeout: 3 * time.Second}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		begin := time.Now()
		err := l.Lock(t.Context(), "k")
		wantErr(t, "Lock", err, dlock.ErrNotAcquired)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v matches DeadlineExceeded though ctx has no deadline", err)
		}
		if got := time.Since(begin); got != 3*time.Second {
			t.Errorf("gave up after %v, want 3s", got)
		}
		n.on(refuse, opWait)
		err = l.Lock(t.Context(), "k")
		wantErr(t, "Lock during an outage", err, errNetwork)
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v: an outage is not busy", err)
		}
		// The local queue counts as waiting too.
		n.heal()
		x := acquire(t, l, "mine")
		_, err = dlock.Acquire(t.Context(), l, "mine")
		wantErr(t, "Acquire", err, dlock.ErrNotAcquired)
		_ = x.Unlock(t.Context())
		// And so does waiting for another call that acquires the same hold by key.
		r := open(t, n, dlock.Config{WaitTimeout: 3 * time.Second, Reentrant: true})
		go func() { _ = r.Lock(t.Context(), "k") }()
		time.Sleep(2 * time.Second)
		within(t, 3*time.Second, "Lock", func() { wantErr(t, "Lock", r.Lock(t.Context(), "k"), dlock.ErrNotAcquired) })
	})
}

func TestAWaiterThatGaveUpIsOutOfTheQueue(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		x := acquire(t, lo, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, "Lock", l.Lock(ctx, "k"), dlock.ErrNotAcquired)
		time.Sleep(time.Millisecond)
		info, err := other.store.Inspect(t.Context(), "k")
		if err != nil || len(info.Waiters) != 0 {
			t.Errorf("waiters %v, %v; want none", info.Waiters, err)
		}
		_ = x.Unlock(t.Context())
		if got := dlock.Entries(l); got != 0 {
			t.Errorf("%d keys are still known", got)
		}
	})
}

func TestManyWaitersOfManyLockersAllGetTheirTurn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var wg sync.WaitGroup
		sum := 0
		for i := range 10 {
			l := open(t, named(t, "shared"), dlock.Config{Owner: fmt.Sprint("owner ", i)})
			for range 10 {
				wg.Go(func() {
					err := dlock.Do(t.Context(), l, "k", func(context.Context) error {
						sum++
						time.Sleep(time.Second)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		begin := time.Now()
		wg.Wait()
		if sum != 100 || time.Since(begin) > 101*time.Second {
			t.Errorf("%d turns of 1s in %v, want 100 without gaps", sum, time.Since(begin))
		}
	})
}

// A release that was given up takes the key of an earlier attempt away after TryLock has asked, and the next release finds nothing.
func TestAKeyThatALateReleaseFreedIsNotHeldByAnother(t *testing.T) {
	for name, slow := range map[string]time.Duration{"its own release": 0, "a release in the background": 900 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, n, dlock.Config{})
				gaveUp := make(chan struct{})
				var late atomic.Bool
				n.on(func(ctx context.Context, o op, next func() error) error {
					acquires, releases := len(n.requests(opAcquire)), len(n.requests(opRelease))
					switch {
					case o == opAcquire && acquires <= 2: // TryLock asks twice
						return loseReply(ctx, o, next)
					case o == opAcquire && acquires == 3:
						return slowReply(slow)(ctx, o, next)
					case o == opRelease && releases < 10: // so that they are half a second apart
						return errNetwork
					case o == opRelease && late.CompareAndSwap(false, true):
						time.AfterFunc(40*time.Millisecond, func() { _ = next() })
						close(gaveUp)
						return errNetwork
					case o == opRelease:
						time.Sleep(100 * time.Millisecond)
					}
					return next()
				})
				_, err := l.TryLock(t.Context(), "k")
				wantErr(t, "TryLock", err, errNetwork)
				<-gaveUp
				time.Sleep(time.Millisecond)
				if ok, err := l.TryLock(t.Context(), "k"); !ok || err != nil {
					t.Errorf("TryLock = %v, %v; want the lock, which nobody else has", ok, err)
				}
			})
		})
	}
}
