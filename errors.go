package dlock

import (
	"errors"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

var (
	// ErrConfigNil is returned by Open, OpenConfig and New for a nil *Config.
	ErrConfigNil = errors.New("dlock: config is nil")

	// ErrInvalidConfig is returned for a Config that contradicts itself or has a value out of range. The text names the field
	// and what is accepted.
	ErrInvalidConfig = errors.New("dlock: invalid config")

	// ErrConnectorNil is returned by New for a nil Backend, and so for a driver's New that was given a nil client.
	ErrConnectorNil = errors.New("dlock: backend is nil")

	// ErrUnknownDriver is returned by Open and OpenConfig for a driver name that nobody registered.
	ErrUnknownDriver = driver.ErrUnknownDriver

	// ErrInvalidDSN is returned by Open and OpenConfig for a DSN that the driver cannot use.
	ErrInvalidDSN = driver.ErrInvalidDSN

	// ErrInvalidKey is returned for a key that is empty or longer than MaxKeyLen.
	ErrInvalidKey = errors.New("dlock: invalid key")

	// ErrInvalidTTL is returned for a TTL below MinTTL, above MaxTTL or too short for the Config's RenewInterval.
	ErrInvalidTTL = errors.New("dlock: invalid TTL")

	// ErrLockNotHeld is returned by Unlock for what is not held: never locked, or unlocked already.
	ErrLockNotHeld = errors.New("dlock: lock not held")

	// ErrLockAlreadyHeld is returned for locking a key that this Locker holds, or is acquiring, by key, and for locking a key again under
	// the context of its own hold. With Config.Reentrant such calls count instead.
	ErrLockAlreadyHeld = errors.New("dlock: lock already held")

	// ErrOwnershipLost says that a hold ended before it was unlocked: the store gave the key up, or could not be asked in time. What was
	// done since then was not protected by the lock.
	ErrOwnershipLost = errors.New("dlock: ownership lost")

	// ErrNotAcquired is returned by Lock and Acquire that gave up while another owner had the key. It is joined with ctx's error
	// when ctx ended the wait. An error without it means that the backend was slow or failing.
	ErrNotAcquired = errors.New("dlock: not acquired")

	// ErrClosed is returned by every method of a Locker that was closed, and by calls that Close interrupted.
	ErrClosed = errors.New("dlock: locker closed")
)

// maxKeyShown is how much of a key an error's text shows.
const maxKeyShown = 200

// Error is the type of the errors that Lockers return: what was tried, where, on which key, and why it failed. Match the reason with
// errors.Is.
type Error struct {
	Op     string // "open", "lock", "trylock", "unlock", "extend", "hold", "ping" or "close"
	Driver string // as registered; empty when it is not known
	Key    string // as the caller gave it; empty for "open", "ping" and "close"
	Err    error
}

// Error returns one line without a secret or a token.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("dlock: " + e.Op)
	if e.Key != "" {
		b.WriteString(" " + strconv.Quote(e.Key[:min(len(e.Key), maxKeyShown)]))
	}
	if e.Driver != "" {
		b.WriteString(" (" + e.Driver + ")")
	}
	b.WriteString(": " + strings.TrimPrefix(e.Err.Error(), "dlock: "))
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// because is a sentinel with the reason for it, on one line; it matches both.
type because struct{ what, why error }

func (e because) Error() string   { return e.what.Error() + ": " + e.why.Error() }
func (e because) Unwrap() []error { return []error{e.what, e.why} }

// detail is a sentinel with words behind it.
type detail struct {
	what  error
	words string
}

func (e detail) Error() string { return e.what.Error() + ": " + e.words }
func (e detail) Unwrap() error { return e.what }
