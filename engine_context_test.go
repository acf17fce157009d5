package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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

func TestCtxBoundsTheCallAndNotTheHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, newNetwork(), dlock.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		x, err := dlock.Acquire(ctx, l, "k")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Minute)
		if !x.Held() {
			t.Errorf("the hold ended with the ctx it was acquired with: %v", x.Err())
		}
	})
}

func TestCallsReturnSoonAfterCtxEnds(t *testing.T) {
	calls := map[string]func(ctx context.Context, l dlock.Locker, x *dlock.Lease) error{
		"Lock": func(ctx context.Context, l dlock.Locker, _ *dlock.Lease) error { return l.Lock(ctx, "k") },
		"TryLock": func(ctx context.Context, l dlock.Locker, _ *dlock.Lease) error {
			_, err := l.TryLock(ctx, "k")
			return err
		},
		"Acquire": func(ctx context.Context, l dlock.Locker, _ *dlock.Lease) error {
			_, err := dlock.Acquire(ctx, l, "k")
			return err
		},
		"Unlock": func(ctx context.Context, _ dlock.Locker, x *dlock.Lease) error { return x.Unlock(ctx) },
		"Extend": func(ctx context.Context, _ dlock.Locker, x *dlock.Lease) error { return x.Extend(ctx, time.Hour) },
		"Ping":   func(ctx context.Context, l dlock.Locker, _ *dlock.Lease) error { return dlock.Ping(ctx, l) },
		"Do": func(ctx context.Context, l dlock.Locker, _ *dlock.Lease) error {
			return dlock.Do(ctx, l, "k", func(context.Context) error { return nil })
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, n, dlock.Config{DefaultTTL: time.Hour})
				x := acquire(t, l, "held")
				f, _ := hang(t)
				n.on(f)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(200*time.Millisecond, cancel)
				within(t, 300*time.Millisecond, name, func() {
					wantErr(t, name, call(ctx, l, x), context.Canceled)
				})
			})
		})
	}
}

func TestACtxThatIsDoneSendsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.TryLock(ctx, "k")
		wantErr(t, "TryLock", err, context.Canceled)
		wantErr(t, "Lock", l.Lock(ctx, "k"), context.Canceled)
		_, err = dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.Canceled)
		wantErr(t, "Ping", dlock.Ping(ctx, l), context.Canceled)
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Error("a ctx that was done at entry says nothing about who has the key")
		}
		if got := n.requests(); len(got) > 0 {
			t.Errorf("%v was sent", got)
		}
	})
}

func TestTheCallsLeftBehindAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Second})
		x := acquire(t, l, "held", dlock.WithTTL(time.Hour))
		stuck, free := hang(t)
		n.on(stuck, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range dlock.MaxAbandoned {
			wg.Go(func() { _, _ = l.TryLock(ctx, fmt.Sprint(i)) })
		}
		wg.Wait()
		sent := len(n.requests(opAcquire))
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := l.TryLock(short, "one more")
		wantErr(t, "TryLock beyond the bound", err, context.DeadlineExceeded)
		if got := len(n.requests(opAcquire)); got != sent {
			t.Errorf("%d calls were sent beyond the bound", got-sent)
		}
		if !x.Held() {
			t.Error("a hold was lost because other calls hang")
		}
		n.heal()
		free()
		ok, err := l.TryLock(t.Context(), "one more")
		if !ok || err != nil {
			t.Errorf("TryLock after the calls returned: %v, %v", ok, err)
		}
	})
}

