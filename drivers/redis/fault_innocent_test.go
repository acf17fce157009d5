package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// bareConn is a connection whose socket cannot be looked at, as with TLS.
type bareConn struct{ net.Conn }

// reporting is a limiter that calls a function when the answer has come and the call has not returned yet.
type reporting struct{ f atomic.Pointer[func()] }

func (*reporting) Allow() error { return nil }

func (l *reporting) ReportResult(error) {
	if f := l.f.Swap(nil); f != nil {
		(*f)()
	}
}

// TestACallThatEndsWithItsAnswerSpoilsNothingForTheNext has the context of a call end when its answer is there already, and the connection still the call's own.
func TestACallThatEndsWithItsAnswerSpoilsNothingForTheNext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"a socket": func(conn net.Conn) net.Conn { return conn },
		"TLS":      func(conn net.Conn) net.Conn { return bareConn{conn} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := &reporting{}
			var dials atomic.Int64
			b := onClient(t, goredis.NewClient(&goredis.Options{Limiter: limiter, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials.Add(1)
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
				if err != nil {
					return nil, err
				}
				return wrap(conn), nil
			}}))
			if err := b.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := dials.Load()
			for range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				end := func() {
					cancel()
					time.Sleep(5 * time.Millisecond) // for the connection to be cut
				}
				limiter.f.Store(&end)
				_ = b.Ping(ctx)
				if err := b.Ping(t.Context()); err != nil {
					t.Errorf("the next call = %v, want that it has nothing to do with the one before", err)
				}
			}
			if n := dials.Load() - before; n > 0 {
				t.Errorf("%d connections were made anew, want none: their answers had come", n)
			}
		})
	}
}

// TestAScriptThatIsForgottenLeavesNoDoubtAboutItsCall has a call end between the answer that its script is not known and the sending of the script.
func TestAScriptThatIsForgottenLeavesNoDoubtAboutItsCall(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	b := backend(t, p.Addr)
	var warm sync.WaitGroup
	for i := range 40 {
		warm.Go(func() { claimed(t, b, fmt.Sprint("warm", i)) })
	}
	warm.Wait()
	m := s.monitor(t)
	flushed, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(flushed)
		for {
			select {
			case <-stop:
				return
			default:
				_ = s.admin.ScriptFlush(t.Context()).Err()
			}
		}
	}()
	p.Set(faultproxy.Rules{DelayDown: 60 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var claims []driver.Claim
	var wg sync.WaitGroup
	for i := range 20 {
		c := faulttest.Claim(fmt.Sprint("k", i), 30*time.Second)
		claims = append(claims, c)
		wg.Go(func() {
			call := ctx
			if i%2 == 0 {
				call = t.Context()
			}
			_, _ = b.Acquire(call, c)
		})
	}
	faulttest.Eventually(t, patience, "all requests are with the server", func() bool { return m.count(`"evalsha"`) == len(claims) })
	cancel()
	wg.Wait()
	close(stop)
	<-flushed
	p.Heal()
	for _, c := range claims {
		faulttest.Eventually(t, 2*time.Second, "the release is answered", func() bool {
			err := b.Release(t.Context(), c)
			return err == nil || errors.Is(err, driver.ErrNotOwner)
		})
	}
}

// panicking is a limiter that does not like to be told.
type panicking struct{}

func (panicking) Allow() error       { return nil }
func (panicking) ReportResult(error) { panic("boom") }

// TestAHookThatPanicsIsAnError has functions of the application panic, which run on goroutines of the driver's.
func TestAHookThatPanicsIsAnError(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	hostile := hooks(s.Addr, func() { panic("boom") })
	hostile["ReportResult"] = &goredis.Options{Limiter: panicking{}}
	for name, o := range hostile {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Addr = s.Addr
			b := onClient(t, goredis.NewClient(o))
			c := faulttest.Claim("k", time.Minute)
			for what, call := range map[string]func() error{
				"Acquire": func() error { _, err := b.Acquire(t.Context(), c); return err },
				"Ping":    func() error { return b.Ping(t.Context()) },
			} {
				if err := call(); name != "ReportResult" && (err == nil || !strings.Contains(err.Error(), "boom")) {
					t.Errorf("%s = %v, want the panic of %s as an error", what, err, name)
				}
			}
		})
	}
}

// TestAFreeLockIsHadThoughItsFenceIsOfAnotherType has no holder, and so no value to read before.
func TestAFreeLockIsHadThoughItsFenceIsOfAnotherType(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := backend(t, s.Addr)
	s.do(t, "sadd", companion("k", "f"), "x")
	s.do(t, "pexpire", companion("k", "f"), 30_000)
	first := faulttest.Claim("k", 30*time.Second)
	g := acquire(t, b, first)
	release(t, b, first)
	if next := acquire(t, b, faulttest.Claim("k", 30*time.Second)); next.Fence < g.Fence+uint64(g.Fences) {
		t.Errorf("the fences are %d and %d, want that they rise by %d at least", g.Fence, next.Fence, g.Fences)
	}
}

// TestADialerOfASubscriptionMayBlockOrPanic has a subscription be made that nobody can end but the application.
func TestADialerOfASubscriptionMayBlockOrPanic(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	for name, dial := range map[string]func(){"blocks": func() { <-stuck }, "panics": func() { panic("boom") }} {
		t.Run(name, func(t *testing.T) {
			var bad atomic.Bool
			client := goredis.NewClient(&goredis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if bad.Load() {
					dial()
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
			}})
			t.Cleanup(func() { _ = client.Close() })
			l, err := dlock.New(redisdriver.New(client), &dlock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			warm(t, l)
			bad.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := l.Lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock = %v, want the error of its context", err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("Close = %v, want that it does not wait for the application", err)
			}
		})
	}
}
