package dlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// slowClose is a network whose client takes d to close.
type slowClose struct {
	*network
	d time.Duration
}

func (s slowClose) Close() error {
	time.Sleep(s.d)
	return s.network.Close()
}

func TestCloseCountsAnUnlockUnderWayOnce(t *testing.T) {
	const keys, rounds = 100, 20 // the moment is short
	for range rounds {
		virtual(t, func(t *testing.T) {
			n := newNetwork()
			l := open(t, slowClose{n, 50 * time.Millisecond}, dlock.Config{}) // just as long as an Unlock waits for its last answer
			var leases []*dlock.Lease
			for i := range keys {
				leases = append(leases, acquire(t, l, fmt.Sprint(i)))
			}
			f, _ := hang(t)
			n.on(f, opRelease)
			var wg sync.WaitGroup
			for _, x := range leases {
				wg.Go(func() { _ = x.Unlock(t.Context()) })
			}
			time.Sleep(time.Millisecond)
			err := l.Close()
			if want := fmt.Sprintf("the release of %d locks was not confirmed", keys); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Close: %v; want it to say that %s", err, want)
			}
			wg.Wait()
		})
	}
}

func TestCloseKnowsOfAnEarlierAttemptOfAHoldThatTheStoreCalledGone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		defer func() { _ = other.Close() }()
		l := open(t, &knowing{plain: plain{polled{n}}, other: other.store}, dlock.Config{DefaultTTL: 600 * time.Millisecond})
		x := acquire(t, l, "k") // by the second attempt; the first one is in the network
		n.snatch(t, "k")
		<-x.Done() // a renewal was told so
		err := l.Close()
		time.Sleep(200 * time.Millisecond)
		if other.holder(t, "k") != 0 {
			t.Errorf("Close answered %v, and the key is in the store", err)
		}
	})
}

func TestCloseKnowsOfAnAttemptThatOutlivedItsHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		defer func() { _ = other.Close() }()
		l := open(t, polled{n}, dlock.Config{DefaultTTL: time.Second})
		var calls atomic.Int32
		var late atomic.Bool
		n.on(func(_ context.Context, _ op, next func() error) error {
			if calls.Add(1) > 1 {
				return next()
			}
			time.Sleep(4 * time.Second)
			err := next()
			late.Store(err == nil)
			return err
		}, opAcquire)
		begin := time.Now()
		x := acquire(t, l, "k") // by the second attempt
		n.on(refuse, opRenew)
		<-x.Done()
		time.Sleep(time.Until(begin.Add(4500 * time.Millisecond))) // the hold has expired, and the first attempt has got the key
		if !late.Load() {
			t.Fatal("the first attempt did not get the key; the test shows nothing")
		}
		if err := l.Close(); err == nil && other.holder(t, "k") != 0 {
			t.Error("Close answered nil, and the key is in the store")
		}
	})
}

// midway is a prompt backend that panics when a request has reached the store.
type midway struct {
	*prompt
	panics atomic.Value // the op that does
}

func (m *midway) after(o op) {
	if m.panics.CompareAndSwap(o, op("")) {
		panic("a bug in the driver")
	}
}

func (m *midway) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	defer m.after(opAcquire)
	return m.prompt.Acquire(ctx, c)
}

func (m *midway) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	defer m.after(opWait)
	return m.prompt.Wait(ctx, c, queued)
}

func (m *midway) Release(ctx context.Context, c driver.Claim) error {
	m.after(opRelease)
	return m.prompt.Release(ctx, c)
}

func TestACallInWhichTheDriverPanickedIsCleanedUp(t *testing.T) {
	for o, f := range map[op]func(t *testing.T, l dlock.Locker){
		opAcquire: func(t *testing.T, l dlock.Locker) { _, _ = l.TryLock(t.Context(), "k") },
		opWait:    func(t *testing.T, l dlock.Locker) { _ = l.Lock(t.Context(), "k") },
		opRelease: func(t *testing.T, l dlock.Locker) { _ = acquire(t, l, "k").Unlock(t.Context()) },
	} {
		t.Run(string(o), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				m := &midway{prompt: &prompt{network: n}}
				m.panics.Store(o)
				l := open(t, m, dlock.Config{})
				func() {
					defer func() {
						if recover() == nil {
							t.Error("the panic did not reach the caller")
						}
					}()
					f(t, l)
				}()
				time.Sleep(100 * time.Millisecond)
				if n.holder(t, "k") != 0 {
					t.Error("the key is in the store, and nobody holds it")
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAGrantThatTheStoreHasForgottenEndsNoLaterHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{})
		var calls atomic.Int32
		n.on(func(_ context.Context, _ op, next func() error) error {
			if calls.Add(1) == 1 {
				time.Sleep(20 * time.Millisecond)
				return next()
			}
			err := next()
			time.Sleep(40 * time.Millisecond)
			return err
		}, opAcquire)
		var x, y *dlock.Lease
		var ok bool
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { x = acquire(t, l, "k") })
		time.Sleep(time.Millisecond)
		wg.Go(func() { y, ok, err = dlock.TryAcquire(t.Context(), l, "k") }) // has the key, and does not know yet
		time.Sleep(time.Millisecond)
		n.snatch(t, "k")
		wg.Wait()
		if y.Held() || ok || err != nil {
			t.Errorf("TryAcquire: %v, %v with a grant that the store has forgotten", ok, err)
		}
		if !x.Held() {
			t.Errorf("the hold of the later grant has ended: %v", x.Err())
		}
	})
}
