package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var errNoNotify = fmt.Errorf("redis: waiting in the server needs pub/sub, which is off: %w", errors.ErrUnsupported)

// waiters are the claims of this process that wait, and the one subscription on which the server tells them of a hand-over.
type waiters struct {
	b       *Backend
	channel string

	stands atomic.Bool // the server has acknowledged the subscription, and it is not known to have broken

	mu     sync.Mutex
	tokens map[string]*waiter
	early  early
	sub    *subscription // nil: nobody has waited yet
	closed bool
	wg     sync.WaitGroup

	orphans orphans
}

func (q *waiters) init(b *Backend) {
	q.b, q.channel = b, b.opt.channel+newName()
	q.tokens = map[string]*waiter{}
	q.orphans.init(q)
}

// listening waits until the subscription stands: a hand-over must find somebody who listens.
func (q *waiters) listening(ctx context.Context) error {
	if q.stands.Load() {
		return nil
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return errClosed
	}
	if q.sub == nil {
		q.sub = newSubscription(q)
	}
	sub := q.sub
	q.mu.Unlock()
	return sub.await(ctx)
}

// add registers a claim that waits. Its message may have come already.
func (q *waiters) add(w *waiter) error {
	w.given, w.nudge = make(chan uint64, 4), make(chan struct{}, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed
	}
	q.tokens[w.claim.Token] = w
	if fence, ok := q.early.take(w.claim.Token); ok {
		w.given <- fence
	}
	if !q.stands.Load() {
		w.nudge <- struct{}{} // it broke meanwhile
	}
	return nil
}

// early are the hand-overs that nobody was registered for yet: the reply that says "queued" may come after them, and where hundreds of locks are waited for
// at once there are as many.
type early struct {
	fences map[string]uint64 // by token
	order  []string          // the tokens, oldest first; some may be taken
}

// maxEarly is how many of the latest are kept. Those whose wait was given up are never asked for.
const maxEarly = 4096

func (e *early) put(token string, fence uint64) {
	if e.fences == nil {
		e.fences = map[string]uint64{}
	}
	if len(e.order) == maxEarly {
		delete(e.fences, e.order[0])
		e.order = e.order[1:]
	}
	e.fences[token] = fence
	e.order = append(e.order, token)
}

func (e *early) take(token string) (fence uint64, ok bool) {
	fence, ok = e.fences[token]
	if delete(e.fences, token); len(e.fences) == 0 {
		e.order = nil
	}
	return fence, ok
}

// remove takes a claim out that no longer waits. If it found by asking that it had been given the lock, its message is still awaited for a while: when that
// does not come, the subscription may be broken without anybody having noticed.
func (q *waiters) remove(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !w.untold {
		q.drop(w)
		return
	}
	time.AfterFunc(messageWait, func() {
		q.mu.Lock()
		q.drop(w)
		missing, sub := len(w.given) == 0 && !q.closed, q.sub
		q.mu.Unlock()
		if missing && sub != nil {
			sub.missed(w.heard())
		}
	})
}

const messageWait = 200 * time.Millisecond

func (q *waiters) drop(w *waiter) {
	if q.tokens[w.claim.Token] == w {
		delete(q.tokens, w.claim.Token)
	}
}

// deliver hands a message to whoever waits for it.
func (q *waiters) deliver(payload string) {
	token, text, _ := strings.Cut(payload, " ")
	fence, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.tokens[token]
	if w == nil {
		if q.orphans.given(token) {
			return
		}
		// Its wait begins just now, or was given up; in that case the engine releases it.
		q.early.put(token, fence)
		return
	}
	select {
	case w.given <- fence:
	default: // it has more than it can use
	}
}

// nudgeAll has every waiter ask again, after messages may have been lost.
func (q *waiters) nudgeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.tokens {
		select {
		case w.nudge <- struct{}{}:
		default:
		}
	}
}

// close ends the subscription. A connection that is just being made ends when the client's dialler lets it, for which nobody waits for long.
func (q *waiters) close() {
	q.mu.Lock()
	q.closed = true
	sub := q.sub
	q.mu.Unlock()
	if sub == nil {
		return
	}
	sub.cancel()
	ended := make(chan struct{})
	go func() {
		q.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeWait):
	}
}

