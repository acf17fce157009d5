package driver

import "context"

// Pinger answers whether the store can be reached. Without it dlock.Ping returns errors.ErrUnsupported.
type Pinger interface {
	Backend

	// Ping makes one round trip to the store that needs no lock and changes nothing.
	Ping(ctx context.Context) error
}

// Doctor looks at the store's configuration for what could break the promises of a lock. Without it nothing is said.
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
