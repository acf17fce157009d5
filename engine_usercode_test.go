package dlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestAnInnerContextEndsWithTheOuterHold(t *testing.T) {
	type wrap func(context.Context) (context.Context, context.CancelFunc)
	plain := func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }
	for name, between := range map[string]wrap{
		"nothing between": plain,
		"a value between": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithValue(ctx, someKey{}, 1), func() {}
		},
		"a timeout between": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
		"a cancel between": context.WithCancel,
		"another's between": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return watcher{ctx, func() bool { return true }}, func() {}
		},
		"two values between": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.WithValue(ctx, someKey{}, 1), time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, memory.New(), dlock.Config{})
			y := acquire(t, l, "inner")
			late, looks := 0, 0
			for range 15 {
				outer := acquire(t, l, "outer")
				ctx := outer.Context(t.Context())
				var inner []context.Context
				for i := range 200 {
					mid, cancel := between(ctx)
					defer cancel()
					inner = append(inner, y.Context(mid))
					if i%20 > 0 {
						_ = inner[i].Done()
					}
				}
				go func() { _ = outer.Unlock(t.Context()) }()
				<-outer.Done()
				for i, c := range inner {
					if looks++; c.Err() == nil {
						late++
						continue
					}
					wantErr(t, "the cause", context.Cause(c), dlock.ErrLockNotHeld)
					select {
					case <-c.Done():
					default:
						t.Fatalf("Err of context %d is not nil and Done is not closed", i)
					}
				}
			}
			if late > 0 {
				t.Errorf("in %d of %d looks the inner context's Err was nil after the outer hold was over", late, looks)
			}
		})
	}
}

type someKey struct{}

// busybody is a context that uses the Locker whenever it is asked something.
type busybody struct {
	context.Context
	use func()
}

func (b busybody) Value(key any) any           { b.use(); return b.Context.Value(key) }
func (b busybody) Err() error                  { b.use(); return b.Context.Err() }
func (b busybody) Done() <-chan struct{}       { b.use(); return b.Context.Done() }
func (b busybody) Deadline() (time.Time, bool) { b.use(); return b.Context.Deadline() }

// touchy is an error that uses the Locker when it is looked at.
type touchy struct{ use func() }

func (e touchy) Error() string { e.use(); return "touchy" }
func (e touchy) Is(error) bool { e.use(); return false }
func (e touchy) Unwrap() error { e.use(); return nil }

// The application's logger, meter and tracer, each of which calls use.

type handlerOf struct{ use func() }

func (h handlerOf) Enabled(context.Context, slog.Level) bool  { return true }
func (h handlerOf) Handle(context.Context, slog.Record) error { h.use(); return nil }
func (h handlerOf) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h handlerOf) WithGroup(string) slog.Handler             { return h }

type counterOf struct {
	metricnoop.Int64Counter
	use func()
}

func (c counterOf) Add(context.Context, int64, ...metric.AddOption) { c.use() }

type meterOf struct {
	metricnoop.Meter
	use func()
}

func (m meterOf) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return counterOf{use: m.use}, nil
}

type tracerOf struct {
	tracenoop.Tracer
	use func()
}

func (tr tracerOf) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	tr.use()
	return ctx, spanOf{use: tr.use}
}

type spanOf struct {
	tracenoop.Span
	use func()
}

func (s spanOf) End(...trace.SpanEndOption) { s.use() }

// reportTo makes a Locker report to components that all call use.
func reportTo(use func()) []dlock.Option {
	return []dlock.Option{dlock.WithLogger(slog.New(handlerOf{use})), dlock.WithMeter(meterOf{use: use}), dlock.WithTracer(tracerOf{use: use})}
}

// unlessStuck fails the test when f takes so long that it must be a deadlock.
func unlessStuck(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_, stacks := goroutines()
		t.Fatalf("%s: deadlock:\n%s", what, stacks)
	}
}

func TestTheApplicationsCodeMayUseTheLockerWhereverItIsCalled(t *testing.T) {
	for name, remote := range map[string]func(*network) driver.Backend{
		"one by one": func(n *network) driver.Backend { return n },
		"in batches": func(n *network) driver.Backend { return batched{n} },
		"prompt":     func(n *network) driver.Backend { return &prompt{network: n} },
		"in place":   func(n *network) driver.Backend { return n.store },
	} {
		t.Run(name, func(t *testing.T) {
			var l dlock.Locker
			var ready atomic.Bool
			use := func() {
				if !ready.Load() {
					return
				}
				if x, ok := dlock.LeaseOf(l, "watched"); ok {
					x.Held()
					x.ValidUntil()
				}
			}
			n := newNetwork()
			l = open(t, remote(n), dlock.Config{DefaultTTL: 100 * time.Millisecond, Reentrant: true, WaitTimeout: 50 * time.Millisecond}, reportTo(use)...)
			lock(t, l, "watched", dlock.WithTTL(time.Hour))
			ready.Store(true)
			unlessStuck(t, name, func() { useEverything(t, l, n, use) })
		})
	}
}

