package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// grace is how long a call may take to answer, once nobody wants to wait for it any more, before it is left behind.
	grace = 50 * time.Millisecond

	// maxAbandoned is how many calls may be left behind before new ones have to wait.
	maxAbandoned = 256
)

type callKind uint8

const (
	callAcquire callKind = iota
	callWait
	callRelease
	callRenew
	callRenewBatch
	callPing
)

// call is one request to the backend. It runs on a goroutine of its own, so that whoever waits for it can leave although the driver
// does not return, unless the driver is known to return. It is itself the context that the driver gets, ended by whoever waits and by the time limit.
type call struct {
	task // the time limit
	l    *locker

	kind  callKind
	claim driver.Claim
	key   string         // of an acquisition, as the caller gave it
	holds []*hold        // what a renewal is for; those that are over by the time it is sent are left out
	batch []driver.Claim // and what is sent for each

	parent context.Context // for its values and its deadline
	sent   time.Time       // read before anything is sent
	limit  time.Time       // zero: none
	wake   chan struct{}   // something happened: an answer, or the limit

	// Guarded by l.mu.
	answered bool
	answer          // zero until then
	queued   bool   // a Wait was told that another owner has the key
	left     bool   // nobody waits for the answer
	stray    *stray // but this wants to know of it

	mu     sync.Mutex
	done   chan struct{} // made when somebody asks for it
	ended  error
	afters []*func()
	room   [1]*func() // for afters, which are rarely more
}

// answer is what the backend said.
type answer struct {
	grant    driver.Grant
	renewals []driver.Renewal
	err      error
}

// errLimit matches what a driver that honours its context returns in the same situation.
var errLimit error = detail{context.DeadlineExceeded, "the backend did not answer in time"}

// gate bounds the calls that were left behind: while there are as many as allowed no new ones are made. It is guarded by the Locker's mutex.
type gate struct {
	abandoned int
	freed     chan struct{} // closed when one of them returned; nil when nobody waits for that
}

// ask sends c and waits for its answer, until ctx ends, the Locker closes, or limit has passed (0: no limit). It reports whether
// there is an answer, which may be an error; otherwise why tells what ended the wait, and c.sent is zero if nothing was sent.
//
// A release is not ended by ctx: it goes on up to its limit, and only the wait for it ends.
func (l *locker) ask(ctx context.Context, c *call, limit time.Duration) (answered bool, why error) {
	c.l, c.parent = l, ctx
	if l.instant && c.kind != callWait {
		return l.askHere(c)
	}
	closing := l.closing
	if c.kind == callRelease {
		closing = l.stopped
	}
	if l.prompt && c.kind != callRenew && c.kind != callRenewBatch {
		return l.askPrompt(ctx, c, limit, closing)
	}
	if err := l.launch(ctx, c, limit, closing); err != nil {
		return false, err
	}
	select {
	case <-c.wake:
	case <-ctx.Done():
		why = endOf(ctx)
	case <-closing:
		why = ErrClosed
	}
	if why != nil && c.kind != callRelease {
		c.cancel(why)
	}
	return l.settle(c, why)
}

// askHere makes a call that cannot block on the goroutine of whoever wants the answer.
func (l *locker) askHere(c *call) (bool, error) {
	if isClosed(l.stopped) {
		return false, ErrClosed
	}
	c.sent = time.Now()
	c.answer = c.perform()
	c.answered = true
	return true, nil
}

// askPrompt makes a call that returns when its context ends on the goroutine of whoever wants the answer.
func (l *locker) askPrompt(ctx context.Context, c *call, limit time.Duration, closing <-chan struct{}) (bool, error) {
	l.mu.Lock()
	if isClosed(closing) {
		l.unlock()
		return false, ErrClosed
	}
	l.begin(c, limit)
	l.prompts[c] = struct{}{}
	l.unlock()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() { c.leave(ctx) })()
	}
	c.run(nil)
	return true, nil
}

// leave ends a call because ctx has ended. A release has the grace to come to its end.
func (c *call) leave(ctx context.Context) {
	if c.kind == callRelease {
		time.AfterFunc(grace, func() { c.cancel(context.Canceled) })
		return
	}
	c.cancel(endOf(ctx))
}

// settle takes the answer of a call, or leaves it behind if there is still none after the grace.
func (l *locker) settle(c *call, why error) (bool, error) {
	var timer *time.Timer
	l.mu.Lock()
	for !c.answered {
		l.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(c.patience())
			defer timer.Stop()
		}
		select {
		case <-c.wake:
		case <-timer.C:
			l.mu.Lock()
			if c.answered {
				continue
			}
			c.left = true
			l.gateOf(c).abandoned++
			l.unlock()
			if why == nil {
				why = errLimit
			}
			return false, why
		}
		l.mu.Lock()
	}
	l.unlock()
	return true, nil
}

// patience is how long to wait for an answer that is overdue. A renewal has its time limit to keep.
func (c *call) patience() time.Duration {
	if c.kind == callRenew || c.kind == callRenewBatch {
		return min(grace, c.limit.Sub(c.sent)/3)
	}
	return grace
}