func TestALockCancelledAtAnyPointLeavesNothing(t *testing.T) {
	faults := map[string]fault{"healthy": slow(3 * time.Millisecond), "lost replies": loseReply, "slow replies": slowReply(5 * time.Millisecond)}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n, other := named(t, t.Name()), named(t, t.Name())
				l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
				for i := range 200 {
					n.on(f, opAcquire, opWait)
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(rand.N(8*time.Millisecond), cancel)
					var x *dlock.Lease
					within(t, 110*time.Millisecond, "Acquire", func() { x, _ = dlock.Acquire(ctx, l, "k") })
					if x != nil {
						_ = x.Unlock(t.Context())
					}
					cancel()
					n.heal()
					healed := time.Now()
					y := acquire(t, lo, "k")
					if took := time.Since(healed); took > time.Second {
						t.Fatalf("round %d: the key was free after %v, want within 1s", i, took)
					}
					_ = y.Unlock(t.Context())
				}
				time.Sleep(time.Minute)
				if got := dlock.Entries(l); got != 0 {
					t.Errorf("%d keys are still known", got)
				}
			})
		})
	}
}

// delayedAcquire answers with an error at once and lets the request reach the store d later.
func delayedAcquire(d time.Duration) fault {
	return func(_ context.Context, _ op, next func() error) error {
		time.AfterFunc(d, func() { _ = next() })
		return errNetwork
	}
}

func TestCleanUpRepeatsThoughTheTokenWasNotThere(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{DefaultTTL: 10 * time.Second})
		n.on(delayedAcquire(4*time.Second), opAcquire)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, errNetwork)
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(4600 * time.Millisecond)
		if n.holder(t, "k") != 0 {
			t.Error("an acquire that reached the store late was not taken back within half a second")
		}
		time.Sleep(time.Minute)
		last := begin
		for _, s := range n.requests(opRelease) {
			if gap := s.at.Sub(last); gap > 500*time.Millisecond {
				t.Errorf("%v between two releases, want at most 500ms", gap)
			}
			last = s.at
		}
		if end := last.Sub(begin); end > 10500*time.Millisecond {
			t.Errorf("releases went on for %v, want no longer than the TTL", end)
		}
	})
}

func TestCleanUpEndsWhenTheTokenWasRemoved(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(slowReply(time.Second), opWait)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		if n.holder(t, "k") != 0 {
			t.Error("the key is still held")
		}
		if got := len(n.requests(opRelease)); got > 12 {
			t.Errorf("%d releases were sent for a token that was removed", got)
		}
		if got := dlock.Entries(l); got != 0 {
			t.Errorf("%d keys are still known", got)
		}
	})
}

func TestALostReplyIsReadBack(t *testing.T) {
	once := func() fault {
		var once sync.Once
		return func(_ context.Context, _ op, next func() error) error {
			err := next()
			once.Do(func() { err = errNetwork })
			return err
		}
	}
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(once(), opAcquire)
		ok, err := l.TryLock(t.Context(), "try")
		if !ok || err != nil {
			t.Errorf("TryLock whose first reply was lost: %v, %v; want true", ok, err)
		}
		n.on(once(), opWait)
		if err := l.Lock(t.Context(), "lock"); err != nil {
			t.Errorf("Lock whose first reply was lost: %v", err)
		}
		fence := n.holder(t, "lock")
		x, _ := dlock.LeaseOf(l, "lock")
		if fence == 0 || fence != x.Fence() {
			t.Errorf("the store says fence %d, the lease %d", fence, x.Fence())
		}
		// The first request might arrive once more after the release, so the token is looked after.
		if err := l.Unlock(t.Context(), "lock"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if got := len(n.requests(opRelease)); got < 2 {
			t.Errorf("%d releases, want further ones for the acquire of unknown outcome", got)
		}
	})
}

func TestTryLockDuringCleanUpIsNeverFalse(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(func(ctx context.Context, o op, next func() error) error {
			if o == opWait {
				return loseReply(ctx, o, next)
			}
			return refuse(ctx, o, next)
		}, opWait, opRelease)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, errNetwork)
		if n.holder(t, "k") == 0 {
			t.Fatal("the key is free; the test shows nothing")
		}
		time.Sleep(50 * time.Millisecond)
		ok, err := l.TryLock(t.Context(), "k")
		if ok || err == nil {
			t.Errorf("TryLock while our own token could not be removed: %v, %v; want an error", ok, err)
		}
		wantErr(t, "TryLock", err, errNetwork)
		n.heal()
		ok, err = l.TryLock(t.Context(), "k")
		if !ok || err != nil {
			t.Errorf("TryLock after the network healed: %v, %v; want true", ok, err)
		}
	})
}

