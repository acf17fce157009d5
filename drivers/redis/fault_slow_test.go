package redis_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
)

// slowConn is a connection on which few bytes per second arrive.
type slowConn struct {
	net.Conn
	perByte time.Duration
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(1, len(p))])
	time.Sleep(c.perByte)
	return n, err
}

// slowly makes such connections.
func slowly(perByte time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return slowConn{conn, perByte}, err
	}
}

func TestALinkTooSlowForAllThatAServerSaysOfItselfIsFastEnoughToLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	// 200 bytes per second: what INFO says of the server alone takes longer than the timeout.
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: slowly(5 * time.Millisecond), ReadTimeout: 2 * time.Second})
	t.Cleanup(func() { _ = client.Close() })
	l, err := dlock.New(redisdriver.New(client), &dlock.Config{DefaultTTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	began := time.Now()
	if err := l.Lock(limited(t, 25*time.Second), "slow"); err != nil {
		t.Errorf("Lock on a slow link = %v after %v", err, time.Since(began))
	}
	t.Logf("the lock was had after %v", time.Since(began))
}

func TestAClientNameThatTheServerRefusesIsPermanent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr, ClientName: "my service"})
	refusedForGood(t, client, "Client names cannot contain")
}

func TestAClientThatTheApplicationHasClosedIsPermanent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr})
	b := redisdriver.New(client, redisdriver.WithReplicas(1))
	_ = client.Close()
	t.Cleanup(func() { _ = b.Close() })
	l, err := dlock.New(b, &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	refusedAtOnce(t, l, "client is closed")
	if err := l.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
}

// refusedForGood sees that a Locker on client fails at once.
func refusedForGood(t *testing.T, client goredis.UniversalClient, want string) {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	l, err := dlock.New(redisdriver.New(client), &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	refusedAtOnce(t, l, want)
}

func refusedAtOnce(t *testing.T, l dlock.Locker, want string) {
	t.Helper()
	ctx := limited(t, 5*time.Second)
	err := l.Lock(ctx, "k")
	if !errors.Is(err, driver.ErrPermanent) || !strings.Contains(err.Error(), want) || ctx.Err() != nil {
		t.Errorf("Lock = %v, want a permanent error at once that says: %s", err, want)
	}
}
