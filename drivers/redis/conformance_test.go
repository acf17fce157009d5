package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// databases are those of a server that nobody uses: cases that run at the same time share the server.
type databases chan int

func newDatabases() databases {
	free := make(databases, 16)
	for db := range cap(free) {
		free <- db
	}
	return free
}

// store is a dlocktest.Store on a server that all cases share; each has a database of its own, emptied before.
func store(t *testing.T, addr string, free databases) dlocktest.Store {
	t.Parallel()
	db := <-free
	t.Cleanup(func() { free <- db })
	ways := &ways{addr: addr, clients: map[driver.Backend]*faultproxy.Proxy{}}
	dsn := func(way *faultproxy.Proxy) string { return fmt.Sprintf("redis://%s/%d", way.Addr, db) }
	admin := goredis.NewClient(&goredis.Options{Addr: addr, DB: db})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.FlushDB(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	return dlocktest.Store{
		Driver: "redis", DSN: dsn(ways.open(t)),
		Open: func(t testing.TB) driver.Backend {
			way := ways.open(t)
			b, err := redisdriver.Driver{}.Open(dsn(way))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			ways.mu.Lock()
			defer ways.mu.Unlock()
			ways.clients[b] = way
			return b
		},
		Outage: func(down bool) { ways.set(faultproxy.Rules{Refuse: down}, down) },
		Hang:   func(hangs bool) { ways.set(faultproxy.Rules{DropUp: hangs, DropDown: hangs}, !hangs) },
		Vanish: func(b driver.Backend) {
			ways.mu.Lock()
			defer ways.mu.Unlock()
			ways.clients[b].BlackHole()
		},
		Delete: func(key string) {
			if err := admin.Del(context.Background(), inServer(key)).Err(); err != nil {
				t.Error(err)
			}
		},
	}
}

// ways are the clients' ways to a server.
type ways struct {
	addr    string
	mu      sync.Mutex
	all     []*faultproxy.Proxy
	rules   faultproxy.Rules
	clients map[driver.Backend]*faultproxy.Proxy
}

func (w *ways) open(t testing.TB) *faultproxy.Proxy {
	p := faultproxy.New(t, w.addr)
	w.mu.Lock()
	defer w.mu.Unlock()
	p.Set(w.rules)
	w.all = append(w.all, p)
	return p
}

// set has the rules hold for everybody, and cuts what is open if it has to.
func (w *ways) set(rules faultproxy.Rules, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = rules
	for _, p := range w.all {
		p.Set(rules)
	}
	for _, p := range w.all {
		if cut {
			p.CutAll()
		}
	}
}

func TestConformanceOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	free := newDatabases()
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 300 * time.Millisecond,
		Pushed: true,
		New:    func(t *testing.T) dlocktest.Store { return store(t, server.Addr, free) },
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
		Pushed: true,
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