func TestUnknownIsNotBusy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		ok, err := l.TryLock(t.Context(), "k")
		if ok || err != nil {
			t.Errorf("TryLock of another's lock: %v, %v; want false", ok, err)
		}
		n.on(refuse)
		ok, err = l.TryLock(t.Context(), "k")
		if ok || !errors.Is(err, errNetwork) {
			t.Errorf("TryLock during an outage: %v, %v; want the network's error", ok, err)
		}
		n.on(loseReply)
		ok, err = l.TryLock(t.Context(), "free")
		if ok || !errors.Is(err, errNetwork) {
			t.Errorf("TryLock whose replies are lost: %v, %v; want the network's error", ok, err)
		}
		if errors.Is(err, dlock.ErrNotAcquired) || errors.Is(err, driver.ErrHeld) {
			t.Errorf("%v says that another owner has the key", err)
		}
		if got := len(n.requests(opAcquire)); got != 5 {
			t.Errorf("%d attempts, want one, and two each where the outcome was unknown", got)
		}
		n.heal()
		synctest.Wait()
	})
}

func TestBusyAndSlowCanBeToldApart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, poll := range []bool{true, false} {
			n, other := named(t, fmt.Sprint(poll)), named(t, fmt.Sprint(poll))
			var b driver.Backend = n
			if poll {
				b = polled{n}
			}
			l, lo := open(t, b, dlock.Config{}), open(t, other, dlock.Config{})
			lock(t, lo, "k")
			try := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err := l.Lock(ctx, "k")
				wantErr(t, "Lock", err, context.DeadlineExceeded)
				return err
			}
			wantErr(t, "busy", try(), dlock.ErrNotAcquired)
			for name, f := range map[string]fault{"refuse": refuse, "slow": slow(time.Hour), "mute": func(context.Context, op, func() error) error { time.Sleep(time.Hour); return errNetwork }} {
				n.on(f, opAcquire, opWait)
				if err := try(); errors.Is(err, dlock.ErrNotAcquired) {
					t.Errorf("poll %v, %s: %v matches ErrNotAcquired", poll, name, err)
				}
			}
			n.heal()
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestThoseBehindKnowWhatTheFirstOneHeard(t *testing.T) {
	type way struct {
		name  string
		cfg   dlock.Config
		first func(context.Context, dlock.Locker) error
		next  func(context.Context, dlock.Locker) error
	}
	leased := func(ctx context.Context, l dlock.Locker) error { _, err := dlock.Acquire(ctx, l, "k"); return err }
	byKey := func(ctx context.Context, l dlock.Locker) error { return l.Lock(ctx, "k") }
	for _, w := range []way{
		{"leases", dlock.Config{}, leased, leased},
		{"reentrant", dlock.Config{Reentrant: true}, byKey, byKey},
	} {
		for name, f := range map[string]fault{"busy": nil, "down": refuse, "slow": slow(time.Hour)} {
			t.Run(w.name+" "+name, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					n, other := named(t, t.Name()), named(t, t.Name())
					l, lo := open(t, n, w.cfg), open(t, other, dlock.Config{})
					lock(t, lo, "k")
					n.on(f, opWait)
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					go func() { _ = w.first(ctx, l) }()
					time.Sleep(time.Second)
					short, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					err := w.next(short, l)
					wantErr(t, "the next one", err, context.DeadlineExceeded)
					if got, want := errors.Is(err, dlock.ErrNotAcquired), name == "busy"; got != want {
						t.Errorf("%v: matches ErrNotAcquired: %v, want %v", err, got, want)
					}
					if got, want := errors.Is(err, errNetwork), name == "down"; got != want {
						t.Errorf("%v: matches the network's error: %v, want %v", err, got, want)
					}
				})
			})
		}
	}
}

