package dlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestThoseWhoGiveUpDoNotStandInLineForTheEngine(t *testing.T) {
	const waiters = 10_000
	l := open(t, memory.New(), dlock.Config{})
	acquire(t, l, "k", dlock.WithTTL(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var back atomic.Int32
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			_, err := dlock.Acquire(ctx, l, "k")
			back.Add(1)
			if !errors.Is(err, context.Canceled) || !errors.Is(err, dlock.ErrNotAcquired) {
				t.Errorf("Acquire: %v", err)
			}
		})
	}
	for dlock.Waiting(l, "k") < waiters {
		time.Sleep(10 * time.Millisecond)
	}
	free := dlock.Occupy(l)
	cancel()
	// One of them takes all off the queue, for which it needs the engine.
	for end := time.Now().Add(30 * time.Second); back.Load() < waiters-1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d of %d returned while the engine was busy, want all but one", back.Load(), waiters)
			break
		}
	}
	free()
	wg.Wait()
	if got := dlock.Waiting(l, "k"); got != 0 {
		t.Errorf("%d are still in the queue", got)
	}
}

func TestLeavingTheQueueKeepsItsOrderAndItsAccounts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		first := acquire(t, l, "k")
		var order []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			wg.Go(func() {
				x, err := dlock.Acquire(ctx, l, "k")
				if err != nil {
					wantErr(t, "Acquire", err, context.Canceled)
					wantErr(t, "Acquire", err, dlock.ErrNotAcquired)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				_ = x.Unlock(t.Context())
			})
			synctest.Wait()
			if i%3 != 0 {
				time.AfterFunc(time.Second, cancel)
			}
		}
		time.Sleep(2 * time.Second)
		_ = first.Unlock(t.Context())
		wg.Wait()
		for n, i := range order {
			if i != 3*n {
				t.Fatalf("the turn came in the order %v, want every third", order)
			}
		}
		if len(order) != 34 || dlock.Entries(l) != 0 {
			t.Errorf("%d got the key, %d keys are known; want 34 and 0", len(order), dlock.Entries(l))
		}
		within(t, 0, "Close", func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// latency is a store on which every request takes a round trip. They arrive in the order in which they were sent, also those whose caller has gone.
func latency(d time.Duration) fault {
	var mu sync.Mutex
	last := make(chan struct{})
	close(last)
	return func(ctx context.Context, _ op, next func() error) error {
		answer, applied := make(chan error, 1), make(chan struct{})
		mu.Lock()
		before := last
		last = applied
		mu.Unlock()
		go func() {
			time.Sleep(d / 2)
			<-before
			err := next()
			close(applied)
			time.Sleep(d / 2)
			answer <- err
		}()
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// detached is a network whose requests go on when their context has ended.
type detached struct{ *network }

func (d detached) Acquire(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	var late driver.Grant
	err = d.send(ctx, opAcquire, c, func() (err error) { late, err = d.store.Acquire(context.WithoutCancel(ctx), c); return })
	if err == nil {
		g = late
	}
	return g, err
}

func (d detached) Wait(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, errors.ErrUnsupported
}

func TestCallersWithLittlePatienceCostFewRequests(t *testing.T) {
	const trip = 10 * time.Millisecond
	for name, patience := range map[string]time.Duration{"half a round trip": trip / 2, "one": trip, "two": 2 * trip} {
		for _, way := range []string{"Lock", "TryLock"} {
			t.Run(way+" "+name, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					n := newNetwork()
					n.on(latency(trip))
					l := open(t, detached{n}, dlock.Config{})
					var attempts atomic.Int32
					var wg sync.WaitGroup
					end := time.Now().Add(time.Second)
					for i := range 32 {
						wg.Go(func() {
							time.Sleep(time.Duration(i) * time.Millisecond / 4)
							for time.Now().Before(end) {
								ctx, cancel := context.WithTimeout(t.Context(), patience+time.Duration(i%5)*time.Millisecond)
								attempts.Add(1)
								var x *dlock.Lease
								if way == "Lock" {
									x, _ = dlock.Acquire(ctx, l, "k")
								} else {
									x, _, _ = dlock.TryAcquire(ctx, l, "k")
								}
								if x != nil {
									_ = x.Unlock(t.Context())
								}
								cancel()
							}
						})
					}
					wg.Wait()
					sent := len(n.requests())
					t.Logf("%d requests for %d attempts", sent, attempts.Load())
					if sent > 4*int(attempts.Load()) {
						t.Errorf("%d requests for %d attempts, want at most 4 for each", sent, attempts.Load())
					}
					gone(t, n, "k", time.Second)
					if err := l.Close(); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second) // what is on its way arrives
				})
			})
		}
	}
}