const closeWait = 300 * time.Millisecond // the engine waits 400 ms for a Close

// subscription listens on this process' channel. It has one connection, and makes another when that breaks or seems to have.
type subscription struct {
	q      *waiters
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	conn  *connection   // the one that the server has acknowledged; nil: there is none
	ready chan struct{} // closed while there is one
	err   error         // why the last attempt to make one failed
}

func newSubscription(q *waiters) *subscription {
	s := &subscription{q: q, ready: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	q.wg.Go(s.run)
	return s
}

// await waits until the subscription stands.
func (s *subscription) await(ctx context.Context) error {
	for {
		s.mu.Lock()
		ready, err := s.ready, s.err
		s.mu.Unlock()
		select {
		case <-ready:
			return nil
		default:
		}
		if err != nil {
			return err
		}
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return errClosed
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// run keeps a connection. One in doubt is kept until there is another, because a waiter for whom nobody listens loses its place.
func (s *subscription) run() {
	pause := time.Millisecond
	for s.ctx.Err() == nil {
		began := time.Now()
		c := s.connect()
		select {
		case <-c.up:
			select {
			case <-c.doubt:
			case <-c.down:
			}
		case <-c.down:
		}
		if time.Since(began) > time.Second {
			pause = time.Millisecond
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// missed is told of a hand-over whose message did not come. The waiter was in the queue at some time after heard: if the connection is younger,
// the message may have gone to the one before.
func (s *subscription) missed(heard time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || heard.Before(s.conn.since) {
		return
	}
	select {
	case s.conn.doubt <- struct{}{}:
	default:
	}
}

// acknowledged is called when the server has acknowledged c, which takes the place of the one there was.
func (s *subscription) acknowledged(c *connection) {
	s.mu.Lock()
	if old := s.conn; old == nil {
		close(s.ready)
		s.q.stands.Store(true)
	} else if old != c {
		old.cancel()
	}
	first := c.since.IsZero()
	s.conn, s.err, c.since = c, nil, time.Now()
	s.mu.Unlock()
	if first {
		close(c.up)
	}
	s.q.nudgeAll()
}

// ended is called when c is no more. That it broke is no reason for a call to fail; that another one cannot be made is.
func (s *subscription) ended(c *connection, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == c:
		s.conn, s.ready = nil, make(chan struct{})
		s.q.stands.Store(false)
	case c.since.IsZero() && s.ctx.Err() == nil:
		s.err = classify("subscribe", err)
	}
}

// connection is one on which the server sends messages. Ending its context closes it, without anybody having to wait for that: the client library keeps its
// mutex while it dials.
type connection struct {
	ctx    context.Context
	cancel context.CancelFunc
	up     chan struct{} // closed when the server has acknowledged it
	down   chan struct{} // closed when it has ended
	doubt  chan struct{} // a message did not come
	since  time.Time     // when it was acknowledged last; guarded by the subscription's mutex
}

// connect begins to make a connection.
func (s *subscription) connect() *connection {
	c := &connection{up: make(chan struct{}), down: make(chan struct{}), doubt: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	s.q.wg.Go(func() {
		defer close(c.down)
		defer c.cancel()
		s.ended(c, s.listen(c))
	})
	return c
}

// listen subscribes and delivers until the connection breaks. An acknowledgement that does not come is one that was lost.
func (s *subscription) listen(c *connection) error {
	ps := s.q.b.renewer.Subscribe(c.ctx)
	stop := context.AfterFunc(c.ctx, func() { _ = ps.Close() })
	defer func() {
		stop()
		_ = ps.Close()
	}()
	if err := ps.Subscribe(c.ctx, s.q.channel); err != nil {
		return err
	}
	limit := acknowledgeWait
	for {
		msg, err := ps.ReceiveTimeout(c.ctx, limit)
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *redis.Subscription:
			limit = 0
			s.acknowledged(c)
		case *redis.Message:
			s.q.deliver(m.Payload)
		}
	}
}

const acknowledgeWait = 3 * time.Second
