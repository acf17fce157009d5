package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestARenewalOfTheOldTTLDoesNotCountAsTheNew(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, plain{polled{n}}, dlock.Config{DefaultTTL: 3 * time.Second})
		x := acquire(t, l, "k")
		time.Sleep(500 * time.Millisecond)
		var once atomic.Bool
		n.on(func(_ context.Context, o op, next func() error) error {
			err := next()
			if once.CompareAndSwap(false, true) {
				time.Sleep(600 * time.Millisecond) // the Extend's answer comes while the renewal, sent later, is under way
			} else {
				time.Sleep(300 * time.Millisecond)
			}
			return err
		}, opRenew)
		extended := time.Now()
		if err := x.Extend(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := x.ValidUntil().Sub(extended); got > 10*time.Second {
			t.Errorf("ValidUntil is %v after the only request for 10s was sent", got)
		}
		n.on(refuse)
		<-x.Done()
		if n.holder(t, "k") == 0 {
			t.Error("held when the store had already let go")
		}
	})
}

func TestAnInnerContextLooksAtTheOuterHoldsClockToo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, memory.New(), dlock.Config{DefaultTTL: time.Second})
		x, y := acquire(t, l, "x"), acquire(t, l, "y", dlock.WithTTL(time.Hour))
		ctx := y.Context(x.Context(t.Context()))
		x.Pause(2 * time.Second)
		if ctx.Err() == nil {
			t.Error("the first look after the pause says held, and the outer hold is lost")
		}
	})
}

func TestReenteringByKeyBesideAWaitingLockIsNoDeadlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{Reentrant: true})
		var wg sync.WaitGroup
		err := dlock.Do(t.Context(), l, "k", func(ctx context.Context) error {
			wg.Go(func() { // another goroutine queues for the key, by key
				lock(t, l, "k")
				_ = l.Unlock(t.Context(), "k")
			})
			synctest.Wait()
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			begin := time.Now()
			err := l.Lock(ctx, "k")
			if took := time.Since(begin); took > 0 {
				t.Errorf("Lock under the context of its own hold waited %v: %v", took, err)
			}
			if err == nil {
				return l.Unlock(ctx, "k")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func TestWaitTimeoutCountsForReentrantLocksToo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{Reentrant: true, WaitTimeout: time.Second}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				within(t, time.Second, "Lock", func() {
					if l.Lock(t.Context(), "k") == nil {
						t.Error("Lock got a lock that is held")
					}
				})
			})
		}
		wg.Wait()
	})
}

func TestTryLockIsNotFalseWhenTheCleanUpEndsMeanwhile(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{})
		n.on(func(ctx context.Context, o op, next func() error) error {
			if o == opAcquire {
				return loseReply(ctx, o, next)
			}
			return refuse(ctx, o, next)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, errNetwork)
		// The token of that call is in the store. Now the clean-up gets through, while TryLock's answer is on its way.
		n.on(slowReply(time.Second), opAcquire)
		ok, err := l.TryLock(t.Context(), "k")
		if !ok && err == nil {
			t.Error("TryLock says that another owner has the key; it was our own token that was being cleaned up")
		}
	})
}

func TestTryLockBehindManyCleanUpsReturnsSoonAfterCtxEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		n.on(refuse)
		for range 20 {
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, errNetwork)
		}
		lock(t, lo, "k")
		n.on(slow(45 * time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		within(t, 200*time.Millisecond, "TryLock", func() { _, _ = l.TryLock(ctx, "k") })
	})
}

// watcher is a context that looks at a lease when it is asked for a value.
type watcher struct {
	context.Context
	held func() bool
}

func (w watcher) Value(key any) any {
	w.held()
	return w.Context.Value(key)
}

func TestACallersContextMayUseTheLocker(t *testing.T) {
	l := open(t, memory.New(), dlock.Config{})
	x := acquire(t, l, "x")
	done := make(chan struct{})
	go func() {
		defer close(done)
		y, err := dlock.Acquire(watcher{t.Context(), x.Held}, l, "y")
		if err != nil {
			t.Error(err)
			return
		}
		_ = y.Unlock(t.Context())
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		t.Fatal("deadlock: the caller's context is asked under the Locker's mutex")
	}
}

func TestALeaseContextsParentMayUseTheLocker(t *testing.T) {
	l := open(t, memory.New(), dlock.Config{})
	x, y := acquire(t, l, "x"), acquire(t, l, "y")
	_ = y.Context(watcher{t.Context(), x.Held})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = y.Unlock(t.Context())
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		t.Fatal("deadlock: the parent is asked under the Locker's mutex")
	}
}

func TestAQueuedCallThatCloseWakesIsNotToldThatTheKeyIsBusy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		acquire(t, l, "k")
		got := make(chan error, 1)
		go func() { _, err := dlock.Acquire(t.Context(), l, "k"); got <- err }()
		synctest.Wait()
		_ = l.Close()
		err := <-got
		wantErr(t, "Acquire", err, dlock.ErrClosed)
		if strings.Count(err.Error(), "dlock: ") > 1 {
			t.Errorf("the prefix stutters: %v", err)
		}
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v matches ErrNotAcquired", err)
		}
	})
}

