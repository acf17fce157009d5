package dlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// acquireLimit is the longest that one Acquire may take. Beyond the TTL an answer would be worth nothing.
const acquireLimit = 5 * time.Second

// acquisition is one owner's way to a key.
type acquisition struct {
	l       *locker
	e       *entry
	r       request
	claim   driver.Claim
	doubt   doubt
	asked   *call // until its outcome was looked at
	hasTurn bool
	turn    *turnWaiter // which it waited as, when its turn has come
	left    bool        // it left the queue, and nothing more is to be settled with the Locker

	attempts int
	heard    heard
}

var (
	// errGaveUp ends a wait whose WaitTimeout has passed.
	errGaveUp = errors.New("WaitTimeout has passed")

	errTooLate = errors.New("the grant arrived when its TTL had passed")
)

// newToken returns 16 random bytes as hexadecimal digits.
func newToken() string {
	var raw [16]byte
	var text [32]byte
	_, _ = rand.Read(raw[:]) // never fails; see crypto/rand
	hex.Encode(text[:], raw[:])
	return string(text[:])
}

// takeTurnAndAcquire waits for the local turn and goes to the backend. departed reports that the caller's work with e has ended already.
func (l *locker) takeTurnAndAcquire(ctx context.Context, e *entry, r request) (x *Lease, departed bool, err error) {
	a := &acquisition{l: l, e: e, r: r}
	a.newClaim()
	defer func() { a.end(x) }()
	if r.wait {
		x, err = a.waitFor(ctx)
	} else {
		x, err = a.tryOnce(ctx)
	}
	return x, a.left, err
}

// end leaves everything in order: with the lease, or without one and whatever may be left of it in the store.
func (a *acquisition) end(x *Lease) {
	if a.left && !a.r.byKey {
		return
	}
	a.l.mu.Lock()
	defer a.l.unlock()
	if a.r.byKey {
		a.l.settleByKey(a.e, x)
		a.l.tidy(a.e)
	}
	if x != nil {
		return
	}
	if c := a.asked; c != nil { // the driver has panicked, or the caller's context
		a.l.lookedAt(c)
		if !c.sent.IsZero() {
			a.doubt.unsure++
			a.doubt.last = time.Now()
		}
	}
	a.l.clean(a.e.key, a.claim, a.doubt, a.claim.TTL)
	if a.hasTurn {
		a.l.nextTurn(a.e)
	}
}

func (a *acquisition) newClaim() {
	a.claim = driver.Claim{Key: a.l.cfg.Prefix + a.e.key, Token: newToken(), Owner: a.l.cfg.Owner, TTL: a.r.ttl}
	a.doubt = doubt{}
}

// bounded is ctx with the Locker's WaitTimeout.
func (l *locker) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.cfg.WaitTimeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, l.cfg.WaitTimeout, errGaveUp)
}

// endOf says what ended ctx: WaitTimeout is not the caller's context.
func endOf(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errGaveUp) {
		return errGaveUp
	}
	return ctx.Err()
}

// waitFor is Lock: it tries until it holds the key, ctx ends, or MaxRetries are used up.
func (a *acquisition) waitFor(ctx context.Context) (*Lease, error) {
	var err error
	if a.turn, a.left, err = a.l.awaitTurn(ctx, a.e); err != nil {
		return nil, err
	}
	a.hasTurn = true
	a.l.mu.Lock()
	a.l.turns.put(a.turn)
	a.heard = a.e.heard
	// The key may be held by one of them, which is not to be waited for longer than need be. Those that must have expired leave the list.
	for _, s := range slices.Clone(a.e.strays) {
		if !s.swept {
			s.hurry(time.Now())
		}
	}
	a.l.unlock()
	for ctx.Err() == nil {
		x, err := a.attempt(ctx, a.wayToWait())
		switch {
		case x != nil:
			return x, nil
		case errors.Is(err, ErrClosed):
			return nil, ErrClosed
		case ctx.Err() != nil:
			return nil, a.heard.stillWaiting(endOf(ctx))
		case errors.Is(err, driver.ErrPermanent):
			return nil, err
		case errors.Is(err, errors.ErrUnsupported) && a.wayToWait() == callWait:
			a.l.noWait.Store(true)
			a.attempts--
			continue
		case a.heard.busy && a.attempts == 1 && a.l.mode == driver.Inline && a.wayToWait() == callWait:
			continue // there was nothing to lose by asking first
		case a.l.cfg.MaxRetries > 0 && a.attempts > a.l.cfg.MaxRetries:
			return nil, a.heard.stillWaiting(fmt.Errorf("%d attempts were made", a.attempts))
		}
		if err := a.pause(ctx); err != nil {
			return nil, a.heard.stillWaiting(err)
		}
	}
	return nil, a.heard.stillWaiting(endOf(ctx))
}

