package redis_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// store is a dlocktest.Store on a server that all cases share; each has a database of its own, emptied before.
func store(t *testing.T, addr string, flush func()) dlocktest.Store {
	flush()
	proxy := faultproxy.New(t, addr)
	dsn := "redis://" + proxy.Addr + "/0"
	admin := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = admin.Close() })
	return dlocktest.Store{
		Driver: "redis", DSN: dsn,
		Open: func(t testing.TB) driver.Backend {
			b, err := redisdriver.Driver{}.Open(dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			return b
		},
		Outage: func(down bool) {
			if down {
				proxy.Set(faultproxy.Rules{Refuse: true})
				proxy.CutAll()
			} else {
				proxy.Heal()
			}
		},
		Delete: func(key string) {
			if err := admin.Del(context.Background(), inServer(key)).Err(); err != nil {
				t.Error(err)
			}
		},
	}
}

func TestConformanceOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 300 * time.Millisecond,
		New: func(t *testing.T) dlocktest.Store {
			return store(t, server.Addr, func() { _, _ = server.Do("FLUSHALL") })
		},
	})
}

// virtualStore is a dlocktest.Store on miniredis, in a synctest bubble: no listener, and expiry by the bubble's clock.
func virtualStore(t *testing.T, opts ...redisdriver.Option) dlocktest.Store {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	t.Cleanup(server.Close)
	var down atomic.Bool
	dial := func(context.Context, string, string) (net.Conn, error) {
		if down.Load() {
			return nil, errDown
		}
		conn, err := server.Dial()
		if err != nil {
			return nil, err
		}
		return buffered(conn, &down), nil
	}
	return dlocktest.Store{
		Open: func(t testing.TB) driver.Backend {
			client := goredis.NewClient(&goredis.Options{
				Addr: "127.0.0.1:1", Dialer: dial, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			b := redisdriver.New(client, opts...)
			t.Cleanup(func() {
				_ = b.Close()
				_ = client.Close()
				time.Sleep(2 * time.Second) // the client looks once a second whether it may stop dialling
			})
			return b
		},
		Outage: down.Store,
		Delete: func(key string) { server.Del(inServer(key)) },
	}
}

// bufferedConn writes without waiting for the reader, as a socket does and net.Pipe does not: otherwise a pipeline and its replies would wait for each
// other.
type bufferedConn struct {
	net.Conn
	down *atomic.Bool // the network is
	out  chan []byte
	once sync.Once
	done chan struct{}
}

var errDown = errors.New("the network is down")

func buffered(conn net.Conn, down *atomic.Bool) net.Conn {
	c := &bufferedConn{Conn: conn, down: down, out: make(chan []byte, 4096), done: make(chan struct{})}
	go func() {
		for {
			select {
			case p := <-c.out:
				if _, err := conn.Write(p); err != nil {
					_ = c.Close()
					return
				}
			case <-c.done:
				return
			}
		}
	}()
	return c
}

func (c *bufferedConn) Write(p []byte) (int, error) {
	if c.down.Load() {
		return 0, errDown
	}
	select {
	case <-c.done:
		return 0, net.ErrClosed
	case c.out <- bytes.Clone(p):
		return len(p), nil
	}
}

func (c *bufferedConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

func TestConformanceInVirtualTime(t *testing.T) {
	dlocktest.Run(t, dlocktest.Harness{
		Around: synctest.Test,
		MinTTL: 300 * time.Millisecond,
		New:    func(t *testing.T) dlocktest.Store { return virtualStore(t) },
	})
}

func TestConformanceByPollingInVirtualTime(t *testing.T) {
	dlocktest.Run(t, dlocktest.Harness{
		Around: synctest.Test,
		MinTTL: 300 * time.Millisecond,
		New:    func(t *testing.T) dlocktest.Store { return virtualStore(t, redisdriver.WithoutNotify()) },
	})
}