func TestBusyIsToldAlsoWhenCtxEndsWithinAPoll(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, polled{n}, dlock.Config{}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		n.on(slow(100*time.Millisecond), opAcquire) // a healthy store far away
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second+time.Duration(i)*17*time.Millisecond)
			err := l.Lock(ctx, "k")
			cancel()
			if !errors.Is(err, dlock.ErrNotAcquired) {
				t.Fatalf("round %d: %v; the store said held %d times", i, err, len(n.requests(opAcquire)))
			}
		}
	})
}

// panicky is an in-place backend that panics once.
type panicky struct {
	*memory.Backend
	once sync.Once
}

func (p *panicky) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	p.once.Do(func() { panic("boom") })
	return p.Backend.Acquire(ctx, c)
}

func TestAPanicInAnInPlaceDriverDoesNotKeepTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, &panicky{Backend: memory.New()}, dlock.Config{})
		func() {
			defer func() { _ = recover() }()
			_ = l.Lock(t.Context(), "k")
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Lock(ctx, "k"); err != nil {
			t.Errorf("Lock after a panic that was recovered from: %v", err)
		}
	})
}

func TestAReleaseThatWasLeftBehindEndsTheCleanUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Hour})
		x := acquire(t, l, "k")
		n.on(slowReply(80*time.Millisecond), opRelease)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, "Unlock", x.Unlock(ctx), context.Canceled)
		time.Sleep(2 * time.Hour)
		if got := len(n.requests(opRelease)); got > 12 {
			t.Errorf("%d releases were sent for a token that the first one removed", got)
		}
	})
}

func TestCloseDoesNotDenyWhatItReleased(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		acquire(t, l, "k")
		var once sync.Once
		n.on(func(_ context.Context, _ op, next func() error) (err error) {
			once.Do(func() { err = errNetwork })
			if err != nil {
				return err
			}
			return next()
		}, opRelease)
		err := l.Close()
		if got := len(n.requests(opRelease)); got < 2 {
			t.Fatalf("%d releases; the test shows nothing", got)
		}
		if err != nil {
			t.Errorf("Close: %v; and the clean-up removed it", err)
		}
	})
}

func TestTryLockIsNotFalseWhenItsLastAttemptWasNotAnswered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{})
		n.on(func(ctx context.Context, o op, next func() error) error {
			if o == opAcquire {
				return loseReply(ctx, o, next)
			}
			return refuse(ctx, o, next)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, errNetwork)
		// TryLock finds our own token, removes it, and gets no answer to its second attempt.
		before := len(n.requests(opAcquire))
		var mine atomic.Int32
		n.on(func(ctx context.Context, o op, next func() error) error {
			switch {
			case o == opAcquire && len(n.requests(opAcquire)) == before+1:
				err := next()
				mine.Store(1)
				return err
			case o == opAcquire:
				return mute(ctx, o, next)
			case mine.Load() == 0: // the clean-up in the background does not get through
				return errNetwork
			default:
				return next()
			}
		})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ok, err := l.TryLock(short, "k")
		if got := len(n.requests(opAcquire)); got != before+2 {
			t.Fatalf("%d attempts; the test shows nothing: %v %v", got-before, ok, err)
		}
		if ok || err == nil {
			t.Errorf("TryLock: %v, %v; want an error: the last attempt was not answered", ok, err)
		}
	})
}

func TestAnOutageIsNotBusyForReentrantLocksEither(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Reentrant: true})
		n.on(refuse)
		first, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = l.Lock(first, "k") }()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Lock(ctx, "k")
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v: an outage is not busy", err)
		}
	})
}

func TestAKeyUnlockedByItsLeaseCanBeLockedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		lock(t, l, "k")
		x, _ := dlock.LeaseOf(l, "k")
		if err := x.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Lock(t.Context(), "k"); err != nil {
			t.Errorf("Lock after the lease was unlocked: %v", err)
		}
	})
}

func TestTheQueueBehindAMuteBackendIsNotToldBusy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		f, free := hang(t)
		n.on(f)
		defer free()
		head, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _, _ = dlock.Acquire(head, l, "k") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v: nobody has the key and the backend is mute", err)
		}
	})
}

func TestADetachedContextIsNotEndedByTheOuterHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, memory.New(), dlock.Config{})
		x, y := acquire(t, l, "x"), acquire(t, l, "y")
		ctx := y.Context(context.WithoutCancel(x.Context(t.Context())))
		_ = x.Unlock(t.Context())
		looked := make(chan error, 1)
		go func() { looked <- ctx.Err() }()
		select {
		case err := <-looked:
			if err != nil {
				t.Errorf("Err: %v; y is held, and nothing else ends its context", err)
			}
		case <-time.After(time.Second):
			t.Error("Err does not return")
		}
		_ = y.Unlock(t.Context())
		synctest.Wait()
	})
}

func TestManyCallsOfAHealthyStoreAllSucceed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Second})
		n.on(slow(100*time.Millisecond), opAcquire)
		var failed atomic.Int32
		var last atomic.Value
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				if ok, err := l.TryLock(t.Context(), fmt.Sprint(i)); !ok {
					failed.Add(1)
					last.Store(fmt.Sprint(err))
				}
			})
		}
		wg.Wait()
		if failed.Load() > 0 {
			t.Errorf("%d of 2000 TryLocks of free keys failed, the last with %v", failed.Load(), last.Load())
		}
	})
}
