package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// extend is Lease.Extend.
func (l *locker) extend(ctx context.Context, x *Lease, ttl time.Duration) error {
	fail := func(err error) error { return &Error{Op: "extend", Driver: l.cfg.Driver, Key: x.Key(), Err: err} }
	if err := l.checkTTL(ttl); err != nil {
		return fail(err)
	}
	if err := ctx.Err(); err != nil && x.Err() == nil {
		return fail(err)
	}
	l.mu.Lock()
	now := time.Now()
	if err := l.leaseErr(x, now); err != nil {
		l.unlock()
		return fail(reasonOf(err))
	}
	h := x.h
	c := &call{kind: callRenew, claim: h.claim, renewal: &renewal{holds: []*hold{h}, extend: true}}
	c.claim.TTL = ttl
	limit := h.deadline.Sub(now)
	h.maxTTL = max(h.maxTTL, ttl)
	l.unlock()

	answered, why := l.ask(ctx, c, limit)
	l.mu.Lock()
	defer l.unlock()
	if answered {
		why = c.err
	}
	now = time.Now()
	switch err := l.leaseErr(x, now); {
	case err != nil:
		return fail(reasonOf(err))
	case answered && c.verdict == verdictNotOwner:
		h.told = true
		l.lose(h, why)
		return fail(reasonOf(x.err))
	case why != nil:
		return fail(why)
	case c.grant.Fence != 0 && c.grant.Fence != h.fence:
		l.lose(h, errFence)
		return fail(reasonOf(x.err))
	}
	h.claim.TTL = ttl
	l.renewAgain(h, h.granted(c.grant, ttl, c.sent), now, rand.Float64())
	l.watch(h)
	return nil
}

// reasonOf takes the *Error off a lease's reason, to be put into another one.
func reasonOf(err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