// useEverything calls all there is to call, on a store that works, fails and is closed.
func useEverything(t *testing.T, l dlock.Locker, n *network, use func()) {
	ctx := func() (context.Context, context.CancelFunc) {
		parent, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		return busybody{parent, use}, cancel
	}
	everything := func() {
		c, cancel := ctx()
		defer cancel()
		_ = l.Lock(c, "a")
		_, _ = l.TryLock(c, "a")
		_ = dlock.Ping(c, l)
		x, _ := dlock.Acquire(c, l, "b", dlock.WithoutRenewal())
		_ = x.Extend(c, 110*time.Millisecond)
		held := x.Context(c)
		_ = held.Done()
		_, _ = dlock.Acquire(held, l, "b")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				c, cancel := ctx()
				defer cancel()
				_ = dlock.Do(c, l, "b", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			})
		}
		wg.Wait()
		_ = l.Unlock(c, "a")
		_ = x.Unlock(c)
		after := x.Context(c) // of a lease that has ended
		_, _ = after.Err(), context.Cause(after)
		<-after.Done()
		f := mustForeign(c, l)
		_ = f.Context(c).Done()
		_ = f.Unlock(c)
		_ = f.Context(c).Err()
	}
	everything()
	n.on(func(context.Context, op, func() error) error { return touchy{use} })
	everything()
	x, _ := dlock.Acquire(t.Context(), l, "lost")
	time.Sleep(150 * time.Millisecond)
	_ = x.Unlock(t.Context())
	n.heal()
	everything()
	_ = l.Close()
	everything()
}

// mustForeign is a lease of a Locker from elsewhere.
func mustForeign(ctx context.Context, l dlock.Locker) *dlock.Lease {
	x, _ := dlock.Acquire(ctx, elsewhere{}, "foreign")
	return x
}

// elsewhere is a Locker that is no LeaseLocker.
type elsewhere struct{}

func (elsewhere) Lock(context.Context, string, ...dlock.LockOption) error { return nil }
func (elsewhere) TryLock(context.Context, string, ...dlock.LockOption) (bool, error) {
	return true, nil
}
func (elsewhere) Unlock(context.Context, string) error { return nil }
func (elsewhere) Close() error                         { return nil }

func TestTheParentOfAnEndedLeasesContextMayUseTheLocker(t *testing.T) {
	l := open(t, memory.New(), dlock.Config{})
	x, y := acquire(t, l, "x"), acquire(t, l, "y")
	_ = y.Unlock(t.Context())
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	unlessStuck(t, "Context of a lease that has ended", func() {
		ctx := y.Context(watcher{parent, x.Held})
		<-ctx.Done()
		wantErr(t, "the cause", context.Cause(ctx), dlock.ErrLockNotHeld)
	})
}

func TestComponentsThatPanicLeaveNoHold(t *testing.T) {
	for name, opt := range map[string]func(use func()) dlock.Option{
		"logger": func(use func()) dlock.Option { return dlock.WithLogger(slog.New(handlerOf{use})) },
		"meter":  func(use func()) dlock.Option { return dlock.WithMeter(meterOf{use: use}) },
		"tracer": func(use func()) dlock.Option { return dlock.WithTracer(tracerOf{use: use}) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				calm := true
				l := open(t, n, dlock.Config{}, opt(func() {
					if !calm {
						panic("not today")
					}
				}))
				for what, call := range map[string]func(){
					"Lock":    func() { _ = l.Lock(t.Context(), "k") },
					"TryLock": func() { _, _ = l.TryLock(t.Context(), "k") },
					"Acquire": func() { _, _ = dlock.Acquire(t.Context(), l, "k") },
					"Do":      func() { _ = dlock.Do(t.Context(), l, "k", func(context.Context) error { return nil }) },
				} {
					calm = false
					func() {
						defer func() {
							if recover() == nil {
								t.Errorf("%s did not panic", what)
							}
						}()
						call()
					}()
					calm = true
					if n.holder(t, "k") != 0 {
						t.Errorf("%s panicked, and the key is held", what)
					}
					if _, ok := dlock.LeaseOf(l, "k"); ok {
						t.Errorf("%s panicked, and the Locker holds by key", what)
					}
				}
				time.Sleep(time.Minute)
				if got := len(n.requests(opRenew)); got > 0 {
					t.Errorf("%d renewals of a hold that nobody has", got)
				}
				if got := dlock.Entries(l); got != 0 {
					t.Errorf("%d keys are still known", got)
				}
			})
		})
	}
}

