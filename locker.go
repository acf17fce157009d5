package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// locker is the engine. One mutex guards all of its state; nothing is sent, logged or waited for while it is held.
type locker struct {
	b       driver.Backend
	waiter  driver.Waiter       // nil: poll
	batcher driver.BatchRenewer // nil: renew one by one
	pinger  driver.Pinger       // nil: cannot be pinged
	mode    driver.CallMode     // how b may be called
	cfg     Config
	tel     *telemetry
	began   time.Time

	noWait, noBatch atomic.Bool // the driver said errors.ErrUnsupported
	suspects        suspects
	departed        atomic.Pointer[turnWaiter] // those who left the queue of a key, to be taken off it

	closing chan struct{} // closed when Close begins: nobody waits any longer
	stopped chan struct{} // closed when Close has waited enough: nothing is sent any more
	quiet   chan struct{} // closed when, after closing, nothing is under way any more
	closed  chan struct{} // closed when Close is done

	mu        sync.Mutex
	keys      map[string]*entry
	turns     idleTurns
	sched     sched
	dueNow    []*hold // to be renewed by the present tick
	renewals  renewals
	workers   workers
	gate      gate
	strays    int // tokens that are being cleaned up
	sweeps    sweeps
	ops       int                // operations under way
	running   int                // calls under way, those left behind included
	acquires  int                // those of them that may bring a grant, and whose outcome nobody has looked at yet
	unlocking int                // Unlocks under way
	prompts   map[*call]struct{} // calls on the goroutines of their callers
	ends      []ended            // contexts to be ended when the mutex is free
	reports   reports
	closeBy   time.Time // when Close gives up; zero: not closing
	unsettled unsettled
}

// unsettled is what Close could not confirm.
type unsettled struct {
	tokens int   // that may stay in the store
	why    error // of one of them
}

func newLocker(b driver.Backend, cfg Config, tel *telemetry) *locker {
	l := &locker{
		b: b, cfg: cfg, tel: tel, began: time.Now(),
		closing: make(chan struct{}), stopped: make(chan struct{}), quiet: make(chan struct{}), closed: make(chan struct{}),
		keys: map[string]*entry{}, prompts: map[*call]struct{}{},
	}
	l.waiter, _ = b.(driver.Waiter)
	l.batcher, _ = b.(driver.BatchRenewer)
	l.pinger, _ = b.(driver.Pinger)
	if m, ok := b.(driver.CallModer); ok {
		l.mode = m.CallMode()
	}
	l.sched.tick = l.tick
	if w, ok := b.(driver.LossWatcher); ok {
		w.WatchLosses(l.suspect)
	}
	return l
}

