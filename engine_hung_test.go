package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// hungKeys is a network on which the calls for keys that begin with "hung" never return, whatever their context says.
type hungKeys struct {
	*network
	on    atomic.Bool
	never chan struct{}
	out   atomic.Int32
}

func newHungKeys(t *testing.T) *hungKeys {
	h := &hungKeys{network: newNetwork(), never: make(chan struct{})}
	h.on.Store(true)
	t.Cleanup(func() { close(h.never) })
	return h
}

func (h *hungKeys) hang(key string) error {
	if h.on.Load() && strings.HasPrefix(key, "hung") {
		h.out.Add(1)
		<-h.never
		return errNetwork
	}
	return nil
}

func (h *hungKeys) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := h.hang(c.Key); err != nil {
		return driver.Grant{}, err
	}
	return h.network.Acquire(ctx, c)
}

func (h *hungKeys) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	if err := h.hang(c.Key); err != nil {
		return driver.Grant{}, err
	}
	return h.network.Wait(ctx, c, queued)
}

func (h *hungKeys) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := h.hang(c.Key); err != nil {
		return driver.Grant{}, err
	}
	return h.network.Renew(ctx, c)
}

func (h *hungKeys) Release(ctx context.Context, c driver.Claim) error {
	if err := h.hang(c.Key); err != nil {
		return err
	}
	return h.network.Release(ctx, c)
}

func TestKeysWhoseCallsHangForEverLeaveTheOthersAlone(t *testing.T) {
	for _, keys := range []int{1, 13, 100} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				b := newHungKeys(t)
				l := open(t, b, dlock.Config{DefaultTTL: 10 * time.Second})
				stop, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for i := range keys {
					wg.Go(func() {
						for stop.Err() == nil { // somebody who does not give up
							ctx, cancel := context.WithTimeout(stop, 500*time.Millisecond)
							if i%2 == 0 {
								_, _ = l.TryLock(ctx, fmt.Sprint("hung", i))
							} else {
								_ = l.Lock(ctx, fmt.Sprint("hung", i))
							}
							cancel()
							time.Sleep(10 * time.Second)
						}
					})
				}
				held := acquire(t, l, "held")
				for range min(3600, 12000/keys) {
					within(t, 0, "TryLock and Unlock of another key", func() {
						if ok, err := l.TryLock(t.Context(), "k"); !ok || err != nil {
							t.Fatalf("TryLock: %v, %v; want true", ok, err)
						}
						if err := l.Unlock(t.Context(), "k"); err != nil {
							t.Fatalf("Unlock: %v", err)
						}
					})
					time.Sleep(time.Second)
				}
				if !held.Held() {
					t.Errorf("a hold was lost: %v", held.Err())
				}
				if got := b.out.Load(); int(got) > 8*keys {
					t.Errorf("%d calls of %d keys hang, want at most 8 of each", got, keys)
				}
				// The clean-up of other keys has its places, too.
				b.network.on(loseReply, opAcquire)
				_, err := l.TryLock(t.Context(), "k")
				wantErr(t, "TryLock", err, errNetwork)
				b.heal()
				gone(t, b.network, "k", time.Second)
				cancel()
				wg.Wait()
			})
		})
	}
}

func TestHoldsWhoseRenewalsHangLeaveTheOthersTheirPlaces(t *testing.T) {
	for name, slow := range map[string]bool{"for ever": false, "until their context ends": true} {
		for _, ttl := range []time.Duration{time.Second, 10 * time.Second} {
			t.Run(fmt.Sprint(name, " ", ttl), func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					h := newHungKeys(t)
					h.on.Store(false)
					var b driver.Backend = h
					if slow {
						b = mutedRenewals{h.network}
					}
					l := open(t, b, dlock.Config{DefaultTTL: ttl})
					for i := range 1000 {
						acquire(t, l, fmt.Sprint("hung", i))
					}
					var healthy []*dlock.Lease
					for i := range 100 {
						healthy = append(healthy, acquire(t, l, fmt.Sprint("k", i)))
					}
					h.network.on(delay(ttl/100), opRenew)
					h.on.Store(true)
					time.Sleep(5 * ttl)
					lost := 0
					for _, x := range healthy {
						if !x.Held() {
							lost++
						}
					}
					if lost > 0 {
						t.Errorf("%d of 100 healthy holds were lost beside 1,000 hung ones", lost)
					}
				})
			})
		}
	}
}

// delay lets a request take d.
func delay(d time.Duration) fault {
	return func(_ context.Context, _ op, next func() error) error {
		time.Sleep(d)
		return next()
	}
}

// mutedRenewals does not answer renewals of keys that begin with "hung".
type mutedRenewals struct{ *network }

func (m mutedRenewals) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if strings.HasPrefix(c.Key, "hung") {
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	}
	return m.network.Renew(ctx, c)
}

