package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Lease is a hold of a key. It begins held and ends once: by Unlock, by a loss, or by the Locker's Close. All methods are safe for
// concurrent use. Lease values come from Acquire, TryAcquire and LeaseOf. A nil Lease is one that has ended: it is not held, and what
// can fail answers ErrLockNotHeld.
type Lease struct {
	h       *hold        // what the engine knows
	foreign *foreignHold // instead of h when a Locker from elsewhere holds the key
	done    chan struct{}

	// Guarded by the Locker's mutex, or by foreign's.
	err  error                      // why it ended; nil while held
	ends map[*leaseContext]struct{} // the contexts to end with it
}

// hold is a grant of the backend and the leases that share it: one, or several when a Reentrant Locker locked a key again under its own
// context. All that is not set once and for all is guarded by the Locker's mutex.
type hold struct {
	task // the next renewal or the deadline, whichever is sooner

	l     *locker
	e     *entry
	fence uint64
	renew bool

	claim    driver.Claim
	deadline time.Time          // D: from then on the hold is not relied on
	expiry   time.Time          // S + T: from then on, by the wall clock, neither
	lastSent time.Time          // the last acquire or renew that was sent, acknowledged or not
	maxTTL   time.Duration      // the longest TTL that was ever asked for, or given
	doubt    doubt              // acquires of this token whose outcome was never learned
	renewAt  time.Time          // when the next renewal is due
	failures int                // renewals that failed in a row
	trouble  trouble            // and how
	out      [maxRenewals]*call // renewals that have not returned, in the order in which they were sent
	doubtAt  time.Duration      // since the Locker's beginning: when the last renewal was planned because the driver suspects a loss
	outs     uint8              // how many of out there are
	queued   bool               // a renewal waits for a place
	blocked  bool               // a renewal waits for another one of this hold to return
	doubted  bool               // the driver suspects a loss, and a renewal that was sent before is out
	hasTurn  bool               // this hold has the local turn of its key
	told     bool               // the store itself said that the token is gone

	leases []*Lease // those not ended yet; empty when the hold is over
	first  Lease    // the first one, in place
	room   [1]*Lease
}

// Key returns the key as it was given to the Locker.
func (x *Lease) Key() string {
	switch {
	case x == nil:
		return ""
	case x.h == nil:
		return x.foreign.key
	default:
		return x.h.e.key
	}
}

// Fence returns the number that rises with every grant of the key, or 0 if the backend has none. See the function [Fence].
func (x *Lease) Fence() uint64 {
	if x == nil || x.h == nil {
		return 0
	}
	return x.h.fence
}

// ValidUntil returns the instant until which nobody else can hold the key even if no further renewal succeeds. Renewals move it. It is the zero
// Time for a Locker from elsewhere.
func (x *Lease) ValidUntil() time.Time {
	if x == nil || x.h == nil {
		return time.Time{}
	}
	x.h.l.mu.Lock()
	defer x.h.l.mu.Unlock()
	return x.h.deadline
}

// Held reports whether the hold can be relied on at this moment. It looks at the clock: after a pause of the process, or of
// the machine, the first answer is right. Once false, it stays false.
func (x *Lease) Held() bool { return x.Err() == nil }

// Done returns a channel that is closed when the hold ends, at the latest at ValidUntil; that needs no network.
func (x *Lease) Done() <-chan struct{} {
	if x == nil {
		return closedChan
	}
	return x.done
}

var closedChan = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Err returns nil while the hold can be relied on, and then why it ended: ErrOwnershipLost, ErrClosed, or ErrLockNotHeld
// after an Unlock. Like Held it looks at the clock.
func (x *Lease) Err() error {
	switch {
	case x == nil:
		return ErrLockNotHeld
	case x.h == nil:
		return x.foreignErr()
	}
	l := x.h.l
	l.mu.Lock()
	defer l.unlock()
	return l.leaseErr(x, time.Now())
}

// Extend makes the hold last for at least ttl from now, and renews it by ttl from then on. A longer hold is not shortened. On error the
// hold is as it was, unless the error matches ErrOwnershipLost.
func (x *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	checkContext(ctx)
	switch {
	case x == nil:
		return &Error{Op: "extend", Err: ErrLockNotHeld}
	case x.h == nil:
		return &Error{Op: "extend", Key: x.Key(), Err: errors.ErrUnsupported}
	default:
		return x.h.l.extend(ctx, x, ttl)
	}
}

