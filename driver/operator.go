package driver

import (
	"context"
	"iter"
	"time"
)

// The interfaces of this file are for operators: the engine locks without them.

// Inspector shows who holds what. Without it an operator has to look into the store itself.
type Inspector interface {
	Backend

	// Inspect describes the lock named key as it is in the store. A key that nobody holds gives an
	// Info with Key alone, and Waiters if there are any.
	Inspect(ctx context.Context, key string) (Info, error)

	// List yields every held lock whose key begins with prefix. Locks that come or go meanwhile may
	// be missed. An error ends the sequence.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
}

// Info describes a lock for people. It never contains a token.
type Info struct {
	Key     string        // as in the store, with the application's prefix
	Owner   string        // who holds it; empty when nobody does or the holder did not say
	Fence   uint64        // the present grant's; 0 when nobody holds it or the backend has none
	TTL     time.Duration // what is left of the hold; 0 when nobody has it
	Since   time.Time     // when the present holder got it; zero when the store does not know
	Waiters []string      // the owners who wait, first in line first
}

// Breaker takes a lock from its holder. Without it an operator waits for the TTL to pass.
type Breaker interface {
	Backend

	// Break frees key only while its fence is still fence, so that an operator breaks the holder
	// that was shown and not the next one; otherwise the answer is ErrNotOwner. The lock then goes
	// to whoever is next, as after a Release.
	Break(ctx context.Context, key string, fence uint64) error
}

// Pinger answers whether the store can be reached. Without it dlock.Ping returns
// errors.ErrUnsupported.
type Pinger interface {
	Backend

	// Ping makes one round trip to the store that needs no lock and changes nothing.
	Ping(ctx context.Context) error
}

// Doctor looks at the store's configuration for what could break the promises of a lock. Without
// it nothing is said.
type Doctor interface {
	Backend

	// Diagnose returns what it found, the worst first. An error means that it could not look.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// Finding is one thing that a Doctor noticed.
type Finding struct {
	ID     string // stable, for scripts: "redis-eviction"
	Level  string // "info", "warning" or "error"
	Text   string // what is so
	Advice string // what to do about it; empty when nothing needs doing
}
