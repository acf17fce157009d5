package dlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
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

// reluctant is a network on which the next renewals of some keys take a while.
type reluctant struct {
	*hungKeys
	slow atomic.Int32
}

func (r *reluctant) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Key == "slow" && r.slow.Add(-1) >= 0 {
		time.Sleep(c.TTL / 5)
	}
	return r.hungKeys.Renew(ctx, c)
}

func TestAHoldWhoseRenewalWasOnceSlowIsRenewedAgainBesideHungOnes(t *testing.T) {
	const ttl = 10 * time.Second
	virtual(t, func(t *testing.T) {
		h := newHungKeys(t)
		h.on.Store(false)
		r := &reluctant{hungKeys: h}
		l := open(t, r, dlock.Config{DefaultTTL: ttl})
		for i := range 200 {
			acquire(t, l, fmt.Sprint("hung", i))
		}
		h.on.Store(true)
		time.Sleep(ttl)
		x := acquire(t, l, "slow")
		r.slow.Store(1)
		time.Sleep(5 * ttl)
		if !x.Held() {
			t.Errorf("lost although its store answers: %v", x.Err())
		}
	})
}

// lastGasp refuses renewals of keys that begin with "hung" until little of their TTL is left. Then they hang, whatever their context says.
type lastGasp struct {
	*hungKeys
	from time.Time
	sick atomic.Bool
}

func (g *lastGasp) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Key == "once" && g.sick.CompareAndSwap(true, false) || strings.HasPrefix(c.Key, "hung") && time.Since(g.from) < c.TTL*98/100 {
		return driver.Grant{}, errNetwork
	}
	return g.hungKeys.Renew(ctx, c)
}

func TestRenewalsThatHangAtTheEndGiveTheirPlacesBack(t *testing.T) {
	const ttl = 10 * time.Second
	virtual(t, func(t *testing.T) {
		g := &lastGasp{hungKeys: newHungKeys(t), from: time.Now()}
		g.on.Store(false)
		l := open(t, g, dlock.Config{DefaultTTL: ttl})
		for i := range 100 {
			acquire(t, l, fmt.Sprint("hung", i))
		}
		g.on.Store(true)
		time.Sleep(2 * ttl)
		x := acquire(t, l, "once")
		g.sick.Store(true)
		time.Sleep(5 * ttl)
		if !x.Held() {
			t.Errorf("lost although one renewal failed: %v", x.Err())
		}
	})
}

func TestACleanUpGoesOnAfterReleasesThatCallersMade(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: time.Minute})
		var lost, slow atomic.Bool
		lost.Store(true)
		n.on(func(ctx context.Context, o op, next func() error) error {
			switch {
			case o == opRelease && slow.Load():
				time.Sleep(700 * time.Millisecond)
				return errNetwork
			case o == opRelease:
				return errNetwork
			case o == opAcquire && lost.Load():
				return loseReply(ctx, o, next)
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

func TestTryLockIsNotFalseThoughTheCleanUpHasFoundNothingYet(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{})
		n.on(func(_ context.Context, _ op, next func() error) error {
			time.AfterFunc(100*time.Millisecond, func() { _ = next() })
			return errNetwork
		}, opAcquire)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		wantErr(t, "Lock", l.Lock(ctx, "k"), context.Canceled) // the token arrives when 100 ms have passed
		n.on(delay(100*time.Millisecond), opAcquire)
		time.Sleep(40 * time.Millisecond)
		begin := time.Now()
		ok, err := l.TryLock(t.Context(), "k")
		if !ok && err == nil {
			t.Errorf("TryLock: false without an error after %v, and nobody but a token of its own has the key", time.Since(begin))
		}
	})
}

func TestTryLockIsNotFalseWhenTheTokenWentWithoutAnAnswer(t *testing.T) {
	for name, arrives := range map[string]bool{"removed by a release that failed": true, "expired": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p, n := newPlain()
				l := open(t, p, dlock.Config{DefaultTTL: 200 * time.Millisecond})
				x := acquire(t, l, "k")
				began := time.Now()
				n.on(func(ctx context.Context, o op, next func() error) error {
					switch {
					case o == opAcquire:
						return slowReply(190*time.Millisecond)(ctx, o, next)
					case time.Since(began) == 0 && arrives: // later than it fails
						time.AfterFunc(20*time.Millisecond, func() { _ = next() })
						return errNetwork
					case time.Since(began) < 190*time.Millisecond:
						return errNetwork
					default:
						time.Sleep(15 * time.Millisecond)
						return next()
					}
				})
				wantErr(t, "Unlock", x.Unlock(t.Context()), errNetwork)
				ok, err := l.TryLock(t.Context(), "k")
				if !ok && err == nil {
					t.Error("TryLock: false without an error, and nobody has had the key but a lease that was unlocked before")
				}
			})
		})
	}
}
