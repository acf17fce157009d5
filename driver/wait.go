package driver

import "context"

// Waiter is a Backend that waits in the store. Without it the engine polls Acquire.
type Waiter interface {
	Backend

	// Wait is Acquire that queues: one request acquires or enqueues, and grants follow the order in which the requests
	// reached the store. Lock calls Wait, TryLock calls Acquire. Wait never answers ErrHeld alone.
	//
	//   - A Grant from Wait has Start set: the call may have been made long before the store began to count.
	//   - A second Wait for a token that is queued keeps its place.
	//   - Acquire does not overtake the queue: while a live waiter is first in line, a free key answers ErrHeld.
	//   - The driver notices by itself when a message is lost and when a holder expires or vanishes. Nobody else limits the time that Wait
	//     takes: a request of its own that is not answered must become an error within seconds.
	//   - A waiter whose process vanished is passed over.
	//   - When the store has said that another owner has the key, Wait calls [Queued], and goes on waiting.
	//
	// When ctx ends, Wait returns ctx's error without cleaning up. The engine then calls Release on a context of its own, which
	// takes the token out of the queue, or passes the lock on if the token had just been given it.
	Wait(ctx context.Context, c Claim) (Grant, error)
}

type queuedKey struct{}

// Queued tells whoever called Wait with ctx that the store has answered: another owner has the key, and the claim waits for it. Whoever
// then gives up knows that the key was busy, and not the store slow. It does nothing if nobody wants to know.
func Queued(ctx context.Context) {
	if f, ok := ctx.Value(queuedKey{}).(func()); ok {
		f()
	}
}

// WithQueued returns a ctx to call Wait with. f is called on Wait's goroutine each time that it reports [Queued].
func WithQueued(ctx context.Context, f func()) context.Context { return queuedContext{ctx, f} }

// queuedContext has a value, and unlike one of package context lets its parent's AfterFunc through, which spares a goroutine.
type queuedContext struct {
	context.Context
	queued func()
}

func (c queuedContext) Value(key any) any {
	if key == (queuedKey{}) {
		return c.queued
	}
	return c.Context.Value(key)
}

// AfterFunc is what [context.AfterFunc] looks for.
func (c queuedContext) AfterFunc(f func()) (stop func() bool) {
	if a, ok := c.Context.(interface{ AfterFunc(func()) func() bool }); ok {
		return a.AfterFunc(f)
	}
	return context.AfterFunc(c.Context, f)
}
