package dlock

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// Context returns a copy of parent that ends with the hold, with the reason as its cause: at a loss, at Unlock, at the Locker's Close.
// Its Err looks at the clock, so that after a pause of the process it is right at once, before any timer has fired. It looks at
// the clocks of all holds that parent comes from, too.
//
// The copy carries the hold: [Fence] reads its fence, and locking the same key again under it re-enters if the Locker is Reentrant, and is
// ErrLockAlreadyHeld at once otherwise, never a deadlock.
//
// Once Done was asked for, directly or by deriving from it, the copy takes memory until parent or the hold ends. The copy of a nil
// Lease has ended, with ErrLockNotHeld as its cause.
func (x *Lease) Context(parent context.Context) context.Context {
	checkContext(parent)
	if x == nil {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(ErrLockNotHeld)
		return ctx
	}
	return &leaseContext{Context: parent, lease: x, outer: markOf(parent)}
}

// leaseContext ends with a lease. It is also the mark by which a hold is found in a context.
//
// What ends is made when somebody asks for Done; who never does looks at the lease with Err, and nothing has to be kept. The parent may be anybody's
// code, so it is asked on no goroutine but its user's, and never under a mutex of ours.
type leaseContext struct {
	context.Context // the parent
	lease           *Lease
	outer           *leaseContext // the mark in the parent

	mu    sync.Mutex
	inner atomic.Pointer[innerContext]
}

// innerContext is what package context knows of a leaseContext. It is in two parts, so that ending it, and all that was derived from it,
// calls nothing of the parent's. That is called by letGo.
type innerContext struct {
	context.Context // child of a child of the parent
	end             context.CancelCauseFunc
	letGo           context.CancelFunc // takes the child off the parent
	forget          func() bool        // takes back that the lease forgets it at the parent's end
	calm            bool               // letting go calls nobody's code
}

// Done is closed when the hold or the parent has ended.
func (c *leaseContext) Done() <-chan struct{} { return c.made().Done() }

// Err is nil only while the hold can be relied on, and those that the parent comes from.
func (c *leaseContext) Err() error {
	for m := c; m != nil; m = m.outer {
		if err := m.lease.Err(); err != nil {
			// Returns when all that was derived by package context has ended too, also if another goroutine is at it.
			m.finish(err)
		}
	}
	in := c.inner.Load()
	if in != nil && in.Err() != nil {
		return in.Err()
	}
	err, reason := c.Context.Err(), c.lease.Err()
	switch {
	case err == nil && reason != nil:
		in = c.made() // nobody has asked for Done yet; what Err was it stays, whatever becomes of the parent
		in.end(reason)
		return in.Err()
	case err != nil && in != nil:
		in.end(context.Cause(c.Context)) // a parent of another kind tells its children later
		return in.Err()
	}
	return err
}

// Value of the mark is the context itself. Package context finds the cause with it.
func (c *leaseContext) Value(key any) any {
	if key == (markKey{}) {
		return c
	}
	in := c.inner.Load()
	if in == nil && isClosed(c.lease.done) {
		in = c.made()
	}
	if in == nil {
		return c.Context.Value(key)
	}
	return in.Value(key)
}

// made returns what ends, and makes it at the first time.
func (c *leaseContext) made() *innerContext {
	if in := c.inner.Load(); in != nil {
		return in
	}
	in := newInner(c.Context)
	c.mu.Lock()
	if old := c.inner.Load(); old != nil {
		c.mu.Unlock()
		in.letGo()
		return old
	}
	c.inner.Store(in)
	c.mu.Unlock()
	if reason := c.lease.register(c, in); reason != nil {
		c.finish(reason)
		in.free()
	}
	return in
}

// calmTypes are the contexts that answer package context by themselves, without asking their parents.
var calmTypes = func() map[reflect.Type]bool {
	a, cancelA := context.WithCancel(context.Background())
	defer cancelA()
	b, cancelB := context.WithTimeout(context.Background(), time.Hour)
	defer cancelB()
	return map[reflect.Type]bool{reflect.TypeOf(a): true, reflect.TypeOf(b): true, reflect.TypeFor[*leaseContext](): true}
}()

func newInner(parent context.Context) *innerContext {
	in := &innerContext{calm: calmTypes[reflect.TypeOf(parent)]}
	if parent.Done() == nil {
		in.calm, in.letGo = true, func() {}
		in.Context, in.end = context.WithCancelCause(endless{parent})
		return in
	}
	outside, letGo := context.WithCancel(parent)
	in.letGo = letGo
	in.Context, in.end = context.WithCancelCause(outside)
	return in
}

// endless is a context that never ends, and is not asked again whether it does.
type endless struct{ context.Context }

func (endless) Done() <-chan struct{} { return nil }

// finish ends what was derived from c.
func (c *leaseContext) finish(reason error) {
	if in := c.inner.Load(); in != nil {
		in.end(reason)
	}
}

// free takes an ended context off its parent.
func (in *innerContext) free() {
	if in.calm {
		in.letGo()
		return
	}
	go harmless(in.letGo)
}

// register has x end c. It returns why x has ended if it has.
func (x *Lease) register(c *leaseContext, in *innerContext) (reason error) {
	unlock := x.guard()
	defer unlock()
	if x.err != nil {
		return x.err
	}
	if x.ends == nil {
		x.ends = map[*leaseContext]struct{}{}
	}
	x.ends[c] = struct{}{}
	in.forget = context.AfterFunc(in.Context, func() { // in is not anybody's code
		unlock := x.guard()
		delete(x.ends, c)
		unlock()
		harmless(in.letGo)
	})
	return nil
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

// ended is a context to be ended when the mutex is free.
type ended struct {
	c      *leaseContext
	reason error
}

func (e ended) run() {
	in := e.c.inner.Load()
	in.forget()
	in.end(e.reason)
	in.free()
}

// harmless calls code of the application where nobody could be told of its panic.
func harmless(f func()) {
	defer func() { _ = recover() }()
	f()
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