// wayToWait is Wait where the driver has it; a limited number of attempts is made by polling on every driver. Where a call costs nothing the first
// one asks without waiting.
func (a *acquisition) wayToWait() callKind {
	if a.l.waiter != nil && !a.l.noWait.Load() && a.l.cfg.MaxRetries == 0 && (a.attempts > 0 || a.l.mode != driver.Inline) {
		return callWait
	}
	return callAcquire
}

// pause waits between two attempts. Under long waits the pause grows, up to tenfold; each time at random between half of it and all.
func (a *acquisition) pause(ctx context.Context) error {
	d := a.l.cfg.RetryInterval
	if a.l.cfg.MaxRetries == 0 {
		for range min(a.attempts-1, 12) {
			d = min(d*5/4, 10*a.l.cfg.RetryInterval)
		}
		d = d/2 + mathrand.N(d/2+1)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return endOf(ctx)
	case <-a.l.closing:
		return ErrClosed
	}
}

// tryOnce is TryLock: one attempt, and one more with the same token if the outcome of the first is not known.
func (a *acquisition) tryOnce(ctx context.Context) (*Lease, error) {
	a.l.mu.Lock()
	taken, held := a.l.tryTurn(a.e)
	a.l.unlock()
	if held {
		return nil, nil
	}
	a.hasTurn = taken
	for range 3 {
		a.l.mu.Lock()
		swept := a.e.swept
		a.l.mu.Unlock()
		a.heard = heard{}
		x, err := a.attempt(ctx, callAcquire)
		if x == nil && a.doubt.unsure > 0 && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			first := err
			if x, err = a.attempt(ctx, callAcquire); verdictOf(err) == verdictContext && ctx.Err() == nil {
				err = first // which may tell more
			}
		}
		if x != nil || !a.heard.busy {
			return x, err
		}
		// The holder might be a token of our own that was left behind.
		again, err := a.l.sweepNow(ctx, a.e, swept, time.Now())
		if err != nil || !again {
			return nil, err
		}
	}
	return nil, errCleaning
}

// attempt sends one request. The error is what the backend said, ErrClosed, or what ended the wait for an answer.
func (a *acquisition) attempt(ctx context.Context, kind callKind) (*Lease, error) {
	if isClosed(a.l.closing) {
		return nil, ErrClosed
	}
	a.attempts++
	limit := min(a.claim.TTL, acquireLimit)
	if kind == callWait {
		limit = 0
	}
	c := &call{kind: kind, claim: a.claim, key: a.e.key}
	a.asked = c
	answered, err := a.l.ask(ctx, c, limit)
	if answered {
		err = c.err
	}
	if err == nil {
		var x *Lease
		if x, err = a.install(ctx, c); x != nil {
			return x, nil
		}
	} else {
		a.wonder(c)
	}
	a.asked = nil
	if isClosed(a.l.closing) {
		return nil, ErrClosed
	}
	a.hear(ctx, c, err)
	return nil, err
}

