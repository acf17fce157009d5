package redis

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/internal/after"
)

// lanesKept is how many lanes there are, unless some are stuck.
const lanesKept = 4

// lanes are the ways to the server.
type lanes struct {
	make   func() *lane
	shared *lane // if there is just this one, which everybody has

	mu     sync.Mutex
	free   []*lane
	all    map[*lane]struct{}
	closed bool
}

// init has ls make lanes of its own, where client is one whose connections are all to one server. Waiting for replicas keeps a connection long, so that
// many are needed. With Sentinel the client itself drops the connections to a master that is one no more, and nobody else is told.
func (ls *lanes) init(client redis.UniversalClient, replicas int) {
	ls.all = map[*lane]struct{}{}
	if c, ok := client.(*redis.Client); ok && replicas == 0 && !failsOver(client) {
		ls.make = func() *lane { return newLane(*c.Options()) }
	} else {
		ls.shared = &lane{client: client, shared: true}
	}
}

// take returns a lane that nobody uses.
func (ls *lanes) take() (*lane, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return nil, errClosed
	}
	if ls.shared != nil {
		return ls.shared, nil
	}
	if n := len(ls.free); n > 0 {
		ln := ls.free[n-1]
		ls.free = ls.free[:n-1]
		return ln, nil
	}
	ln := ls.make()
	ls.all[ln] = struct{}{}
	return ln, nil
}

// give puts a lane back. Those that were made because the others were stuck are not kept.
func (ls *lanes) give(ln *lane) {
	if ln.shared {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.free) < lanesKept && !ls.closed {
		ls.free = append(ls.free, ln)
		return
	}
	delete(ls.all, ln)
	go ln.close()
}

// close ends whatever uses a lane.
func (ls *lanes) close() {
	ls.mu.Lock()
	ls.closed = true
	all := slices.Collect(maps.Keys(ls.all))
	ls.mu.Unlock()
	for _, ln := range all {
		ln.close()
	}
}

// lane is a client that uses one connection. The client reads until its timeout has passed, whatever becomes of the context; a lane closes the
// connection instead, so that a call returns when its context ends.
type lane struct {
	client redis.UniversalClient
	shared bool // it is a client with many connections, which cannot be closed for the sake of one call

	mu     sync.Mutex
	conn   net.Conn           // the latest
	cancel context.CancelFunc // of the latest attempt to make one
	use    int                // which call has it
	cut    bool               // that call's context has ended
	closed bool
}

var errCut = errors.New("redis: the connection was closed because the call had ended")

// newLane makes a lane from the options of a client.
func newLane(o redis.Options) *lane {
	ln := &lane{}
	dial := heeding(o.Dialer)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := ln.dialling(cancel); err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return ln.dialled(conn)
	}
	mine := own(o)
	// The end of a context is our affair. Deadlines of the connection that come sooner than the one before make Go's runtime wake a thread each time.
	mine.ContextTimeoutEnabled = false
	ln.client = redis.NewClient(mine)
	return ln
}

// dialling notes how to end the making of a connection.
func (ln *lane) dialling(cancel context.CancelFunc) error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.cancel = cancel
	return ln.unwanted()
}

// dialled takes a new connection, unless nobody wants it any more.
func (ln *lane) dialled(conn net.Conn) (net.Conn, error) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if err := ln.unwanted(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	ln.conn = conn
	return conn, nil
}

func (ln *lane) unwanted() error {
	if ln.cut || ln.closed {
		return errCut
	}
	return nil
}

// visit is a call's use of a lane.
type visit struct {
	ln   *lane
	use  int
	stop func() bool // nil: it cannot be ended
}

// enter has the connection closed when ctx ends, until the visit ends.
func (ln *lane) enter(ctx context.Context) visit {
	if ln.shared {
		return visit{}
	}
	ln.mu.Lock()
	ln.use++
	v := visit{ln: ln, use: ln.use}
	ln.mu.Unlock()
	v.stop = after.End(ctx, func() { ln.end(v.use) })
	return v
}

func (v visit) leave() {
	if v.stop == nil || v.stop() {
		return
	}
	v.ln.mu.Lock()
	defer v.ln.mu.Unlock()
	v.ln.use++ // the end of ctx does not concern whoever comes next
	v.ln.cut = false
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

// hangUp closes the connection, or ends the making of one. That of TLS is closed beneath, because a farewell might have to wait.
func (ln *lane) hangUp() {
	if ln.cancel != nil {
		ln.cancel()
	}
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