// Unlock ends the hold: Held is false and Done is closed before anything is sent, whatever Unlock returns. Nil means that the store has
// confirmed it, ErrOwnershipLost that the hold had ended before, ErrLockNotHeld that it was unlocked already, which is also the answer for
// a nil Lease. A ctx that is done still gets one short attempt, and a release that failed is repeated in the background.
func (x *Lease) Unlock(ctx context.Context) error {
	checkContext(ctx)
	switch {
	case x == nil:
		return &Error{Op: "unlock", Err: ErrLockNotHeld}
	case x.h == nil:
		return x.foreignUnlock(ctx)
	default:
		return x.h.l.unlockLease(ctx, x)
	}
}

// margin is how long before the end of its TTL a hold is no longer relied on: clocks differ in rate, and timers fire late.
func margin(ttl time.Duration) time.Duration { return max(2*time.Millisecond, ttl/100) }

// granted moves the deadline to what a grant allows that was asked for at sent, and returns the instant from which that counts. The deadline never
// moves back: a renewal does not shorten.
func (h *hold) granted(g driver.Grant, asked time.Duration, sent time.Time) (start time.Time) {
	ttl, start := or(g.TTL, asked), sent
	if !g.Start.IsZero() {
		start = g.Start
	}
	if now := time.Now(); start.After(now) { // nothing counts from the future, whatever a driver says
		start = now
	}
	h.maxTTL = max(h.maxTTL, ttl)
	if d := start.Add(ttl - margin(ttl)); d.After(h.deadline) {
		h.deadline, h.expiry = d, start.Add(ttl)
	}
	return start
}

// expired reports whether the hold cannot be relied on any more. The monotonic clock decides, and the wall clock too, because a
// suspended machine stops the former.
func (h *hold) expired(now time.Time) bool {
	return !now.Before(h.deadline) || now.Round(0).After(h.expiry.Round(0))
}

func (h *hold) over() bool { return len(h.leases) == 0 }

// addLease gives the hold one more lease.
func (h *hold) addLease() *Lease {
	x := &h.first
	if x.h != nil {
		x = new(Lease)
	}
	x.h, x.done = h, make(chan struct{})
	h.leases = append(h.leases, x)
	return x
}

// end ends x for the given reason, and adds its contexts to those that are to be ended when the mutex is free. The caller takes x out
// of its hold's list.
func (x *Lease) end(reason error, ends []ended) []ended {
	x.err = reason
	close(x.done)
	for c := range x.ends {
		ends = append(ends, ended{c, reason})
	}
	x.ends = nil
	return ends
}

// leaseErr is Lease.Err with the mutex held. It notices a deadline that has passed before the timer does.
func (l *locker) leaseErr(x *Lease, now time.Time) error {
	if x.err == nil && x.h.expired(now) {
		l.lose(x.h, x.h.lossReason())
	}
	return x.err
}

var errDeadline = errors.New("no renewal was confirmed in time")

// lose ends a hold that can no longer be relied on.
func (l *locker) lose(h *hold, why error) {
	err := &Error{Op: "hold", Driver: l.cfg.Driver, Key: h.e.key, Err: because{ErrOwnershipLost, why}}
	l.endHold(h, err)
	if forgotten := h.lastSent.Add(h.maxTTL); !h.told && forgotten.After(time.Now()) {
		l.sched.add(&h.task, h, forgotten, 0) // for Close: until then the store may have the token
	} else {
		l.forgotten(h)
	}
	l.later(func() { l.tel.lost(h.e.key, h.fence, h.renew, why) })
	l.passTurn(h)
}

// endHold ends every lease of h.
func (l *locker) endHold(h *hold, reason error) {
	l.sched.remove(&h.task)
	for _, x := range h.leases {
		l.ends = x.end(reason, l.ends)
	}
	h.leases = nil
	if h.e.holder == h {
		h.e.publish()
	}
	if h.e.aside == h {
		h.e.aside = nil
		l.tidy(h.e)
	}
}
