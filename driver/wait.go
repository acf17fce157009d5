package driver

import "context"

// Waiter is a Backend that waits in the store. Without it the engine polls Acquire.
type Waiter interface {
	Backend

	// Wait is Acquire that queues: one request acquires or enqueues, and grants follow the order in
	// which the requests reached the store. Lock calls Wait, TryLock calls Acquire. Wait never
	// answers ErrHeld.
	//
	//   - A Grant from Wait has Start set: the call may have been made long before the store began
	//     to count.
	//   - A second Wait for a token that is queued keeps its place. For a token that holds the key
	//     it is granted at once, as by Acquire.
	//   - Acquire does not overtake the queue: while a live waiter is first in line, a free key
	//     answers ErrHeld to all others, also when its holder expired or was deleted.
	//   - The driver notices by itself when a message is lost and when a holder expires or
	//     vanishes.
	//   - Nobody else limits the time that Wait takes: a request of its own that is not answered
	//     must become an error within seconds.
	//   - Any number of Waits may be under way, for one key or many. They take no connection from
	//     the other calls of the client: renewals are made in time meanwhile.
	//   - A waiter whose process vanished is passed over.
	//   - Each time the store has said that another owner has the key, Wait calls queued, on its
	//     own goroutine, and goes on waiting. Whoever then gives up knows that the key was busy and
	//     not the store slow. queued returns at once and is never nil.
	//
	// When ctx ends, Wait returns ctx's error without cleaning up. The engine then calls Release on
	// a context of its own, which takes the token out of the queue, or passes the lock on if the
	// token had just been given it.
	Wait(ctx context.Context, c Claim, queued func()) (Grant, error)
}
