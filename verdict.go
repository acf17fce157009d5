package dlock

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver"
)

// verdict is what kind of error a driver returned. It is found once, when the call has returned: errors have methods of their own, which
// must not be called under the mutex.
type verdict uint8

const (
	verdictOK verdict = iota
	verdictHeld
	verdictNotOwner
	verdictUnsupported
	verdictPermanent
	verdictContext // a context or a time limit ended the call; the store has said nothing
	verdictOther
)

func verdictOf(err error) verdict {
	switch {
	case err == nil:
		return verdictOK
	case errors.Is(err, driver.ErrHeld):
		return verdictHeld
	case errors.Is(err, driver.ErrNotOwner):
		return verdictNotOwner
	case errors.Is(err, errors.ErrUnsupported):
		return verdictUnsupported
	case errors.Is(err, driver.ErrPermanent):
		return verdictPermanent
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return verdictContext
	default:
		return verdictOther
	}
}

// namesCause reports whether err, which matches the error of a context, has another one beside it.
func namesCause(err error) bool {
	for err != nil {
		if _, several := err.(interface{ Unwrap() []error }); several {
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}

// trouble is the most telling of several errors: what the store said is not replaced by the end of a later attempt that it did not answer.
type trouble struct{ err error }

func (t *trouble) note(err error, v verdict) {
	if t.err == nil || v != verdictContext {
		t.err = err
	}
}