// launch starts c. An error means that nothing was sent.
func (l *locker) launch(ctx context.Context, c *call, limit time.Duration, closing <-chan struct{}) error {
	c.wake = make(chan struct{}, 1)
	l.mu.Lock()
	defer l.unlock()
	if err := l.pass(ctx, l.gateOf(c), limit, closing); err != nil {
		return err
	}
	if isClosed(closing) {
		return ErrClosed
	}
	l.begin(c, limit)
	l.workers.start(c)
	return nil
}

// begin notes that c is under way.
func (l *locker) begin(c *call, limit time.Duration) {
	c.sent = time.Now()
	if limit > 0 {
		c.limit = c.sent.Add(limit)
		l.sched.add(&c.task, c, c.limit, 0)
	}
	l.running++
}

// pass waits for a place among the calls that may be left behind. The mutex is held, but not while it waits.
func (l *locker) pass(ctx context.Context, g *gate, limit time.Duration, closing <-chan struct{}) error {
	if g.abandoned < maxAbandoned {
		return nil
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for g.abandoned >= maxAbandoned {
		if g.freed == nil {
			g.freed = make(chan struct{})
		}
		freed, err := g.freed, error(nil)
		l.unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			err = endOf(ctx)
		case <-closing:
			err = ErrClosed
		case <-late:
			err = detail{errLimit, fmt.Sprintf("%d earlier calls have not returned yet", maxAbandoned)}
		}
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *locker) gateOf(c *call) *gate {
	if c.kind == callRenew || c.kind == callRenewBatch {
		return &l.renewGate
	}
	return &l.callGate
}

// run makes the call and hands the answer over. It reports whether w, if there is one, is kept for another one.
func (c *call) run(w *worker) (kept bool) {
	// A driver that does not return, as when a mock ends the goroutine, is a failure like any other.
	a := answer{err: errNoReturn}
	returned := false
	defer func() { kept = c.finish(a, w, returned) }()
	a = c.perform()
	returned = true
	return false
}

func (c *call) perform() (a answer) {
	b := c.l.b
	switch c.kind {
	case callAcquire:
		a.grant, a.err = b.Acquire(c, c.claim)
	case callWait:
		a.grant, a.err = c.l.waiter.Wait(driver.WithQueued(c, c.onQueued), c.claim)
	case callRelease:
		a.err = b.Release(c, c.claim)
	case callRenew:
		if c.l.stillHeld(c) {
			a.grant, a.err = b.Renew(c, c.claim)
		}
	case callRenewBatch:
		if c.l.stillHeld(c) {
			a.renewals = c.l.batcher.RenewBatch(c, c.batch)
		}
	case callPing:
		a.err = c.l.pinger.Ping(c)
	}
	return a
}

var errNoReturn = errors.New("the driver did not return from the call")

func (c *call) finish(a answer, w *worker, returned bool) (kept bool) {
	l := c.l
	l.mu.Lock()
	c.answered, c.answer = true, a
	l.running--
	delete(l.prompts, c)
	kept = returned && w != nil && l.keep(w)
	l.sched.remove(&c.task)
	if c.left {
		g := l.gateOf(c)
		g.abandoned--
		if g.freed != nil {
			close(g.freed)
			g.freed = nil
		}
	}
	if c.stray != nil {
		c.stray.answered(c, time.Now())
	}
	l.unlock()
	c.cancel(context.Canceled) // as with any call, what the driver derived from its context ends with it
	c.poke()
	return kept
}

func (c *call) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// due is called when the time limit has passed.
func (c *call) due(time.Time) {
	c.cancel(context.DeadlineExceeded)
	c.poke()
}

// The rest makes call a context.Context.

// Deadline returns the earlier one of the time limit and the caller's deadline; a release has only the former.
func (c *call) Deadline() (time.Time, bool) {
	d, ok := c.limit, !c.limit.IsZero()
	if c.kind == callRelease {
		return d, ok
	}
	if p, has := c.parent.Deadline(); has && (!ok || p.Before(d)) {
		return p, true
	}
	return d, ok
}

func (c *call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended != nil {
			close(c.done)
		}
	}
	return c.done
}

func (c *call) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *call) Value(key any) any { return c.parent.Value(key) }

// AfterFunc lets package context derive from a call without a goroutine.
func (c *call) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		go f()
		return func() bool { return false }
	}
	if c.afters == nil {
		c.afters = c.room[:0]
	}
	c.afters = append(c.afters, &f)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.afters, &f)
		if i < 0 {
			return false
		}
		c.afters = slices.Delete(c.afters, i, i+1)
		return true
	}
}

func (c *call) cancel(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	if !errors.Is(why, context.DeadlineExceeded) {
		why = context.Canceled
	}
	c.ended = why
	if c.done != nil {
		close(c.done)
	}
	for _, f := range c.afters {
		go (*f)()
	}
	c.afters = nil
}
