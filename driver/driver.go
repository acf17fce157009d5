// Package driver is the contract between dlock's engine and a lock store. It is for people who
// write a driver; people who use locks want package dlock.
//
// # Writing a driver
//
// A driver is small. The engine owns tokens, renewal, retries, loss detection, cancellation and
// telemetry. A driver turns three operations into three atomic requests to its store, and registers
// itself:
//
//	func init() { driver.Register("mystore", Driver{}) }
//
// What a driver must do:
//
//   - Implement [Driver]: Open parses the DSN and touches no network. [ParseDSN] does the strict
//     parsing.
//   - Implement [Backend]: [Backend.Acquire], [Backend.Renew] and [Backend.Release] are each atomic
//     in the store, and each checks the claim's key and token there. Reading first and writing
//     afterwards is not atomic.
//   - Answer [ErrHeld] and [ErrNotOwner] only when the store said so. Trouble is an error of its
//     own, never "held".
//   - Be safe for concurrent use, and return soon after ctx ends.
//   - Keep keys apart: two different keys share no state, whatever bytes they contain.
//   - Never round a TTL down. Round up and say so in [Grant.TTL].
//   - Keep tokens and passwords out of every error.
//   - Write nothing after Close has returned.
//
// What a driver should do:
//
//   - Give fences ([Grant.Fence]): numbers that rise strictly with every grant of a key and stay
//     the same while it is held.
//   - Implement [Waiter] where the store can tell a client that a lock became free. Without it the
//     engine polls.
//   - Implement [BatchRenewer] where one request can renew many locks.
//   - Mark errors that no retry can mend with [Permanent].
//
// What a driver may do: [Inspector], [Breaker], [Pinger], [Doctor], [LossWatcher], [CallModer].
// Each optional interface says what happens without it. A method of [Waiter], [BatchRenewer],
// [Inspector], [Breaker], [Pinger] or [Doctor] may return an error matching
// [errors.ErrUnsupported]: the engine then acts as if the interface were absent.
//
// What a driver must not do: retry, renew by itself, write logs, start work that outlives Close, or
// import package dlock. (A Waiter looks after its own queue; that is not a retry.)
//
// Package drivers/memory is a complete driver to read. Package dlocktest proves these rules for any
// driver, and docs/writing-a-driver.md walks through one.
//
// # Words
//
//   - A token holds a key while the store would refuse the key to every other token.
//   - A hold expires when its TTL has passed without a renewal, whether or not anybody looked.
//   - The outcome of a request is unknown when its reply did not arrive. The request may have been
//     applied, may be applied later, or never. Every error that matches none of ErrHeld,
//     ErrNotOwner and ErrPermanent is taken for that.
//
// # Sizes and bytes
//
// Keys, tokens and owners are bytes. They are stored and compared as bytes: no character set, no
// collation, no case folding, no trimming.
//
//   - A key has 1 to 1,536 bytes of any value, NUL and invalid UTF-8 included: a prefix of at most
//     512 and a name of at most 1,024. A store with shorter or textual names encodes keys so that
//     two never become one; a cryptographic hash does that, cutting does not. That goes for the
//     names of channels too.
//   - A token has 32 bytes. They are lower-case hexadecimal digits, so that a store of text can
//     keep them, and mean nothing: a driver compares all of them and does not decode them.
//   - An owner has 0 to 256 bytes. The engine's are printable UTF-8. It is shown to people and
//     decides nothing: many claims may have the same.
//   - A TTL is from 10ms to 24h, in nanoseconds.
//
// # Time
//
//   - The ctx of Acquire, Renew, RenewBatch, Release and Ping has a deadline, so a driver needs no
//     timeout of its own there. Acquire has the TTL, but at most 5s; Release has 1s; renewals have
//     a fraction of the TTL. Wait has the caller's deadline, if any, and limits its own requests.
//   - "Soon after ctx ends" means within 50ms. After that the engine leaves the call behind and
//     takes its outcome for unknown. When 256 calls have been left behind and not returned, the
//     next ones wait.
//   - Start may be as early as the driver likes, and the holder has that much less: the engine
//     relies on the hold until Start + TTL, less a hundredth of the TTL and at least 2ms. When that
//     has passed before the grant arrives, the engine releases it, and Lock tries again with
//     another token. A driver whose holds share a session or a lease renews that first when less
//     than half of the TTL is left.
//   - Start is a result of [time.Now] in this process, with its monotonic reading, and never a time
//     that the store told: clocks differ, and are set.
//   - One clock decides when a hold expires, and it is the store's: send it the TTL, not an end
//     that a client computed.
//   - A store that ends holds by looking for those whose TTL has passed looks once per second or
//     more often.
//   - A waiter that vanished is passed over when the TTL of its claim has passed since the store
//     last heard of it, at the latest. Until then it may keep the key from those behind it. So a
//     driver whose store does not notice by itself lets each waiter report about every third of its
//     TTL.
//
// # What a driver may send
//
//   - Open sends nothing. What a store needs before its first lock, a table, a script, a function,
//     may be created by the first call that finds it missing, within that call's ctx. Many clients
//     do that at the same moment: creating what exists is no error. Refused for want of a right, it
//     is [Permanent].
//   - A driver may send a request again when the store has said that it did not apply it: the table
//     or script was missing, another server is in charge, the transaction was rolled back in favour
//     of another one. It does so a few times at most, within ctx, and with the same token.
//   - When no reply came it leaves the question to the engine, which asks by the same token: the
//     request may have been applied. A driver that asks another server by itself all the same also
//     removes what the first request makes when it arrives late.
//   - Close may say good-bye: end a session, revoke a lease, leave the queues. It concerns this
//     client alone. Holds that the engine could not release may end by it. Its failure is no error
//     that anybody can act on.
//   - Close has no ctx and limits itself. The engine waits 400ms for it; then Locker.Close returns
//     an error and leaves it behind. So a good-bye has 300ms or less, and a store that does not
//     answer is left without.
package driver

