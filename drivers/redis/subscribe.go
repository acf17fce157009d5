package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	early  []message
	sub    *subscription // nil: nobody has waited yet
	closed bool
	wg     sync.WaitGroup
}

func (q *waiters) init(b *Backend) {
	q.b, q.channel = b, b.opt.channel+newName()
	q.tokens = map[string]*waiter{}
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
	if i := slices.IndexFunc(q.early, func(m message) bool { return m.token == w.claim.Token }); i >= 0 {
		w.given <- q.early[i].fence
		q.early = slices.Delete(q.early, i, i+1)
	}
	if !q.stands.Load() {
		w.nudge <- struct{}{} // it broke meanwhile
	}
	return nil
}

// message is a hand-over that nobody was registered for yet: the reply that says "queued" may come after it.
type message struct {
	token string
	fence uint64
}

// maxEarly bounds the messages that are kept. Those whose wait was given up are never asked for.
const maxEarly = 64

// remove takes a claim out that no longer waits. If it found by asking that it has the lock, its message is still awaited for a while: when that
// does not come, the subscription is broken without anybody having noticed.
func (q *waiters) remove(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !w.untold {
		q.drop(w)
		return
	}
	time.AfterFunc(messageWait, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.drop(w)
		if len(w.given) == 0 && q.sub != nil && !q.closed {
			q.sub.renew()
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
		// Its wait begins just now, or was given up; in that case the engine releases it.
		if len(q.early) == maxEarly {
			q.early = slices.Delete(q.early, 0, 1)
		}
		q.early = append(q.early, message{token, fence})
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

func (q *waiters) close() {
	q.mu.Lock()
	q.closed = true
	sub := q.sub
	q.mu.Unlock()
	if sub != nil {
		sub.stop()
	}
	q.wg.Wait()
}

// subscription listens on this process' channel, and subscribes again whenever the connection breaks.
type subscription struct {
	q      *waiters
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	ps    *redis.PubSub
	ready chan struct{} // closed while the server has acknowledged the subscription
	err   error         // why it has not, last
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

// renew breaks the connection, so that it is made anew.
func (s *subscription) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ps != nil {
		_ = s.ps.Close()
	}
}

func (s *subscription) stop() {
	s.cancel()
	s.renew()
}

func (s *subscription) run() {
	pause := time.Millisecond
	for s.ctx.Err() == nil {
		began := time.Now()
		err := s.listen()
		s.mu.Lock()
		select {
		case <-s.ready:
			s.ready = make(chan struct{})
			s.q.stands.Store(false)
		default:
		}
		s.err = classify("subscribe", err)
		s.mu.Unlock()
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

// listen subscribes and delivers until the connection breaks.
func (s *subscription) listen() error {
	ps := s.q.b.client.Subscribe(s.ctx)
	s.mu.Lock()
	s.ps = ps
	s.mu.Unlock()
	defer func() { _ = ps.Close() }()
	if err := ps.Subscribe(s.ctx, s.q.channel); err != nil {
		return err
	}
	for {
		msg, err := ps.ReceiveTimeout(s.ctx, 0)
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *redis.Subscription:
			s.mu.Lock()
			s.err = nil
			select {
			case <-s.ready:
			default:
				s.q.stands.Store(true)
				close(s.ready)
			}
			s.mu.Unlock()
			s.q.nudgeAll()
		case *redis.Message:
			s.q.deliver(m.Payload)
		}
	}
}