func TestBeyondTheBoundCallsWaitUnderTheirCtx(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		stuck, free := hang(t)
		n.on(stuck, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range dlock.MaxAbandoned {
			wg.Go(func() { _, _ = l.TryLock(ctx, fmt.Sprint(i)) })
		}
		wg.Wait()
		n.heal()
		// ctx ends
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		within(t, 300*time.Millisecond, "TryLock with a short ctx", func() {
			_, err := l.TryLock(short, "short")
			wantErr(t, "TryLock", err, context.DeadlineExceeded)
		})
		// no ctx to end
		within(t, 11*time.Second, "TryLock without a deadline", func() {
			if ok, err := l.TryLock(t.Context(), "none"); ok || err == nil {
				t.Errorf("TryLock: %v, %v; want an error", ok, err)
			}
		})
		// a slot
		time.AfterFunc(time.Second, free)
		within(t, time.Second, "TryLock when a slot becomes free", func() {
			if ok, err := l.TryLock(t.Context(), "slot"); !ok || err != nil {
				t.Errorf("TryLock: %v, %v; want true", ok, err)
			}
		})
		time.Sleep(time.Minute)
		if got := n.releases("short") + n.releases("none"); got > 0 {
			t.Errorf("%d releases for acquires that were never sent", got)
		}
	})
}

type ctxKey struct{}

func TestTheDriverSeesTheCallersContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "trace"), time.Second)
		defer cancel()
		want, _ := ctx.Deadline()
		n.on(func(ctx context.Context, o op, next func() error) error {
			if got := ctx.Value(ctxKey{}); got != "trace" {
				t.Errorf("%s: the caller's value is %v", o, got)
			}
			if got, ok := ctx.Deadline(); !ok || !got.Equal(want) {
				t.Errorf("%s: deadline %v, want the caller's, %v", o, got, want)
			}
			derived, cancel := context.WithCancel(ctx) // as drivers do
			defer cancel()
			<-derived.Done()
			return derived.Err()
		}, opWait, opAcquire)
		within(t, time.Second, "both calls", func() {
			var wg sync.WaitGroup
			wg.Go(func() { wantErr(t, "Lock", l.Lock(ctx, "lock"), context.DeadlineExceeded) })
			wg.Go(func() { _, err := l.TryLock(ctx, "try"); wantErr(t, "TryLock", err, context.DeadlineExceeded) })
			wg.Wait()
		})

		n = newNetwork()
		x := acquire(t, open(t, n, dlock.Config{}), "k")
		n.on(func(ctx context.Context, _ op, next func() error) error {
			if got, ok := ctx.Deadline(); ctx.Err() != nil || !ok || time.Until(got) != time.Second {
				t.Errorf("a release with a dead ctx has %v left, %v; want a second of its own", time.Until(got), ctx.Err())
			}
			return next()
		}, opRelease)
		if err := x.Unlock(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestAnAcquireThatDoesNotAnswerIsTriedAgain(t *testing.T) {
	for ttl, limit := range map[time.Duration]time.Duration{time.Second: time.Second, time.Minute: 5 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, polled{n}, dlock.Config{DefaultTTL: ttl})
				n.on(func(ctx context.Context, o op, next func() error) error {
					if len(n.requests(opAcquire)) == 1 {
						return mute(ctx, o, next)
					}
					return next()
				}, opAcquire)
				within(t, limit+200*time.Millisecond, "Lock", func() { lock(t, l, "k") })
			})
		})
	}
}

func TestAGrantForACallerWhoHasGoneIsTakenBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(slowReply(30*time.Millisecond), opWait)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		if n.holder(t, "k") != 0 {
			t.Error("the key is still held")
		}
	})
}