// told is a driver that suspects losses.
type told struct {
	*network
	suspect func(string)
}

func (b *told) WatchLosses(suspect func(string)) { b.suspect = suspect }

func TestASuspicionIsLookedIntoAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := &told{network: newNetwork()}
		l := open(t, b, dlock.Config{Prefix: "app:"})
		x, other := acquire(t, l, "k"), acquire(t, l, "other")
		still := acquire(t, l, "still", dlock.WithoutRenewal())
		time.Sleep(time.Second)
		b.suspect("app:nobody's")
		b.suspect("k")
		b.suspect("app:still")
		b.suspect("app:other")
		time.Sleep(time.Millisecond)
		if got := b.requests(opRenew); len(got) != 1 || got[0].key != "app:other" {
			t.Errorf("renewals %v, want one of the key that is held", got)
		}
		if !other.Held() || !still.Held() {
			t.Error("a hold ended by a suspicion alone")
		}
		b.snatch(t, "app:k")
		b.suspect("app:k")
		time.Sleep(time.Millisecond)
		if x.Held() {
			t.Error("the hold is gone, and its holder does not know")
		}
		wantErr(t, "Err", x.Err(), driver.ErrNotOwner)
		_ = l.Close()
		b.suspect("app:other")
		synctest.Wait()
	})
}

func TestASuspicionDuringARenewalCausesOneMoreAfterIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := &told{network: newNetwork()}
		l := open(t, b, dlock.Config{})
		x := acquire(t, l, "k")
		b.on(func(_ context.Context, _ op, next func() error) error {
			err := next() // answered before the loss
			time.Sleep(100 * time.Millisecond)
			return err
		}, opRenew)
		b.suspect("k")
		time.Sleep(50 * time.Millisecond)
		b.snatch(t, "k")
		for range 10 {
			b.suspect("k")
		}
		time.Sleep(55 * time.Millisecond)
		if got := len(b.requests(opRenew)); got != 2 {
			t.Errorf("%d renewals, want the one under way and one more", got)
		}
		time.Sleep(100 * time.Millisecond)
		if x.Held() {
			t.Error("the loss was not noticed")
		}
	})
}

func TestSuspicionsWithoutEndCauseRenewalsAtABoundedRate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := &told{network: newNetwork()}
		l := open(t, b, dlock.Config{})
		x := acquire(t, l, "k")
		for range 10_000 {
			b.suspect("k")
			time.Sleep(100 * time.Microsecond)
		}
		if got := len(b.requests(opRenew)); got < 50 || got > 201 {
			t.Errorf("%d renewals in a second of suspicions, want some, and at most one every 5 ms", got)
		}
		if !x.Held() {
			t.Error(x.Err())
		}
	})
}

func TestSuspectNeverWaitsForTheEngine(t *testing.T) {
	b := &told{network: newNetwork()}
	l := open(t, b, dlock.Config{})
	acquire(t, l, "k")
	free := dlock.Occupy(l)
	unlessStuck(t, "suspect while the engine is busy", func() { b.suspect("k") })
	free()
}
