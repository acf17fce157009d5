package driver

import "errors"

var (
	// ErrHeld is Acquire's answer when the store said that another token holds the key, or is the
	// first in its queue. It must not be returned for anything else: not for a timeout, not for a
	// lost connection, not when the reply could not be read, and not when the holder is c.Token
	// itself.
	ErrHeld = errors.New("held by another owner")

	// ErrNotOwner is the answer of Renew, Release and Break when the store said that the key is
	// free or another's. It must not be returned when the store could not be asked, nor by Release
	// while the token may still arrive there: see [Backend.Release].
	ErrNotOwner = errors.New("not the owner")

	// ErrPermanent marks an error that trying again cannot mend: authentication, permission, a key
	// of the wrong type, a configuration that the store refuses. It also says that the request was
	// not applied; of a Wait that called queued it says so of the last request alone. It must not
	// be returned for anything that passes: a timeout, a failover, a server that is loading or
	// full. See [Permanent].
	ErrPermanent = errors.New("permanent failure")

	// ErrUnknownDriver is [Open]'s answer for a name that nobody registered. Drivers do not return
	// it.
	ErrUnknownDriver = errors.New("unknown driver")

	// ErrInvalidDSN is the answer of a Driver's Open for a DSN that it cannot use. It must not be
	// returned for a store that cannot be reached.
	ErrInvalidDSN = errors.New("invalid DSN")
)

// Permanent marks err as one that trying again cannot mend. The result has err's text and matches
// both err and [ErrPermanent]. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type permanentError struct{ error }

func (e permanentError) Unwrap() []error { return []error{e.error, ErrPermanent} }