func TestCleanUpGoesOnWhileTheAcquireHangsLongerThanTheTTL(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{DefaultTTL: time.Minute})
		wire := make(chan struct{})
		n.on(func(_ context.Context, _ op, next func() error) error {
			<-wire
			return next()
		}, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(5 * time.Minute)
		close(wire)
		synctest.Wait()
		time.Sleep(time.Second) // much shorter than the TTL
		if n.holder(t, "k") != 0 {
			t.Error("an acquire that hung still holds the key a second after it was applied")
		}
	})
}

func TestCleanUpCountsFromTheLateAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{DefaultTTL: 10 * time.Second})
		wire := make(chan struct{})
		n.on(func(_ context.Context, _ op, next func() error) error {
			<-wire
			time.AfterFunc(3*time.Second, func() { _ = next() }) // the answer is an error, the request is still on its way
			return errNetwork
		}, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		close(wire)
		time.Sleep(4 * time.Second)
		if n.holder(t, "k") != 0 {
			t.Error("the key is held a second after the late request was applied")
		}
	})
}

// The driver knows why there was no answer until ctx ended.
func TestTheCauseOfSilenceIsToldWhenCtxEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{})
		n.on(func(ctx context.Context, _ op, _ func() error) error {
			<-ctx.Done()
			return fmt.Errorf("store: %w: %w", ctx.Err(), errNetwork)
		}, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		wantErr(t, "Acquire", err, errNetwork)
	})
}

func TestALateHeldEndsTheCleanUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, polled{n}, dlock.Config{DefaultTTL: time.Hour}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		n.on(slowReply(time.Second), opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		if got := len(n.requests(opRelease)); got > 12 {
			t.Errorf("%d releases for a token that the store refused", got)
		}
	})
}

// lateWait queues late and answers like a Wait whose ctx ended.
type lateWait struct{ *network }

func (b lateWait) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	<-ctx.Done()
	time.Sleep(10 * time.Second)
	late, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	g, err := b.store.Wait(late, c, queued)
	return g, errors.Join(err, driver.ErrHeld)
}

func TestALateHeldOfAWaitIsInTheQueue(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, lateWait{n}, dlock.Config{}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k")
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(11 * time.Second)
		info, err := other.store.Inspect(t.Context(), "k")
		if err != nil || len(info.Waiters) != 0 {
			t.Errorf("waiters %v, %v; want none", info.Waiters, err)
		}
	})
}

func TestOneRemovalDoesNotEndTheCleanUpOfTwoRequests(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 10 * time.Second})
		n.on(func(_ context.Context, _ op, next func() error) error {
			time.AfterFunc(time.Duration(len(n.requests(opAcquire)))*2*time.Second, func() { _ = next() })
			return errNetwork
		}, opAcquire)
		_, err := l.TryLock(t.Context(), "k") // which asks twice
		wantErr(t, "TryLock", err, errNetwork)
		time.Sleep(4600 * time.Millisecond)
		if n.holder(t, "k") != 0 {
			t.Error("the request that arrived second was not taken back within half a second")
		}
	})
}

func TestCleanUpsAreSomeAtATime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(refuse)
		for i := range 200 {
			_, err := l.TryLock(t.Context(), fmt.Sprint(i))
			wantErr(t, "TryLock", err, errNetwork)
		}
		var together atomic.Int32
		n.on(most(100*time.Millisecond, &together), opRelease)
		time.Sleep(5 * time.Second)
		if got := together.Load(); got < 2 || got > 64 {
			t.Errorf("up to %d releases at the same time, want some but at most 64", got)
		}
	})
}

func TestWhatTheDriverDoesNotSupportNeedsNoCleanUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{})
		x := acquire(t, l, "k")
		if err := x.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if got := len(n.requests(opRelease)); got != 1 {
			t.Errorf("%d releases, want the one of Unlock", got)
		}
	})
}

