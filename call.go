package dlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// grace is how long a call may take to answer, once nobody wants to wait for it any more, before it is left behind.
	grace = 50 * time.Millisecond

	// maxAbandoned is how many calls may be left behind before new ones have to wait, and maxOfOneKey how many of them may be of one key: a key
	// whose calls hang must not take the places of the others. When half of all places are taken, a key has one.
	maxAbandoned = 256
	maxOfOneKey  = 8
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

	kind    callKind
	claim   driver.Claim
	key     string   // of an acquisition, as the caller gave it
	renewal *renewal // if it is one

	parent context.Context // for its values and its deadline
	sent   time.Time       // read before anything is sent
	limit  time.Time       // zero: none
	wake   chan struct{}   // something happened: an answer, or the limit

	// Guarded by l.mu.
	answered bool
	answer          // zero until then
	queued   bool   // a Wait was told that another owner has the key
	left     bool   // nobody waits for the answer
	open     bool   // it may bring a grant, and nobody has looked at its outcome yet
	stray    *stray // wants to know of the answer that nobody waits for

	mu     sync.Mutex
	done   chan struct{} // made when somebody asks for it
	ended  error
	afters []*func()
	room   [1]*func() // for afters, which are rarely more
}

// answer is what the backend said.
type answer struct {
	grant   driver.Grant
	err     error
	verdict verdict // what kind of error it is
}

// renewal is what a call has that renews.
type renewal struct {
	holds    []*hold          // those that are over by the time it is sent are left out
	batch    []driver.Claim   // what is sent for each
	renewals []driver.Renewal // what is answered to each
	verdicts []verdict        // and what kind of errors that has; nil when there are none
	share    renewShare       // of the places for renewals, where the driver renews one by one
	place    bool             // it has one of them; guarded by l.mu
	extend   bool             // it is an Extend, and not a renewal of the engine's own
	replaced bool             // it was ended because newer ones are out; guarded by l.mu
}

// errLimit matches what a driver that honours its context returns in the same situation.
var errLimit error = detail{context.DeadlineExceeded, "the backend did not answer in time"}

// ask sends c and waits for its answer, until ctx ends, the Locker closes, or limit has passed (0: no limit). It reports whether
// there is an answer, which may be an error; otherwise why tells what ended the wait, and c.sent is zero if nothing was sent.
//
// A release is not ended by ctx: it goes on up to its limit, and only the wait for it ends.
func (l *locker) ask(ctx context.Context, c *call, limit time.Duration) (answered bool, why error) {
	c.l, c.parent = l, ctx
	if l.mode == driver.Inline && c.kind != callWait {
		return l.askHere(c)
	}
	closing := l.closing
	if c.kind == callRelease {
		closing = l.stopped
	}
	if l.mode == driver.Interruptible && c.kind != callRenew {
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
	if ctx.Done() != nil { // first, because ctx is anybody's code and may panic
		defer context.AfterFunc(ctx, func() { c.leave(ctx) })()
	}
	l.mu.Lock()
	if isClosed(closing) {
		l.unlock()
		return false, ErrClosed
	}
	l.begin(c, limit)
	l.prompts[c] = struct{}{}
	l.unlock()
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
			timer = time.NewTimer(grace)
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
			l.gate.leave(c.claim.Key)
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

// launch starts c. An error means that nothing was sent.
func (l *locker) launch(ctx context.Context, c *call, limit time.Duration, closing <-chan struct{}) error {
	c.wake = make(chan struct{}, 1)
	l.mu.Lock()
	defer l.unlock()
	if err := l.pass(ctx, c.claim.Key, limit, closing); err != nil {
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
	if c.mayBringGrant() {
		c.open = true
		l.acquires++
	}
}

// lookedAt notes that somebody takes care of what c may have brought.
func (l *locker) lookedAt(c *call) {
	if c.open {
		c.open = false
		l.acquires--
	}
}

// renews reports whether c is a renewal of the engine's own, for whose answer nobody waits.
func (c *call) renews() bool { return c.renewal != nil && !c.renewal.extend }

func (c *call) mayBringGrant() bool { return c.kind == callAcquire || c.kind == callWait }

// run makes the call and hands the answer over. It reports whether w, if there is one, is kept for another one.
func (c *call) run(w *worker) (kept bool) {
	// A driver that does not return, as when a mock ends the goroutine, is a failure like any other.
	a := answer{err: errNoReturn, verdict: verdictOther}
	returned := false
	defer func() { kept = c.finish(a, w, returned) }()
	a = c.perform()
	returned = true
	return false
}

// perform calls the driver. Errors are looked at here, without the mutex: they are the driver's code.
func (c *call) perform() answer {
	a := c.send()
	a.verdict = verdictOf(a.err)
	if r := c.renewal; r != nil {
		for i := range r.renewals {
			if err := r.renewals[i].Err; err != nil {
				if r.verdicts == nil {
					r.verdicts = make([]verdict, len(r.renewals))
				}
				r.verdicts[i] = verdictOf(err)
			}
		}
	}
	return a
}

func (c *call) send() (a answer) {
	b := c.l.b
	switch c.kind {
	case callAcquire:
		a.grant, a.err = b.Acquire(c, c.claim)
	case callWait:
		a.grant, a.err = c.l.waiter.Wait(c, c.claim, c.onQueued)
	case callRelease:
		a.err = b.Release(c, c.claim)
	case callRenew:
		if c.l.stillHeld(c) {
			a.grant, a.err = b.Renew(c, c.claim)
		}
	case callRenewBatch:
		if c.l.stillHeld(c) {
			c.renewal.renewals = c.l.batcher.RenewBatch(c, c.renewal.batch)
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
		l.gate.returned(c.claim.Key)
	}
	if !returned {
		l.lookedAt(c)
	}
	if c.stray != nil {
		c.stray.answered(c, time.Now())
	}
	if c.renews() {
		l.tookRenewals(c, time.Now())
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

// due is called when the time limit has passed, and before that for a renewal that is slow.
func (c *call) due(now time.Time) {
	if c.renewal != nil && c.renewal.share != renewBeside {
		c.l.gavePlaceBack(c, now)
	}
	if now.Before(c.limit) {
		c.l.sched.add(&c.task, c, c.limit, 0)
		return
	}
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
