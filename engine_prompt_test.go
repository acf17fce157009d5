package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// prompt is a network whose calls return when their context ends. What they have sent stays on its way.
type prompt struct {
	*network
	on string // the goroutine of the last call
}

func (*prompt) CallMode() driver.CallMode { return driver.Interruptible }

func (p *prompt) call(ctx context.Context, f func() error) error {
	p.mu.Lock()
	p.on = goroutine()
	p.mu.Unlock()
	answer := make(chan error, 1)
	go func() { answer <- f() }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *prompt) Acquire(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	var late driver.Grant
	if err = p.call(ctx, func() (err error) { late, err = p.network.Acquire(ctx, c); return }); err == nil {
		g = late
	}
	return g, err
}

func (p *prompt) Wait(ctx context.Context, c driver.Claim, queued func()) (g driver.Grant, err error) {
	var late driver.Grant
	if err = p.call(ctx, func() (err error) { late, err = p.network.Wait(ctx, c, queued); return }); err == nil {
		g = late
	}
	return g, err
}

func (p *prompt) Release(ctx context.Context, c driver.Claim) error {
	return p.call(ctx, func() error { return p.network.Release(ctx, c) })
}

func (p *prompt) Ping(ctx context.Context) error {
	return p.call(ctx, func() error { return p.network.Ping(ctx) })
}

// goroutine names the goroutine that it is called on.
func goroutine() string {
	var text [64]byte
	name, _, _ := bytes.Cut(text[:runtime.Stack(text[:], false)], []byte(" ["))
	return string(name)
}

// gone fails unless key is free before d has passed.
func gone(t *testing.T, n *network, key string, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(time.Millisecond) {
		info, err := n.store.Inspect(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if info.Fence == 0 && len(info.Waiters) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q is still in the store: %+v", key, info)
		}
	}
}

func TestAPromptBackendIsCalledWhereItsCallerIs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &prompt{network: newNetwork()}
		l := open(t, p, dlock.Config{})
		here := func(what string) {
			t.Helper()
			if p.on != goroutine() {
				t.Errorf("%s was made on %s, want %s", what, p.on, goroutine())
			}
		}
		x := acquire(t, l, "k")
		here("Wait")
		if err := x.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		here("Release")
		if ok, err := l.TryLock(t.Context(), "k"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		here("Acquire")
		if err := dlock.Ping(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		here("Ping")
	})
}

// stuck is a request that never reaches the store.
func stuck(ctx context.Context, _ op, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestPromptCallsEndWithTheirContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &prompt{network: newNetwork()}
		l := open(t, p, dlock.Config{})
		held := acquire(t, l, "held")
		p.network.on(stuck)
		calls := map[string]func(ctx context.Context) error{
			"Lock":    func(ctx context.Context) error { return l.Lock(ctx, "k") },
			"TryLock": func(ctx context.Context) error { _, err := l.TryLock(ctx, "k"); return err },
			"Ping":    func(ctx context.Context) error { return dlock.Ping(ctx, l) },
			"Unlock":  func(ctx context.Context) error { return held.Unlock(ctx) },
		}
		for name, call := range calls {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			within(t, 120*time.Millisecond, name, func() {
				if err := call(ctx); err == nil {
					t.Errorf("%s returned nil while nothing went through", name)
				} else if name != "Unlock" {
					wantErr(t, name, err, context.Canceled)
				}
			})
		}
		p.heal()
		gone(t, p.network, "held", time.Second)
	})
}

func TestAPromptCallThatLandsLateIsCleanedUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for after := range 40 {
			p := &prompt{network: newNetwork()}
			l := open(t, p, dlock.Config{})
			p.network.on(func(_ context.Context, _ op, next func() error) error {
				time.Sleep(10 * time.Millisecond) // on the way there
				err := next()
				time.Sleep(10 * time.Millisecond) // and back
				return err
			}, opAcquire, opWait)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
			if err := l.Lock(ctx, "k"); err == nil {
				if err := l.Unlock(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			gone(t, p.network, "k", time.Second)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestTheTimeLimitEndsAPromptCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &prompt{network: newNetwork()}
		l := open(t, p, dlock.Config{})
		x := acquire(t, l, "held")
		p.network.on(stuck)
		within(t, 12*time.Second, "TryLock", func() {
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, context.DeadlineExceeded)
		})
		within(t, 2*time.Second, "Unlock", func() {
			if err := x.Unlock(t.Context()); err == nil {
				t.Error("Unlock returned nil while nothing went through")
			}
		})
	})
}

func TestUnlockWithACtxThatIsDoneIsSentByAPromptBackendToo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &prompt{network: newNetwork()}
		l := open(t, p, dlock.Config{})
		x := acquire(t, l, "k")
		done, cancel := context.WithCancel(t.Context())
		cancel()
		p.network.on(func(_ context.Context, _ op, next func() error) error {
			time.Sleep(5 * time.Millisecond)
			return next()
		}, opRelease)
		if err := x.Unlock(done); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		gone(t, p.network, "k", 0)
	})
}

func TestCloseEndsPromptCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &prompt{network: newNetwork()}
		l := open(t, p, dlock.Config{})
		held := acquire(t, l, "held")
		p.network.on(stuck)
		var wg sync.WaitGroup
		var closed time.Time
		for name, call := range map[string]func() error{
			"Lock":    func() error { return l.Lock(context.Background(), "a") },
			"TryLock": func() error { _, err := l.TryLock(context.Background(), "b"); return err },
			"Unlock":  func() error { return held.Unlock(context.Background()) },
		} {
			wg.Go(func() {
				err := call()
				if took := time.Since(closed); name != "Unlock" && took > 10*time.Millisecond {
					t.Errorf("%s returned %v after Close had begun", name, took)
				}
				if name == "Unlock" && err == nil || name != "Unlock" && !errors.Is(err, dlock.ErrClosed) {
					t.Errorf("%s returned %v", name, err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		closed = time.Now()
		within(t, 2*time.Second, "Close", func() { _ = l.Close() })
		wg.Wait()
		sent := len(p.requests())
		time.Sleep(time.Minute)
		if n := len(p.requests()); n != sent {
			t.Errorf("%d requests were sent after Close", n-sent)
		}
	})
}

func TestAPanicOfAPromptBackendReachesTheCallerAndLeavesTheLockerUsable(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := &panicking{prompt: &prompt{network: newNetwork()}, panics: true}
		l := open(t, p, dlock.Config{})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not reach the caller")
				}
			}()
			_, _ = l.TryLock(t.Context(), "k")
		}()
		p.panics = false
		lock(t, l, "k")
		time.Sleep(time.Millisecond) // the clean-up after the panic has sent its release
		if n := dlock.Prompts(l); n != 0 {
			t.Errorf("%d calls are said to be under way, want none", n)
		}
		within(t, time.Second, "Close", func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

type panicking struct {
	*prompt
	panics bool
}

func (p *panicking) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if p.panics {
		panic("a bug in the driver")
	}
	return p.prompt.Acquire(ctx, c)
}