func TestWhatTryLockRemovedIsNotCleanedUpAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Hour})
		n.on(func(ctx context.Context, o op, next func() error) error {
			if o == opWait {
				return slowReply(20*time.Millisecond)(ctx, o, next)
			}
			return refuse(ctx, o, next)
		}, opWait, opRelease)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := dlock.Acquire(ctx, l, "k") // granted, and not wanted any more
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		time.Sleep(10 * time.Second)
		n.heal()
		if ok, err := l.TryLock(t.Context(), "k"); !ok || err != nil {
			t.Fatalf("TryLock: %v, %v; want true", ok, err)
		}
		sent := n.releases("k")
		time.Sleep(time.Minute)
		if got := n.releases("k"); got > sent+1 {
			t.Errorf("%d releases of a token that was removed", got-sent)
		}
	})
}

func TestTryLockDoesNotReadBackWhenCtxHasEnded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(mute, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.TryLock(ctx, "k")
		wantErr(t, "TryLock", err, context.DeadlineExceeded)
		if got := len(n.requests(opAcquire)); got != 1 {
			t.Errorf("%d attempts, want no further one when ctx has ended", got)
		}
	})
}

func TestTroubleAfterBusyIsTrouble(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, polled{n}, dlock.Config{}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		time.AfterFunc(time.Second, func() { n.on(refuse) })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := l.Lock(ctx, "k")
		wantErr(t, "Lock", err, errNetwork)
		wantErr(t, "Lock", err, context.DeadlineExceeded)
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v: the store has not said for four seconds who has the key", err)
		}
	})
}

func TestTheQueueBehindAnOutageIsNotToldBusy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, polled{n}, dlock.Config{}), open(t, other, dlock.Config{})
		theirs := acquire(t, lo, "k")
		var head *dlock.Lease
		var wg sync.WaitGroup
		n.on(refuse)
		wg.Go(func() { head = acquire(t, l, "k") })
		synctest.Wait()
		second := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := dlock.Acquire(ctx, l, "k")
			wantErr(t, "the second", err, context.DeadlineExceeded)
			return err
		}
		err := second()
		wantErr(t, "during the outage", err, errNetwork)
		if errors.Is(err, dlock.ErrNotAcquired) {
			t.Errorf("%v: an outage is not busy", err)
		}
		n.heal()
		err = second()
		wantErr(t, "when the store says that another owner has it", err, dlock.ErrNotAcquired)
		if errors.Is(err, errNetwork) {
			t.Errorf("%v: the outage is over", err)
		}
		n.on(refuse)
		time.Sleep(5 * time.Second)
		n.heal()
		_ = theirs.Unlock(t.Context())
		wg.Wait()
		err = second()
		wantErr(t, "when one of us has it", err, dlock.ErrNotAcquired)
		if errors.Is(err, errNetwork) {
			t.Errorf("%v: the outage is over", err)
		}
		_ = head.Unlock(t.Context())
	})
}

func TestOfACleanUpWhoseReleasesHangTwoAreOut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Minute})
		n.on(refuse)
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, "TryLock", err, errNetwork)
		var mu sync.Mutex
		out, most, returns := 0, 0, make(chan struct{})
		var returned time.Time
		n.on(func(context.Context, op, func() error) error {
			mu.Lock()
			out++
			most = max(most, out)
			mu.Unlock()
			<-returns
			mu.Lock()
			defer mu.Unlock()
			out--
			returned = time.Now()
			return errNetwork
		}, opRelease)
		t.Cleanup(func() { close(returns) })
		time.Sleep(10 * time.Second)
		for range 5 {
			before := len(n.requests(opRelease))
			returns <- struct{}{}
			time.Sleep(2 * time.Second)
			mu.Lock()
			list := n.requests(opRelease)
			if len(list) == before {
				t.Fatal("no release was sent though one had returned")
			}
			if gap := list[before].at.Sub(returned); gap > 500*time.Millisecond {
				t.Errorf("the next release was sent %v after one had returned, want at most 500ms", gap)
			}
			if out != 2 || most != 2 {
				t.Errorf("%d releases are out, and there were up to %d; want 2", out, most)
			}
			mu.Unlock()
			time.Sleep(8 * time.Second)
		}
	})
}

func TestWhatADriverDerivesEndsWithTheCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		var derived context.Context
		n.on(func(ctx context.Context, _ op, next func() error) error {
			var cancel context.CancelFunc
			derived, cancel = context.WithCancel(ctx)
			t.Cleanup(cancel) // too late: a driver that forgets
			return next()
		}, opAcquire)
		if _, err := l.TryLock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if derived.Err() == nil {
			t.Error("a context that the driver derived outlives the call")
		}
	})
}

func TestCloseWakesWhoeverWaitsForASlot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		stuck, free := hang(t)
		n.on(stuck, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range dlock.MaxAbandoned {
			wg.Go(func() { _, _ = l.TryLock(ctx, fmt.Sprint(i)) })
		}
		wg.Wait()
		wg.Go(func() {
			_, err := l.TryLock(t.Context(), "one more")
			wantErr(t, "TryLock", err, dlock.ErrClosed)
		})
		time.Sleep(time.Second)
		go func() { _ = l.Close() }()
		within(t, 100*time.Millisecond, "the wait for the calls", wg.Wait)
		free()
		time.Sleep(time.Minute)
	})
}

func TestAnInPlaceStoreIsWaitedForWithoutAPause(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := memory.New()
		l := open(t, b, dlock.Config{RetryInterval: time.Hour})
		theirs := driver.Claim{Key: "k", Token: "0123456789abcdef0123456789abcdef", TTL: time.Minute}
		if _, err := b.Acquire(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		locked := make(chan error, 1)
		go func() { locked <- l.Lock(t.Context(), "k") }()
		synctest.Wait()
		if err := b.Release(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		within(t, 0, "Lock", func() {
			if err := <-locked; err != nil {
				t.Error(err)
			}
		})
	})
}

func TestADriverThatEndsItsGoroutineHasFailed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		n.on(func(context.Context, op, func() error) error { runtime.Goexit(); return nil }, opAcquire)
		within(t, 0, "TryLock", func() {
			if ok, err := l.TryLock(t.Context(), "k"); ok || err == nil {
				t.Errorf("TryLock: %v, %v; want an error", ok, err)
			}
		})
		n.heal()
		for i := range 10 {
			within(t, 0, "TryLock", func() {
				if ok, err := l.TryLock(t.Context(), fmt.Sprint(i)); !ok || err != nil {
					t.Errorf("TryLock of another key afterwards: %v, %v; want true", ok, err)
				}
			})
		}
	})
}

func TestFewGoroutinesAreKeptForFurtherCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		before, _ := goroutines()
		n.on(slow(10*time.Millisecond), opAcquire)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { _, _ = l.TryLock(t.Context(), fmt.Sprint(i)) })
		}
		wg.Wait()
		synctest.Wait()
		if got, _ := goroutines(); got > before+10 {
			t.Errorf("%d goroutines are kept, want at most 8", got-before)
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if got, _ := goroutines(); got > before+2 {
			t.Errorf("%d goroutines are kept after a second, want none", got-before)
		}
	})
}

func TestThoseBehindAWaitAreToldOfCloseAndNotOfBusy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		lock(t, lo, "k")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := dlock.Acquire(t.Context(), l, "k")
				wantErr(t, "Acquire", err, dlock.ErrClosed)
				if errors.Is(err, dlock.ErrNotAcquired) || strings.Count(err.Error(), "dlock: ") > 1 {
					t.Errorf("%v; want that the Locker is closed, and no more", err)
				}
			})
		}
		time.Sleep(time.Second)
		_ = l.Close()
		wg.Wait()
	})
}