// hear notes what c brought. The end of ctx is no answer: what was heard before still is the last that was heard, unless that is nothing and the driver
// knows why there was no answer. Nor is the end of a time limit, where the store has named its trouble before.
func (a *acquisition) hear(ctx context.Context, c *call, err error) {
	v := verdictOf(err)
	over := ctx.Err() != nil && (v == verdictContext || errors.Is(err, errGaveUp))
	why := over && namesCause(err)
	a.l.mu.Lock()
	defer a.l.unlock()
	switch {
	case v == verdictHeld, over && c.queued:
		a.heard = heard{busy: true}
	case over && (!why || a.heard.busy):
	case v == verdictUnsupported && c.kind == callWait: // it is asked in another way
	case v == verdictContext && a.heard.trouble != nil:
	default:
		a.heard = heard{trouble: err}
	}
	if a.hasTurn {
		a.e.setHeard(a.heard)
	}
}

// onQueued is called when a Wait was told that another owner has the key.
func (c *call) onQueued() {
	c.l.mu.Lock()
	defer c.l.unlock()
	c.queued = true
	if e := c.l.keys[c.key]; e != nil && !c.left {
		e.setHeard(heard{busy: true})
	}
}

// wonder notes what c may have left in the store.
func (a *acquisition) wonder(c *call) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.l.lookedAt(c)
	if c.mayHaveWritten() {
		a.doubt.add(c)
	}
}

// mayHaveWritten reports whether c, which brought no grant, may have put its token into the store. An error says little: the request may have been
// applied. One that certainly was not says nothing of those before it: whoever waits sends more than one, and may be queued. The mutex is held.
func (c *call) mayHaveWritten() bool {
	switch {
	case c.sent.IsZero():
		return false
	case !c.answered:
		return true
	case c.verdict == verdictHeld:
		return c.kind == callWait
	case c.verdict == verdictPermanent, c.verdict == verdictUnsupported:
		return c.queued
	default:
		return true
	}
}

// install makes a hold of the grant that c brought, unless it came too late.
func (a *acquisition) install(ctx context.Context, c *call) (*Lease, error) {
	l, now := a.l, time.Now()
	h := &hold{
		l: l, e: a.e, fence: c.grant.Fence, renew: !a.r.noRenewal, claim: a.claim,
		lastSent: now, maxTTL: a.claim.TTL, doubt: a.doubt, hasTurn: a.hasTurn, // while it waits a driver sends more than once
	}
	start := h.granted(c.grant, a.claim.TTL, c.sent)
	err := ctx.Err() // a caller who has gone cannot be given a lock
	l.mu.Lock()
	defer l.unlock()
	l.lookedAt(c)
	switch {
	case isClosed(l.closing):
		err = ErrClosed
	case err == nil && h.expired(now):
		err = errTooLate
	case err == nil && a.e.heldLaterThan(h.fence):
		err = driver.ErrHeld
	}
	if err != nil {
		// A release will be sent for this token, so it must not acquire again.
		a.doubt.add(c)
		l.clean(a.e.key, a.claim, a.doubt, h.maxTTL)
		a.newClaim()
		return nil, err
	}
	for _, old := range [...]*hold{a.e.aside, a.e.holder} {
		if old != nil && !old.over() {
			l.lose(old, errOusted)
		}
	}
	h.leases = h.room[:0]
	x := h.addLease()
	h.renewAt = l.nextRenewal(h, start, mathrand.Float64())
	l.watch(h)
	if h.hasTurn {
		a.e.holder = h
		a.e.setHeard(heard{})
	} else {
		a.e.aside = h
	}
	return x, nil
}

// heldLaterThan reports whether a hold here has a later grant than the one with the given fence, which the store has then forgotten.
func (e *entry) heldLaterThan(fence uint64) bool {
	for _, h := range [...]*hold{e.aside, e.holder} {
		if h != nil && !h.over() && h.fence > fence {
			return fence != 0
		}
	}
	return false
}

// errOusted says that the store has forgotten a hold: it granted the key to somebody else here.
var errOusted = errors.New("the store granted the key again")