import (
	"context"
	"time"
)

// Driver opens backends of one kind. It is what [Register] takes.
type Driver interface {
	// Open returns a Backend for dsn. It parses and checks, and opens no connection: a store that
	// is down is found by the first request. A DSN it cannot use is an error matching
	// [ErrInvalidDSN] which names the part that is wrong and what would be right, and which shows
	// no secret.
	Open(dsn string) (Backend, error)
}

// Claim says who wants what. The engine makes one per acquisition and uses it for everything that
// follows.
type Claim struct {
	// Key is the lock's name in the store, with the application's prefix: 1 to 1,536 bytes of any
	// value.
	Key string

	// Token is the secret that tells this acquisition from all others: 32 lower-case hexadecimal
	// digits, to be compared as bytes. It gives a right to Key and to no other key. It is never
	// shown.
	Token string

	// Owner says who asks, for people who look at the store. Printable text of at most 256 bytes,
	// perhaps empty.
	Owner string

	// TTL is how long the hold lasts without a renewal.
	TTL time.Duration
}

// Grant is the store's answer to a claim that it accepted.
type Grant struct {
	// Fence rises strictly over successive grants of a key, whoever gets them, and is the same for
	// every renewal of one grant. 0: this backend has none.
	Fence uint64

	// Fences is how many consecutive fences, from Fence on, are reserved for this grant: the next
	// grant's Fence is at least Fence + Fences. 0 and 1 both mean just the one.
	Fences int

	// TTL is what the store really set, at least what the claim asked for. 0: exactly that. It is
	// never a remaining time that the store tells, which a stepped clock makes wrong: see Renew.
	TTL time.Duration

	// Start is an instant, with a monotonic reading of this process' clock, from which TTL may
	// safely be counted: no later than the moment the store began to count. Earlier is safe, and
	// shortens the hold. Zero: the moment the engine made the call. A Waiter must set it.
	Start time.Time
}

// Backend is one client of a lock store. All methods are safe for concurrent use and return soon
// after ctx ends; the engine stops waiting for one that does not. An error tells nothing about what
// the store did, except for the sentinels named here.
type Backend interface {
	// Acquire makes one attempt to get c.Key for c.Token. It does not wait for the key.
	//
	//   - If nobody holds the key, c.Token does from now on, for c.TTL.
	//   - If c.Token holds the key already, c.TTL is counted anew, unless more is left: an attempt
	//     that comes late does no harm. The Grant has the fence of the first time, and its TTL is
	//     that of a Renew.
	//   - If another token holds it, the answer is ErrHeld and nothing is changed in the store.
	//   - If c.Token is waiting in the store's queue (see Waiter) and gets the key here, it leaves
	//     the queue.
	Acquire(ctx context.Context, c Claim) (Grant, error)

	// Renew makes the hold of c.Token last for at least c.TTL from now.
	//
	//   - It never creates a key: when c.Token does not hold c.Key the answer is ErrNotOwner and
	//     nothing is changed. A token that only waits does not hold.
	//   - It never shortens: a hold with more than c.TTL left keeps what it has. So a renewal that
	//     comes late does no harm.
	//   - c.TTL may differ from the TTL the key was acquired with.
	//   - The answer comes from an operation that began after the call, unless Grant.Start says
	//     otherwise.
	//   - Grant.TTL is c.TTL, rounded up where the store is coarser, even if more is left. Or it is
	//     the TTL of an earlier grant, together with the Start of that grant.
	//   - A fence in the answer that is not the one of the grant tells the engine that the hold is
	//     lost; 0 tells nothing.
	Renew(ctx context.Context, c Claim) (Grant, error)

	// Release removes every trace of c.Token from c.Key: the hold, or its place in the queue.
	//
	//   - nil: the store confirmed that it removed the token.
	//   - ErrNotOwner: the token was not there. Nothing was changed, another's hold least of all.
	//   - Never ErrNotOwner while an earlier Acquire or Wait of the token by this Backend has no
	//     answer and may still reach the store, as one that was given up and travels on another
	//     connection may. It would get the key after all, and nobody would know. A driver that
	//     cannot tell returns any other error, and the engine asks again.
	//   - A hold that is removed goes to the first one in the queue, if the store has a queue.
	//
	// c.TTL has no meaning here.
	Release(ctx context.Context, c Claim) error

	// Close ends this client. It releases no locks; the engine has done that. Calls that are under
	// way return an error, and nothing is written to the store once Close has returned. A client
	// that was handed to the driver from outside stays open.
	//
	// What Close itself sends, if anything, takes 300ms or less in all. A second Close does no
	// harm.
	Close() error
}
