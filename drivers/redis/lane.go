package redis

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
		all := &common{running: make(chan struct{}, maxRunning)}
		ls.make = func() *lane { return newLane(*c.Options(), all) }
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
	go func() { _ = ln.client.Close() }()
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

// lane is a client that uses one connection. The client reads until its timeout has passed, whatever becomes of the context; a lane cuts the
// connection instead, so that a call returns when its context ends.
type lane struct {
	client redis.UniversalClient
	shared bool // it is a client with many connections, which cannot be cut for the sake of one call

	mu     sync.Mutex
	wires  []*wire                          // the latest; the client may have closed some of them
	making map[*context.CancelFunc]struct{} // what ends the making of a connection
	use    int                              // which call has it
	batch  []*request                       // if it is one for many
	patrol *time.Timer                      // looks at them
	cut    bool                             // nobody wants its answer any more
	closed bool

	*common
}

// common is what the lanes of a client share.
type common struct {
	running   chan struct{} // bounds the functions of the application that do not return
	lingering atomic.Int64  // how many connections only wait for an answer that nobody else waits for
}

var errCut = errors.New("redis: the connection was closed because the call had ended")

// newLane makes a lane from the options of a client.
func newLane(o redis.Options, all *common) *lane {
	ln := &lane{making: map[*context.CancelFunc]struct{}{}, common: all}
	mine := own(o)
	hooks := watched{all.running, ln.begin}
	hooks.options(mine)
	dial := hooks.dialer(o.Dialer)
	mine.Dialer = forgiving(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return ln.dialled(conn)
	})
	// The end of a context is our affair. Deadlines of the connection that come sooner than the one before make Go's runtime wake a thread each time.
	mine.ContextTimeoutEnabled = false
	ln.client = redis.NewClient(mine)
	return ln
}

// begin returns a context that also ends when the connection is cut.
func (ln *lane) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if err := ln.unwanted(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ln.making[&cancel] = struct{}{}
	return ctx, func() {
		cancel()
		ln.mu.Lock()
		defer ln.mu.Unlock()
		delete(ln.making, &cancel)
	}, nil
}

// dialled takes a new connection, unless nobody wants it any more.
func (ln *lane) dialled(conn net.Conn) (net.Conn, error) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if err := ln.unwanted(); err != nil {
		hangUp(conn)
		return nil, err
	}
	w, conn := newWire(conn, &ln.lingering)
	ln.wires = slices.DeleteFunc(ln.wires, (*wire).isOver)
	ln.wires = append(ln.wires, w)
	return conn, nil
}

func (ln *lane) unwanted() error {
	if ln.cut || ln.closed {
		return errCut
	}
	return nil
}

// settled is closed when nothing that was sent before will be carried out any more, as far as can be known.
func (ln *lane) settled() <-chan struct{} {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if n := len(ln.wires); n > 0 {
		return ln.wires[n-1].over
	}
	// Of a connection that is not ours, or of one that was given up, nothing is known.
	over := make(chan struct{})
	time.AfterFunc(brokenWait, func() { close(over) })
	return over
}

// visit is a call's use of a lane.
type visit struct {
	ln   *lane
	stop func() bool // keeps the end of the context from ending it; nil: it has none
}

// enter begins a visit. If r is not nil it is not sent any more when ctx ends.
func (ln *lane) enter(ctx context.Context, r *request) visit {
	switch {
	case ln.shared && r == nil:
		return visit{}
	case ln.shared:
		return visit{ln, after.End(ctx, r.Leave)}
	}
	ln.mu.Lock()
	ln.use++
	use := ln.use
	ln.mu.Unlock()
	return visit{ln, after.End(ctx, func() {
		if r != nil {
			r.Leave()
		}
		ln.end(use)
	})}
}

// patrolPause is how often a batch is looked at, and so how long it goes on when nobody wants it any more.
const patrolPause = 500 * time.Millisecond

// enterWith begins a visit of many. It is ended when nobody wants any of the answers.
func (ln *lane) enterWith(batch []*request) visit {
	if ln.shared {
		return visit{}
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.use++
	ln.batch = batch
	if ln.patrol == nil {
		ln.patrol = time.AfterFunc(patrolPause, ln.look)
	} else {
		ln.patrol.Reset(patrolPause)
	}
	return visit{ln: ln}
}

// look ends a batch that nobody wants.
func (ln *lane) look() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	switch {
	case ln.batch == nil:
	case slices.ContainsFunc(ln.batch, func(r *request) bool { return !r.Gone() }):
		ln.patrol.Reset(patrolPause)
	default:
		ln.cut = true
		ln.cutOff()
	}
}

func (v visit) leave() {
	if v.ln == nil || v.stop != nil && v.stop() || v.ln.shared {
		return
	}
	ln := v.ln
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.use++ // the end of ctx does not concern whoever comes next
	if ln.cut && !ln.closed {
		for _, w := range ln.wires {
			w.mend()
		}
	}
	ln.cut = false
	if ln.batch != nil {
		ln.batch = nil
		ln.patrol.Stop()
	}
}

// end cuts the connection if the call is still the one that has it.
func (ln *lane) end(use int) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.use == use {
		ln.cut = true
		ln.cutOff()
	}
}

// cutOff ends what is done with the connection, and the making of one.
func (ln *lane) cutOff() {
	for end := range ln.making {
		(*end)()
	}
	for _, w := range ln.wires {
		w.cutOff()
	}
}

// close closes the connection, and does not wait for anything.
func (ln *lane) close() {
	if ln.shared {
		return
	}
	ln.mu.Lock()
	ln.closed = true
	ln.cutOff()
	for _, w := range ln.wires {
		w.drop()
	}
	ln.mu.Unlock()
	_ = ln.client.Close()
}