func TestALoggerThatPanicsInTheBackgroundTakesNothingAlong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		var panics atomic.Bool
		l := open(t, n, dlock.Config{}, dlock.WithLogger(slog.New(handlerOf{func() {
			if panics.Load() {
				panic("not today")
			}
		}})))
		x := acquire(t, l, "k")
		panics.Store(true)
		n.on(refuse, opRenew)
		<-x.Done()
		time.Sleep(time.Second)
		panics.Store(false)
		n.heal()
		acquire(t, l, "other")
	})
}

func TestALoggerThatBlocksHoldsUpNeitherRenewalsNorDoneNorClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		var blocks atomic.Bool
		free := make(chan struct{})
		l := open(t, n, dlock.Config{}, dlock.WithLogger(slog.New(handlerOf{func() {
			if blocks.Load() {
				<-free
			}
		}})))
		var holds []*dlock.Lease
		for i := range 200 {
			holds = append(holds, acquire(t, l, fmt.Sprint(i)))
		}
		lost := acquire(t, l, "lost", dlock.WithoutRenewal())
		until := lost.ValidUntil()
		blocks.Store(true)
		n.on(refuse, opRenew)
		time.Sleep(5 * time.Second) // every renewal has failed, and was reported
		n.heal()
		<-lost.Done()
		if !time.Now().Equal(until) {
			t.Errorf("Done was closed %v after the deadline", time.Since(until))
		}
		within(t, 0, "Held", func() { lost.Held() })
		time.Sleep(time.Minute)
		for _, x := range holds {
			if !x.Held() {
				t.Fatalf("a hold was lost while the logger blocked: %v", x.Err())
			}
		}
		within(t, 2*time.Second, "Close", func() {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		close(free)
		synctest.Wait()
	})
}

func TestAContextLetsGoWhenNobodyAsksOrItsParentEnds(t *testing.T) {
	l := open(t, memory.New(), dlock.Config{})
	x := acquire(t, l, "k")
	grows := func(what string, f func()) {
		t.Helper()
		const times = 5000
		f()
		before := heap()
		for range times {
			f()
		}
		for end := time.Now().Add(5 * time.Second); x.Contexts() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if got := (heap() - before) / times; got > 16 {
			t.Errorf("%s keeps %d bytes, want none", what, got)
		}
	}
	long, cancel := context.WithCancel(t.Context())
	defer cancel()
	grows("a context of a long parent", func() { _, _ = dlock.Fence(x.Context(long)) })
	grows("a context whose Err was asked for", func() { _ = x.Context(context.Background()).Err() })
	grows("a context whose parent has ended", func() {
		parent, cancel := context.WithCancel(long)
		_ = x.Context(parent).Done()
		cancel()
	})
	if err := x.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestANilLeaseIsOneThatHasEnded(t *testing.T) {
	var x *dlock.Lease
	if x.Held() || x.Key() != "" || x.Fence() != 0 || !x.ValidUntil().IsZero() {
		t.Errorf("Held %v, Key %q, Fence %d, ValidUntil %v; want nothing", x.Held(), x.Key(), x.Fence(), x.ValidUntil())
	}
	wantErr(t, "Err", x.Err(), dlock.ErrLockNotHeld)
	wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrLockNotHeld)
	wantErr(t, "Extend", x.Extend(t.Context(), time.Minute), dlock.ErrLockNotHeld)
	select {
	case <-x.Done():
	default:
		t.Error("Done is open")
	}
	ctx := x.Context(t.Context())
	wantErr(t, "the context's Err", ctx.Err(), context.Canceled)
	wantErr(t, "the context's cause", context.Cause(ctx), dlock.ErrLockNotHeld)
	for name, call := range map[string]func(){
		"Context": func() { x.Context(nil) },                 //nolint:staticcheck // a nil ctx panics
		"Extend":  func() { _ = x.Extend(nil, time.Minute) }, //nolint:staticcheck // likewise
		"Unlock":  func() { _ = x.Unlock(nil) },              //nolint:staticcheck // likewise
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s with a nil ctx did not panic", name)
				}
			}()
			call()
		}()
	}
}

// rude is a context that cannot be watched.
type rude struct{ context.Context }

func (rude) Done() <-chan struct{} { return make(chan struct{}) }

func (rude) AfterFunc(func()) func() bool { panic("no") }

func TestAContextThatPanicsLeavesNoCallBehind(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &prompt{network: newNetwork()}
		l := open(t, p, dlock.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		func() {
			defer func() { _ = recover() }()
			_, _ = l.TryLock(rude{ctx}, "k")
		}()
		if n := dlock.Prompts(l); n > 0 {
			t.Errorf("%d calls are under way", n)
		}
		within(t, 0, "Close", func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}
