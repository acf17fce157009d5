package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// releaseLimit is the longest that one attempt to release may take.
const releaseLimit = time.Second

var (
	// errReleased is why a lease ended that was unlocked.
	errReleased error = detail{ErrLockNotHeld, "it was unlocked"}

	// errUnsure is what Unlock can say when an attempt failed and the next one found nothing to release.
	errUnsure = errors.New("the outcome is not known: an attempt failed, and the next one found that the lock was gone")
)

// unlockKey is Locker.Unlock.
func (l *locker) unlockKey(ctx context.Context, key string) error {
	x, ok := l.leaseOf(key)
	switch {
	case isClosed(l.closing):
		return l.fail("unlock", key, ErrClosed)
	case !ok:
		return l.fail("unlock", key, ErrLockNotHeld)
	}
	return l.unlockLease(ctx, x)
}

// unlockCounted takes one Lock off the hold by key if x is that. It reports whether others are left.
func (l *locker) unlockCounted(x *Lease) (more bool) {
	e := l.keys[x.h.e.key]
	if e == nil || e.byKey.lease != x {
		return false
	}
	if e.byKey.count--; e.byKey.count > 0 {
		return true
	}
	e.byKey = keyHold{}
	l.tidy(e)
	return false
}

// unlockLease is Lease.Unlock, and Locker.Unlock with the lease of the hold by key.
func (l *locker) unlockLease(ctx context.Context, x *Lease) error {
	h := x.h
	l.mu.Lock()
	err := l.leaseErr(x, time.Now())
	more := l.unlockCounted(x)
	switch {
	case more && err == nil:
		l.unlock()
		return nil
	case more:
		err = reasonOf(err)
	case err == errReleased: //nolint:errorlint // no code of a driver's error may run under the mutex
		err = ErrLockNotHeld
	case err != nil && err != ErrClosed: //nolint:errorlint // likewise
		// A renewal that was applied without our knowing would keep the key for its TTL.
		l.cleanLost(h)
		err = reasonOf(err)
	case err == nil && len(h.leases) > 1:
		l.ends = h.dropLease(x, l.ends)
		l.unlock()
		return nil
	}
	if err != nil {
		l.unlock()
		return l.fail("unlock", h.e.key, err)
	}
	l.endHold(h, errReleased)
	l.ops++
	l.unlocking++
	l.unlock()
	err = l.release(ctx, h)
	l.tel.released(h.e.key, h.fence, err)
	if err != nil {
		return l.fail("unlock", h.e.key, err)
	}
	return nil
}

// cleanLost cleans up after a hold whose deadline has passed.
func (l *locker) cleanLost(h *hold) {
	d := h.doubt
	if !h.told {
		d.unsure++
		d.last = latest(d.last, h.lastSent)
	}
	h.doubt, h.told = doubt{}, true // once is enough
	l.sched.remove(&h.task)
	l.clean(h.e.key, h.claim, d, h.maxTTL)
}

// forgotten cleans up after a lost hold that the store does not know any more. An acquire of its token may still be on its way.
func (l *locker) forgotten(h *hold) {
	h.told = true
	l.cleanLost(h)
}

// release takes the token of a hold that is over out of the store, and passes the turn on. What it cannot do now goes on in the background.
func (l *locker) release(ctx context.Context, h *hold) error {
	c, again := &call{kind: callRelease, claim: h.claim}, (*call)(nil)
	gone := false
	defer func() { l.released(h, gone, c, again) }() // also when the driver panics
	err := l.askRelease(ctx, c)
	if err != nil && !errors.Is(err, driver.ErrNotOwner) && ctx.Err() == nil && !isClosed(l.stopped) {
		first := err
		again = &call{kind: callRelease, claim: h.claim}
		switch err = l.askRelease(ctx, again); verdictOf(err) {
		case verdictNotOwner:
			err = because{errUnsure, first}
		case verdictContext:
			err = first // which may tell more
		}
	}
	switch {
	case err == nil, errors.Is(err, errUnsure): // whoever removed the token
		gone = true
	case errors.Is(err, driver.ErrNotOwner):
		gone = true
		err = because{ErrOwnershipLost, err}
	}
	return err
}

// released ends an Unlock, which has sent c and perhaps again: the rest is cleaned up, and it is the next one's turn. Close counts either the Unlock or
// the clean-up.
func (l *locker) released(h *hold, gone bool, c, again *call) {
	l.mu.Lock()
	defer l.unlock()
	d := h.doubt
	if !gone {
		d.unsure++
		d.last = latest(d.last, h.lastSent)
		if d.releases = append(d.releases, c); again != nil {
			d.releases = append(d.releases, again)
		}
	}
	l.clean(h.e.key, h.claim, d, h.maxTTL)
	l.ops--
	l.unlocking--
	l.passTurn(h)
}

func (l *locker) askRelease(ctx context.Context, c *call) error {
	answered, err := l.ask(ctx, c, releaseLimit)
	if answered {
		return c.err
	}
	return err
}

// dropLease ends one of several leases of h.
func (h *hold) dropLease(x *Lease, ends []ended) []ended {
	for i := range h.leases {
		if h.leases[i] == x {
			h.leases = append(h.leases[:i:i], h.leases[i+1:]...)
			break
		}
	}
	return x.end(errReleased, ends)
}
