package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// freedSoon sees that a token that was left behind in n is taken out of the store, and not taken for another owner's.
func freedSoon(t *testing.T, n *network, l dlock.Locker) {
	t.Helper()
	n.heal()
	time.Sleep(600 * time.Millisecond)
	if n.holder(t, "k") != 0 {
		t.Errorf("the key is still held after %d releases", n.releases("k"))
	}
	if ok, err := l.TryLock(t.Context(), "k"); !ok && err == nil {
		t.Error("TryLock says that another owner has the key")
	}
}

func TestAReleaseThatFailsAfterALongWaitIsRepeated(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a, b := named(t, t.Name()), named(t, t.Name())
		la, lb := open(t, a, dlock.Config{}), open(t, b, dlock.Config{})
		x := acquire(t, la, "k")
		got := make(chan *dlock.Lease, 1)
		go func() { got <- acquire(t, lb, "k") }()
		time.Sleep(15 * time.Second) // longer than the TTL
		if err := x.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		y := <-got
		time.Sleep(time.Second)
		b.on(refuse, opRelease)
		wantErr(t, "Unlock", y.Unlock(t.Context()), errNetwork)
		freedSoon(t, b, lb)
	})
}

func TestAReleaseIsRepeatedForAsLongAsTheStoreKeepsTheToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, coarse{n}, dlock.Config{MaxRetries: 1})
		x := acquire(t, l, "k", dlock.WithTTL(100*time.Millisecond), dlock.WithoutRenewal()) // for a second
		time.Sleep(200 * time.Millisecond)
		n.on(refuse, opRelease)
		wantErr(t, "Unlock", x.Unlock(t.Context()), errNetwork)
		freedSoon(t, n, l)
	})
}

// stray leaves a token behind in the store.
func stray(t *testing.T, n *network, l dlock.Locker) {
	t.Helper()
	x := acquire(t, l, "k")
	n.on(refuse, opRelease)
	wantErr(t, "Unlock", x.Unlock(t.Context()), errNetwork)
}

func TestTryLockThatSweepsATokenOfItsOwnHasOneHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		stray(t, n, l)
		var acquires atomic.Int32
		n.on(func(_ context.Context, o op, next func() error) error {
			if o == opAcquire && acquires.Add(1) == 1 || o == opRelease && acquires.Load() < 2 {
				return errNetwork
			}
			return next()
		}, opRelease, opAcquire)
		y, ok, err := dlock.TryAcquire(t.Context(), l, "k")
		if !ok || err != nil {
			t.Fatalf("TryAcquire = %v, %v; want the lock", ok, err)
		}
		n.heal()
		if err := y.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		renewals := len(n.requests(opRenew))
		time.Sleep(20 * time.Second)
		if more := len(n.requests(opRenew)) - renewals; more > 0 {
			t.Errorf("%d renewals after Unlock, want none", more)
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestLockDoesNotWaitLongForATokenOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		stray(t, n, l)
		time.Sleep(5 * time.Second) // the pauses between releases have become long
		n.heal()
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := l.Lock(ctx, "k"); err != nil {
			t.Errorf("Lock: %v", err)
		}
	})
}

func TestAHoldThatTheStoreForgotEndsWhenAnotherOfItsLockerGetsTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{})
		if _, err := n.store.Acquire(t.Context(), driver.Claim{Key: "k", Token: "0123456789abcdef0123456789abcdef", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		got := make(chan *dlock.Lease, 1)
		go func() { got <- acquire(t, l, "k") }()
		time.Sleep(time.Second + 3*time.Millisecond)
		n.snatch(t, "k")
		y, ok, err := dlock.TryAcquire(t.Context(), l, "k", dlock.WithoutRenewal()) // while the other one pauses between two attempts
		if !ok || err != nil {
			t.Fatalf("TryAcquire = %v, %v; want the lock", ok, err)
		}
		time.Sleep(2 * time.Second)
		n.snatch(t, "k") // the store forgets
		if z := <-got; !z.Held() || y.Held() || !errors.Is(y.Err(), dlock.ErrOwnershipLost) {
			t.Errorf("the later one is held: %v; the earlier one: %v (%v)", z.Held(), y.Held(), y.Err())
		}
	})
}

func TestExtendNoticesAnotherGrant(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := &regranted{network: newNetwork()}
		l := open(t, b, dlock.Config{})
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		b.again.Store(true)
		wantErr(t, "Extend", x.Extend(t.Context(), 10*time.Second), dlock.ErrOwnershipLost)
		if x.Held() {
			t.Error("held after it")
		}
	})
}

// sharded answers nothing about most keys.
type sharded struct{ *network }

func (s sharded) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Key != "good" {
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	}
	return s.network.Renew(ctx, c)
}

func TestLongHoldsThatCannotBeRenewedDoNotKeepOthersFromIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, sharded{newNetwork()}, dlock.Config{})
		for i := range 64 {
			acquire(t, l, fmt.Sprint("bad", i), dlock.WithTTL(time.Hour))
		}
		time.Sleep(21 * time.Minute)
		x := acquire(t, l, "good")
		time.Sleep(20 * time.Second)
		if !x.Held() {
			t.Errorf("lost: %v", x.Err())
		}
	})
}

// hasty says that its grants count from the future.
type hasty struct{ *network }

func (h hasty) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := h.network.Acquire(ctx, c)
	g.Start = time.Now().Add(time.Hour)
	return g, err
}

func TestNoGrantCountsFromTheFuture(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, hasty{newNetwork()}, dlock.Config{MaxRetries: 1})
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		time.Sleep(11 * time.Second)
		if x.Held() {
			t.Error("held beyond its TTL")
		}
	})
}
