package redis_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// hooks are the functions of an application that the client library calls. Each calls block first, and looks at no context.
func hooks(addr string, block func()) map[string]*goredis.Options {
	return map[string]*goredis.Options{
		"CredentialsProvider": {CredentialsProvider: func() (string, string) { block(); return "", "" }},
		"CredentialsProviderContext": {CredentialsProviderContext: func(context.Context) (string, string, error) {
			block()
			return "", "", nil
		}},
		"StreamingCredentialsProvider": {StreamingCredentialsProvider: streaming(block)},
		"OnConnect":                    {OnConnect: func(context.Context, *goredis.Conn) error { block(); return nil }},
		"Dialer": {Dialer: func(context.Context, string, string) (net.Conn, error) {
			block()
			return net.Dial("tcp", addr)
		}},
		"Limiter": {Limiter: limiter(block)},
	}
}

// streaming is a source of credentials.
type streaming func()

func (s streaming) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	s()
	return auth.NewBasicCredentials("default", ""), func() error { s(); return nil }, nil
}

// limiter allows everything.
type limiter func()

func (l limiter) Allow() error       { l(); return nil }
func (l limiter) ReportResult(error) { l() }

// G3
func TestACallEndsWithItsContextWhileAHookOfTheApplicationBlocks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	for name, o := range hooks(s.Addr, func() { <-released }) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Addr = s.Addr
			client := goredis.NewClient(o)
			b := redisdriver.New(client).(*redisdriver.Backend)
			if b.CallMode() != driver.Interruptible {
				t.Error("the backend does not say that it is Interruptible")
			}
			late := faulttest.Lateness(t)
			c := faulttest.Claim("g3", time.Minute)
			calls := map[string]func(ctx context.Context) error{
				"Acquire": func(ctx context.Context) error { _, err := b.Acquire(ctx, c); return err },
				"Wait":    func(ctx context.Context) error { _, err := b.Wait(ctx, c, func() {}); return err },
				"Renew":   func(ctx context.Context) error { _, err := b.Renew(ctx, c); return err },
				"Release": func(ctx context.Context) error { return b.Release(ctx, c) },
				"Ping":    b.Ping,
			}
			for what, call := range calls {
				ended(t, what, call, late)
			}
			l, err := dlock.New(b, &dlock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ended(t, "Lock", func(ctx context.Context) error { return l.Lock(ctx, "g3") }, late)
			ended(t, "TryLock", func(ctx context.Context) error { _, err := l.TryLock(ctx, "g3"); return err }, late)
			began := time.Now()
			_ = l.Close()
			if took := time.Since(began); took > 2*time.Second+late() {
				t.Errorf("Close took %v, want at most 2s", took)
			}
		})
	}
}

// ended makes a call whose context ends after a while: by a deadline, and by being cancelled.
func ended(t *testing.T, what string, call func(context.Context) error, late func() time.Duration) {
	t.Helper()
	const patience = 30 * time.Millisecond
	withDeadline, cancel1 := context.WithTimeout(t.Context(), patience)
	defer cancel1()
	cancelled, cancel2 := context.WithCancel(t.Context())
	defer cancel2()
	for _, ctx := range []context.Context{withDeadline, cancelled} {
		began := time.Now()
		time.AfterFunc(patience, cancel2)
		result := make(chan error, 1)
		go func() { result <- call(ctx) }()
		select {
		case err := <-result:
			if took := time.Since(began); took > patience+100*time.Millisecond+late() {
				t.Errorf("%s returned %v after its context had ended", what, took-patience)
			}
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s = %v, want the error of its context", what, err)
			}
		case <-time.After(3 * time.Second):
			t.Errorf("%s has not returned 3s after its context has ended", what)
		}
	}
}

// G3
func TestAHookThatBlocksOnceKeepsNobodyElseWaiting(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, name := range []string{"CredentialsProvider", "CredentialsProviderContext", "StreamingCredentialsProvider", "OnConnect", "Dialer"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			stuck := make(chan struct{})
			o := hooks(s.Addr, func() {
				if calls.Add(1) == 1 {
					<-stuck
				}
			})[name]
			o.Addr = s.Addr
			b := onClient(t, goredis.NewClient(o))
			var first sync.WaitGroup
			t.Cleanup(first.Wait)
			t.Cleanup(func() { close(stuck) })
			first.Go(func() { _, _ = b.Acquire(limited(t, 20*time.Second), faulttest.Claim(name+"-first", time.Minute)) })
			faulttest.Eventually(t, patience, "the hook is called", func() bool { return calls.Load() > 0 })
			late := faulttest.Lateness(t)
			began := time.Now()
			for i := range 8 {
				c := faulttest.Claim(name+string(rune('a'+i)), time.Minute)
				if _, err := b.Acquire(limited(t, 20*time.Second), c); err != nil {
					t.Fatalf("Acquire beside a hook that blocks: %v", err)
				}
			}
			if took := time.Since(began); took > time.Second+late() {
				t.Errorf("8 acquires beside a hook that blocks took %v, want at most 1s", took)
			}
		})
	}
}
