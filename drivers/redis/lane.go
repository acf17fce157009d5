package redis

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// lane is a client with one connection. The client reads until its timeout has passed, whatever becomes of the context; a lane closes the
// connection instead, so that a call returns when its context ends.
type lane struct {
	client redis.UniversalClient
	shared bool // it is a client with many connections, which cannot be closed for the sake of one call

	mu     sync.Mutex
	conn   net.Conn // the latest
	use    int      // which call has it
	cut    bool     // that call's context has ended
	closed bool
}

var errCut = errors.New("redis: the connection was closed because the call had ended")

// newLane makes a lane from the options of a client.
func newLane(o redis.Options) *lane {
	ln := &lane{}
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return ln.dialled(conn)
	}
	ln.client = redis.NewClient(own(o, 1))
	return ln
}

// dialled takes a new connection, unless nobody wants it any more.
func (ln *lane) dialled(conn net.Conn) (net.Conn, error) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.cut || ln.closed {
		_ = conn.Close()
		return nil, errCut
	}
	ln.conn = conn
	return conn, nil
}

// enter has the connection closed when ctx ends, until leave is called.
func (ln *lane) enter(ctx context.Context) (leave func()) {
	if ln.shared || ctx.Done() == nil {
		return func() {}
	}
	ln.mu.Lock()
	ln.use++
	use := ln.use
	ln.mu.Unlock()
	stop := afterFunc(ctx, func() { ln.end(use) })
	return func() {
		if stop() {
			return
		}
		ln.mu.Lock()
		defer ln.mu.Unlock()
		ln.use++ // the end of ctx does not concern whoever comes next
		ln.cut = false
	}
}

// afterFunc is context.AfterFunc, without the context that it makes where ctx, as the engine's, has one of its own.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if a, ok := ctx.(interface{ AfterFunc(func()) func() bool }); ok {
		return a.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// end closes the connection if the call is still the one that has it.
func (ln *lane) end(use int) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.use == use {
		ln.cut = true
		ln.hangUp()
	}
}

// hangUp closes the connection. That of TLS is closed beneath, because a farewell might have to wait.
func (ln *lane) hangUp() {
	conn := ln.conn
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn()
	}
	if conn != nil {
		_ = conn.Close()
	}
}

func (ln *lane) close() {
	if ln.shared {
		return
	}
	ln.mu.Lock()
	ln.closed = true
	ln.hangUp()
	ln.mu.Unlock()
	_ = ln.client.Close()
}