// redial is a store that was away and is back: a renewal sent since takes a while, for a connection has to be made, and one sent before is stuck.
type redial struct {
	*network
	back  atomic.Value // a time.Time
	takes time.Duration
	sent  atomic.Int32
}

func (r *redial) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	r.sent.Add(1)
	if time.Now().Before(r.back.Load().(time.Time)) {
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	}
	select {
	case <-time.After(r.takes):
		return r.network.Renew(ctx, c)
	case <-ctx.Done():
		return driver.Grant{}, ctx.Err()
	}
}

func TestAHoldSurvivesAReconnectThatTakesItsTime(t *testing.T) {
	const ttl = 10 * time.Second
	for range 20 { // at different moments of the renewals
		virtual(t, func(t *testing.T) {
			b := &redial{network: newNetwork(), takes: 1900 * time.Millisecond}
			b.back.Store(time.Time{})
			l := open(t, b, dlock.Config{DefaultTTL: ttl})
			x := acquire(t, l, "k")
			b.back.Store(x.ValidUntil().Add(-3900 * time.Millisecond))
			time.Sleep(2 * ttl)
			if !x.Held() {
				t.Errorf("lost although the store was back for 3.9 s before the deadline: %v", x.Err())
			}
			if got := b.sent.Load(); got > 30 {
				t.Errorf("%d renewals were sent", got)
			}
		})
	}
}

func TestAnOlderRenewalCountsFromItsOwnSending(t *testing.T) {
	const ttl = 12 * time.Second
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: ttl})
		x := acquire(t, l, "k")
		var tries atomic.Int32
		n.on(func(ctx context.Context, _ op, next func() error) error {
			if tries.Add(1) == 1 {
				time.Sleep(ttl / 4) // the second one is out by then
				return next()
			}
			<-ctx.Done()
			return ctx.Err()
		}, opRenew)
		for len(n.requests(opRenew)) < 2 {
			time.Sleep(time.Millisecond)
		}
		sent := n.requests(opRenew)[0].at
		time.Sleep(ttl/4 - time.Since(sent) + time.Millisecond)
		if got, want := x.ValidUntil().Sub(sent), ttl-ttl/100; got != want {
			t.Errorf("the deadline is %v after the first renewal was sent, want %v", got, want)
		}
		n.heal()
	})
}

func TestAnOlderRenewalDoesNotMoveTheDeadlineBack(t *testing.T) {
	const ttl = 12 * time.Second
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: ttl})
		x := acquire(t, l, "k")
		var tries atomic.Int32
		n.on(func(_ context.Context, _ op, next func() error) error {
			if tries.Add(1) == 1 {
				time.Sleep(ttl / 4)
			}
			return next()
		}, opRenew)
		time.Sleep(ttl/3 + ttl/4 + time.Second)
		sent := n.requests(opRenew)
		if len(sent) < 2 {
			t.Fatalf("%d renewals were sent", len(sent))
		}
		if got, want := x.ValidUntil(), sent[1].at.Add(ttl-ttl/100); got.Before(want) {
			t.Errorf("the deadline is %v before that of the newer renewal", want.Sub(got))
		}
	})
}

func TestWhatTheStoreSaidIsNotReplacedByATimeout(t *testing.T) {
	denied := errors.New("permission denied")
	virtual(t, func(t *testing.T) {
		var j journal
		n := newNetwork()
		l := open(t, n, dlock.Config{}, dlock.WithLogger(j.logger()))
		x := acquire(t, l, "k")
		var tries atomic.Int32
		fails := func(ctx context.Context, _ op, _ func() error) error {
			if tries.Add(1) <= 2 {
				return denied
			}
			<-ctx.Done()
			return ctx.Err()
		}
		n.on(fails, opRenew)
		<-x.Done()
		wantErr(t, "the loss", x.Err(), denied)
		wantErr(t, "the loss", x.Err(), dlock.ErrOwnershipLost)
		time.Sleep(time.Millisecond)
		warnings := 0
		for _, line := range j.lines(t) {
			if line["msg"] == "watchdog renew failed" {
				warnings++
			}
		}
		if warnings < 1 || warnings > 5 {
			t.Errorf("%d warnings of one outage, want 1 to 5", warnings)
		}

		tries.Store(0)
		n.on(fails, opAcquire, opWait)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		l2 := open(t, polled{n}, dlock.Config{})
		err := l2.Lock(ctx, "other")
		wantErr(t, "Lock", err, denied)
		wantErr(t, "Lock", err, context.DeadlineExceeded)

		n.heal()
		quiet := newNetwork() // where nothing is cleaned up at the same time
		y := acquire(t, open(t, quiet, dlock.Config{}), "third")
		tries.Store(1)
		quiet.on(fails, opRelease)
		wantErr(t, "Unlock", y.Unlock(t.Context()), denied)
		quiet.heal()
	})
}
