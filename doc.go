// Package dlock is database/sql for distributed locks: one small interface, one engine that does the hard parts, and drivers that an
// application picks by name.
//
// # First steps
//
// [Open] a [Locker] with the name of a driver, whose package is imported for its side effect, and give [Do] a key and a function. Do
// waits for the lock, calls the function while it is held, and releases it afterwards, also when the function panics. The context that
// the function gets ends the moment the lock can no longer be relied on, so that work which honours its context stops by itself.
//
// An application that has a client of its own gives it to [New] instead, and one that lets a file decide uses [OpenConfig].
//
// # By key and by lease
//
// There are two ways to hold a lock:
//
//   - By key, with Lock, TryLock and Unlock: for one owner per process, such as a leader or a cron job. A second Lock of the key is
//     [ErrLockAlreadyHeld], or counts if Config.Reentrant is set. [LeaseOf] shows when such a hold is lost.
//   - By lease, with [Do], [Acquire] and [TryAcquire]: for everything concurrent, per request or per job. Every call is an owner of its own, and
//     the goroutines of one Locker get their turn in the order in which they came.
//
// The two exclude each other: Lock waits for a lease of the same key, Acquire for a hold by key.
//
// # What can be relied on
//
// Every hold has a deadline, [Lease.ValidUntil], which renewals move: the TTL counted from just before the last confirmed request was sent, less
// a margin of one percent or 2 ms, whichever is more.
//
//   - Until the deadline nobody else holds the key, as long as the store keeps its data and clock rates agree within one percent.
//   - A loss is told at the deadline at the latest, without any network: [Lease.Done] is closed, [Lease.Held] is false, and the context
//     of Do has ended. It is never told merely because one renewal failed.
//   - After the deadline only the fence protects. [Fence] returns a number that rises with every grant of a key: a resource that refuses a fence
//     smaller than the largest it has seen is safe even from a holder that was paused and woke up late.
//   - A context bounds a call, never a hold. Calls return soon after their context has ended, whatever the network does, and what
//     they may have left in the store is cleaned up.
//   - TryLock's false without an error means that another owner has the key, for certain. Trouble with the store is an error.
//
// The whole contract, with its arithmetic and what it does not survive, is in [docs/guarantees.md].
//
// # Errors
//
// Errors of a Locker are of type [*Error]. Match the reason with errors.Is: [ErrNotAcquired] for a wait that was given up while another owner had
// the key, [ErrOwnershipLost] for a hold that ended before it was unlocked, [ErrClosed], and so on. A wait that its context ended, and that is not
// ErrNotAcquired, failed because the store was slow or in trouble. No error contains a password or a token.
//
// # Further reading
//
// How the engine works is in [docs/design.md]; logs, metrics and what to do about a lost lock in [docs/operations.md]. Package driver is for those
// who write a driver, package dlocktest proves one and has a Locker that loses its locks on demand, and package mocks is for those who want
// expectations.
//
// [docs/guarantees.md]: https://github.com/dlock-go/dlock/blob/main/docs/guarantees.md
// [docs/design.md]: https://github.com/dlock-go/dlock/blob/main/docs/design.md
// [docs/operations.md]: https://github.com/dlock-go/dlock/blob/main/docs/operations.md
package dlock
