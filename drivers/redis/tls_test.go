package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// TestACallEndsWithItsContextWhileTLSIsNotAnswered has a peer that takes the connection and says nothing.
func TestACallEndsWithItsContextWhileTLSIsNotAnswered(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, addr string) *redisdriver.Backend{
		"a DSN": func(t *testing.T, addr string) *redisdriver.Backend {
			return openBackend(t, "rediss://"+addr+"?insecure=true")
		},
		"a client of the application's": func(t *testing.T, addr string) *redisdriver.Backend {
			return onClient(t, goredis.NewClient(&goredis.Options{Addr: addr, TLSConfig: &tls.Config{InsecureSkipVerify: true}}))
		},
		"a dialer that knows no contexts": func(t *testing.T, addr string) *redisdriver.Backend {
			return onClient(t, goredis.NewClient(&goredis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
				return tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, &tls.Config{InsecureSkipVerify: true})
			}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late := faulttest.Lateness(t)
			b := open(t, listenSilently(t).addr)
			if b.CallMode() != driver.Interruptible {
				t.Error("the backend does not say that it is Interruptible")
			}
			c := claimFor("k", 1, time.Minute)
			for what, call := range map[string]func(ctx context.Context) error{
				"Acquire": func(ctx context.Context) error { _, err := b.Acquire(ctx, c); return err },
				"Wait":    func(ctx context.Context) error { _, err := b.Wait(ctx, c, func() {}); return err },
				"Release": func(ctx context.Context) error { return b.Release(ctx, c) },
				"Ping":    b.Ping,
			} {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan time.Time, 1)
				time.AfterFunc(100*time.Millisecond, func() {
					ended <- time.Now()
					cancel()
				})
				err := call(ctx)
				if took := time.Since(<-ended); took > 200*time.Millisecond+late() {
					t.Errorf("%s returned %v after its context had ended", what, took)
				}
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s = %v, want the error of its context", what, err)
				}
			}
		})
	}
}

// TestCloseDoesNotWaitForTLS closes while a connection is being made that a request or a subscription waits for.
func TestCloseDoesNotWaitForTLS(t *testing.T) {
	t.Parallel()
	_, certs, addr := tlsServer(t, "no")
	for name, c := range map[string]struct {
		known bool // the server has been asked already what it is, and only the subscription is missing
		call  func(b *redisdriver.Backend, c driver.Claim) error
	}{
		"a request": {false, func(b *redisdriver.Backend, c driver.Claim) error { _, err := b.Acquire(t.Context(), c); return err }},
		"a subscription": {true, func(b *redisdriver.Backend, c driver.Claim) error {
			_, err := b.Wait(t.Context(), c, func() {})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			late := faulttest.Lateness(t)
			p := faultproxy.New(t, addr)
			b := openBackend(t, "rediss://"+p.Addr+"?ca="+certs.CA)
			if c.known {
				mustAcquire(t, b, claimFor("known", 1, time.Minute))
			}
			p.BlackHole()
			dropped := p.Dropped()
			result := make(chan error, 1)
			go func() { result <- c.call(b, claimFor("k", 2, time.Minute)) }()
			faulttest.Eventually(t, 10*time.Second, "a connection is being made", func() bool { return p.Dropped() > dropped })
			began := time.Now()
			_ = b.Close()
			if took := time.Since(began); took > 300*time.Millisecond+late() {
				t.Errorf("Close took %v", took)
			}
			if err := faulttest.Receive(t, "the end of the call", result); err == nil || errors.Is(err, driver.ErrHeld) {
				t.Errorf("the call under way returned %v, want that the backend is closed", err)
			}
		})
	}
}

func TestLockerIsClosedInTimeWhileTLSIsNotAnswered(t *testing.T) {
	t.Parallel()
	_, certs, addr := tlsServer(t, "no")
	late := faulttest.Lateness(t)
	p := faultproxy.New(t, addr)
	l := openLocker(t, "rediss://"+p.Addr+"?ca="+certs.CA, dlock.Config{})
	faulttest.Hold(t, l, "held")
	unlocked := faulttest.Hold(t, l, "unlocked")
	p.BlackHole()
	p.CutAll()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := unlocked.Unlock(ctx); err == nil {
		t.Error("Unlock without a server has succeeded")
	}
	if took := time.Since(began); took > 300*time.Millisecond+late() {
		t.Errorf("Unlock returned after %v, want soon after 100ms", took)
	}
	began = time.Now()
	_ = l.Close()
	if took := time.Since(began); took > 2*time.Second+late() {
		t.Errorf("Close took %v, want at most 2s", took)
	}
}

// TestAConnectionThatComesTooLateIsClosed has a dialer that returns when nobody waits for it any more.
func TestAConnectionThatComesTooLateIsClosed(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(conn net.Conn) (net.Conn, error){
		"a connection": func(conn net.Conn) (net.Conn, error) { return conn, nil },
		"an error":     func(net.Conn) (net.Conn, error) { return (*tls.Conn)(nil), errors.New("refused here") }, // as the client library gives it
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dialling, released := make(chan struct{}, 1), make(chan struct{})
			ours, theirs := net.Pipe()
			t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
			b := onClient(t, goredis.NewClient(&goredis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
				dialling <- struct{}{}
				<-released
				return give(ours)
			}}))
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- b.Ping(ctx) }()
			faulttest.Receive(t, "the dial", dialling)
			cancel()
			if err := faulttest.Receive(t, "the end of the call", result); !errors.Is(err, context.Canceled) {
				t.Errorf("Ping = %v, want the error of its context", err)
			}
			close(released)
			if name == "an error" {
				return
			}
			_ = theirs.SetReadDeadline(time.Now().Add(10 * time.Second))
			if n, err := theirs.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
				t.Errorf("the late connection sent %d bytes, %v; want it closed", n, err)
			}
		})
	}
}