// unlock frees the mutex, ends the contexts of what ended under it, and notices when a closing Locker has become quiet. Nothing that it calls
// waits, nor is it anybody's code.
func (l *locker) unlock() {
	ends := l.ends
	l.ends = nil
	if l.ops == 0 && l.running == 0 && l.strays == 0 && isClosed(l.closing) && !isClosed(l.quiet) {
		close(l.quiet)
	}
	l.mu.Unlock()
	for _, e := range ends {
		e.run()
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (l *locker) fail(op, key string, err error) error {
	return &Error{Op: op, Driver: l.cfg.Driver, Key: key, Err: err}
}

func (l *locker) Lock(ctx context.Context, key string, opts ...LockOption) error {
	_, err := l.acquire(ctx, key, opts, request{op: "lock", byKey: true, wait: true})
	return err
}

func (l *locker) TryLock(ctx context.Context, key string, opts ...LockOption) (bool, error) {
	x, err := l.acquire(ctx, key, opts, request{op: "trylock", byKey: true})
	return x != nil, err
}

func (l *locker) Acquire(ctx context.Context, key string, opts ...LockOption) (*Lease, error) {
	return l.acquire(ctx, key, opts, request{op: "lock", wait: true})
}

func (l *locker) TryAcquire(ctx context.Context, key string, opts ...LockOption) (*Lease, bool, error) {
	x, err := l.acquire(ctx, key, opts, request{op: "trylock"})
	return x, x != nil, err
}

func (l *locker) Unlock(ctx context.Context, key string) error {
	checkContext(ctx)
	return l.unlockKey(ctx, key)
}

func (l *locker) leaseOf(key string) (*Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	if e == nil || e.byKey.lease == nil {
		return nil, false
	}
	return e.byKey.lease, true
}

// Ping is dlock.Ping.
func (l *locker) Ping(ctx context.Context) error {
	checkContext(ctx)
	err := errors.ErrUnsupported
	switch {
	case isClosed(l.closing):
		err = ErrClosed
	case ctx.Err() != nil:
		err = ctx.Err()
	case l.pinger != nil:
		c := &call{kind: callPing}
		answered, why := l.ask(ctx, c, acquireLimit)
		if err = why; answered {
			err = c.err
		}
	}
	if err != nil {
		return l.fail("ping", "", err)
	}
	return nil
}

// request says what kind of acquisition is wanted.
type request struct {
	op        string
	byKey     bool // hold by key, not by lease
	wait      bool // as long as it takes, not one attempt
	ttl       time.Duration
	noRenewal bool
	mark      *leaseContext // the hold under whose context it is
}

// acquire is the way in for all four ways to lock. Without waiting, nil and no error mean that another owner has the key.
func (l *locker) acquire(ctx context.Context, key string, opts []LockOption, r request) (*Lease, error) {
	checkContext(ctx)
	if err := l.check(ctx, key, opts, &r); err != nil {
		return nil, l.fail(r.op, key, err)
	}
	ctx, done := l.tel.begin(ctx, r.op, key)
	x, err := l.acquireKey(ctx, key, r)
	if err != nil {
		err = l.fail(r.op, key, err)
	}
	if done != nil {
		l.reportOutcome(ctx, x, err, done)
	}
	return x, err
}

// reportOutcome reports an acquisition to the application's logger, meter and tracer. If one of them panics the caller gets no lock, so it is
// released.
func (l *locker) reportOutcome(ctx context.Context, x *Lease, err error, done func(*Lease, error)) {
	returned := false
	defer func() {
		if !returned && x != nil {
			_ = l.unlockLease(context.WithoutCancel(ctx), x)
		}
	}()
	done(x, err)
	returned = true
}

// check refuses bad input, and fills in r what opts say.
func (l *locker) check(ctx context.Context, key string, opts []LockOption, r *request) error {
	if err := checkKey(key); err != nil {
		return err
	}
	o := ReadLockOptions(opts...)
	r.ttl, r.noRenewal = l.cfg.DefaultTTL, o.NoRenewal
	if o.HasTTL {
		r.ttl = o.TTL
	}
	if err := l.checkTTL(r.ttl); err != nil {
		return err
	}
	if isClosed(l.closing) {
		return ErrClosed
	}
	return ctx.Err()
}

func (l *locker) checkTTL(ttl time.Duration) error {
	switch {
	case ttl < MinTTL || ttl > MaxTTL:
		return detail{ErrInvalidTTL, fmt.Sprintf("%v; accepted is %v to %v", ttl, MinTTL, MaxTTL)}
	case ttl-margin(ttl) <= l.cfg.RenewInterval:
		return detail{ErrInvalidTTL, fmt.Sprintf("%v is too short for a RenewInterval of %v", ttl, l.cfg.RenewInterval)}
	}
	return nil
}

// acquireKey follows the rules between the holds of this Locker, and then goes to the backend.
func (l *locker) acquireKey(ctx context.Context, key string, r request) (*Lease, error) {
	if r.wait {
		bounded, cancel := l.bounded(ctx)
		defer cancel()
		ctx = bounded
	}
	r.mark = markOf(ctx)
	l.mu.Lock()
	if isClosed(l.closing) {
		l.unlock()
		return nil, ErrClosed
	}
	l.ops++
	e := l.entry(key)
	e.users++
	departed := false
	defer func() {
		if !departed {
			l.leave(e)
		}
	}()
	x, err := l.reenter(ctx, e, r)
	l.unlock()
	if x != nil || err != nil {
		return x, err
	}
	x, departed, err = l.takeTurnAndAcquire(ctx, e, r)
	return x, err
}

// leave ends a call's work with e.
func (l *locker) leave(e *entry) {
	l.mu.Lock()
	defer l.unlock()
	l.ops--
	e.users--
	l.tidy(e)
}
