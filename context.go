package dlock

import (
	"context"
	"time"
)

// Context returns a copy of parent that ends with the hold, with the reason as its cause: at a loss, at Unlock, at the Locker's Close.
// Its Err looks at the clock, so that after a pause of the process it is right at once, before any timer has fired.
//
// The copy carries the hold: [Fence] reads its fence, and locking the same key again under it re-enters if the Locker is Reentrant, and is
// ErrLockAlreadyHeld at once otherwise, never a deadlock.
func (x *Lease) Context(parent context.Context) context.Context {
	checkContext(parent)
	c := &leaseContext{lease: x, outer: markOf(parent)}
	c.Context, c.cancel = context.WithCancelCause(parent)
	unlock := x.guard()
	defer unlock()
	if x.err != nil {
		c.cancel(x.err)
		return c
	}
	if x.ends == nil {
		x.ends = map[*leaseContext]struct{}{}
	}
	x.ends[c] = struct{}{}
	c.forget = context.AfterFunc(c.Context, func() {
		unlock := x.guard()
		defer unlock()
		delete(x.ends, c)
	})
	return c
}

// guard locks what guards x and returns the way to unlock it.
func (x *Lease) guard() (unlock func()) {
	if x.h == nil {
		x.foreign.mu.Lock()
		return x.foreign.mu.Unlock
	}
	x.h.l.mu.Lock()
	x.h.l.leaseErr(x, time.Now()) //nolint:errcheck // called for what it notices
	return x.h.l.unlock
}

// leaseContext ends with a lease. It is also the mark by which a hold is found in a context.
type leaseContext struct {
	context.Context // parent with a cancel of its own
	cancel          context.CancelCauseFunc
	forget          func() bool // undoes the registration for the parent's end
	lease           *Lease
	outer           *leaseContext // the mark in parent
}

// Err is nil only while the hold can be relied on.
func (c *leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	for m := c; m != nil; m = m.outer {
		if m.lease.Err() != nil {
			<-m.Done() // closed by the end of that lease, which has happened
		}
	}
	return c.Context.Err()
}

func (c *leaseContext) Value(key any) any {
	if key == (markKey{}) {
		return c
	}
	return c.Context.Value(key)
}

type markKey struct{}

func markOf(ctx context.Context) *leaseContext {
	m, _ := ctx.Value(markKey{}).(*leaseContext)
	return m
}

// heldIn returns the lease of key, of this Locker, that a context with mark comes from, if it is still held.
func (l *locker) heldIn(mark *leaseContext, key string) *Lease {
	for m := mark; m != nil; m = m.outer {
		if h := m.lease.h; h != nil && h.l == l && h.e.key == key && l.leaseErr(m.lease, time.Now()) == nil {
			return m.lease
		}
	}
	return nil
}
