package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// gathering is a driver that gathers requests and sends them a little later, also those that nobody waits for any more. As the contract wants it, a release
// is not answered "not the owner" while an acquire of its token may still be sent.
type gathering struct {
	*network
	mu      sync.Mutex
	pending map[string]int
}

var errPending = errors.New("an earlier request of this token is not answered")

func (*gathering) CallMode() driver.CallMode { return driver.Interruptible }

func (g *gathering) later(ctx context.Context, token string, send func() error) error {
	answer := make(chan error, 1)
	g.mu.Lock()
	g.pending[token]++
	g.mu.Unlock()
	go func() {
		time.Sleep(rand.N(200 * time.Millisecond))
		err := send()
		g.mu.Lock()
		g.pending[token]--
		g.mu.Unlock()
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gathering) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	var late driver.Grant
	err := g.later(ctx, c.Token, func() (err error) { late, err = g.network.Acquire(ctx, c); return })
	if err != nil {
		return driver.Grant{}, err
	}
	return late, nil
}

func (g *gathering) Wait(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, errors.ErrUnsupported
}

func (g *gathering) Release(ctx context.Context, c driver.Claim) error {
	err := g.network.Release(ctx, c)
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(err, driver.ErrNotOwner) && g.pending[c.Token] > 0 {
		return errPending
	}
	return err
}

func TestCloseUnderBusyGoroutinesLeavesNoKey(t *testing.T) {
	for round := range 50 {
		virtual(t, func(t *testing.T) {
			name := fmt.Sprint("busy", round)
			n, witness := named(t, name), named(t, name)
			g := &gathering{network: n, pending: map[string]int{}}
			l := open(t, g, dlock.Config{})
			var wg sync.WaitGroup
			for i := range 24 {
				wg.Go(func() {
					for {
						ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond+rand.N(200*time.Millisecond))
						err := dlock.Do(ctx, l, fmt.Sprint(i, "-", rand.N(4)), func(context.Context) error { return nil })
						cancel()
						if errors.Is(err, dlock.ErrClosed) {
							return
						}
					}
				})
			}
			time.Sleep(300*time.Millisecond + rand.N(200*time.Millisecond))
			within(t, 2*time.Second, "Close", func() {
				if err := l.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			wg.Wait()
			time.Sleep(time.Second)
			for info := range witness.store.List(t.Context(), "") {
				t.Errorf("Close returned nil and left %q", info.Key)
			}
		})
	}
}

func TestCloseSaysHowManyLocksItCouldNotConfirm(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, l dlock.Locker, n *network)
		want    int
	}{
		"a hold whose release fails": {func(t *testing.T, l dlock.Locker, n *network) {
			acquire(t, l, "k")
			n.on(refuse, opRelease)
		}, 1},
		"an acquire that has not returned": {func(t *testing.T, l dlock.Locker, n *network) {
			f, _ := hang(t)
			n.on(f, opAcquire)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			_, _ = l.TryLock(ctx, "k")
		}, 1},
		"an acquire that Close interrupts": {func(t *testing.T, l dlock.Locker, n *network) {
			f, _ := hang(t)
			n.on(f, opWait)
			go func() { _ = l.Lock(t.Context(), "k") }()
			time.Sleep(time.Second)
		}, 1},
		"an Unlock under way": {func(t *testing.T, l dlock.Locker, n *network) {
			x := acquire(t, l, "k")
			f, _ := hang(t)
			n.on(f, opRelease)
			go func() { _ = x.Unlock(t.Context()) }()
			time.Sleep(100 * time.Millisecond)
		}, 1},
		"a hold that was lost and not unlocked": {func(t *testing.T, l dlock.Locker, n *network) {
			x := acquire(t, l, "k")
			n.on(loseReply, opRenew)
			<-x.Done()
			n.on(refuse)
		}, 1},
		"a hold that the store has given away": {func(t *testing.T, l dlock.Locker, n *network) {
			acquire(t, l, "k")
			n.snatch(t, "k")
		}, 0},
		"a release that fails at first": {func(t *testing.T, l dlock.Locker, n *network) {
			acquire(t, l, "k")
			var tries atomic.Int32
			n.on(func(_ context.Context, _ op, next func() error) error {
				if tries.Add(1) < 5 {
					return errNetwork
				}
				return next()
			}, opRelease)
		}, 0},
		"a slow store": {func(t *testing.T, l dlock.Locker, n *network) {
			acquire(t, l, "k")
			n.on(slow(900*time.Millisecond), opRelease)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n, other := named(t, t.Name()), named(t, t.Name())
				l := open(t, n, dlock.Config{})
				open(t, other, dlock.Config{}) // keeps the store
				c.prepare(t, l, n)
				var err error
				within(t, 2*time.Second, "Close", func() { err = l.Close() })
				if c.want == 0 {
					if err != nil || other.holder(t, "k") != 0 {
						t.Errorf("Close: %v, fence %d; want nil and a free key", err, other.holder(t, "k"))
					}
					return
				}
				if want := fmt.Sprintf("the release of %d locks was not confirmed", c.want); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Close: %v; want it to say that %s", err, want)
				}
			})
		})
	}
}

func TestCloseReleasesALostHoldThatNobodyUnlocked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l := open(t, n, dlock.Config{})
		open(t, other, dlock.Config{}) // keeps the store
		x := acquire(t, l, "k")
		n.on(loseReply, opRenew) // applied, and nobody knows
		<-x.Done()
		n.heal()
		if n.holder(t, "k") == 0 {
			t.Fatal("the key is free; the test shows nothing")
		}
		if err := l.Close(); err != nil || other.holder(t, "k") != 0 {
			t.Errorf("Close: %v, fence %d; want nil and a free key", err, other.holder(t, "k"))
		}
	})
}

func TestCloseOfManyHoldsDoesNotTakeTurns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		for i := range 1000 {
			acquire(t, l, fmt.Sprint(i))
		}
		n.on(slow(20*time.Millisecond), opRelease)
		within(t, 500*time.Millisecond, "Close", func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
	})
}

// knowing is a network whose first acquire arrives late by another way. As the contract wants it, a release is not answered "not the owner" until then.
type knowing struct {
	plain
	other  driver.Backend
	sent   atomic.Bool
	flying atomic.Bool
}

func (k *knowing) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if k.sent.Swap(true) {
		return k.plain.Acquire(ctx, c)
	}
	k.flying.Store(true)
	time.AfterFunc(300*time.Millisecond, func() {
		_, _ = k.other.Acquire(context.Background(), c)
		k.flying.Store(false)
	})
	return driver.Grant{}, errNetwork
}

func (k *knowing) Release(ctx context.Context, c driver.Claim) error {
	err := k.plain.Release(ctx, c)
	if errors.Is(err, driver.ErrNotOwner) && k.flying.Load() {
		return errNetwork
	}
	return err
}

func TestCloseLooksAgainForWhatAnEarlierAttemptMayBring(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		defer func() { _ = other.Close() }()
		l := open(t, &knowing{plain: plain{polled{n}}, other: other.store}, dlock.Config{})
		lock(t, l, "k") // by the second attempt; the first one is in the network
		err := l.Close()
		time.Sleep(time.Second)
		if other.holder(t, "k") != 0 {
			t.Errorf("Close answered %v, and the key is in the store", err)
		}
	})
}
