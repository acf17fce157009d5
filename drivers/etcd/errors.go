package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
)

var (
	errClosed = errors.New("etcd: the backend is closed")

	// errLeaseLost is what those are told who are just acquiring on a lease that has ended.
	errLeaseLost = errors.New("the lease has ended")

	// errLeft is what a Wait is told whose key is gone.
	errLeft = errors.New("the claim's key was removed, or its lease has ended, while it waited")

	// errNoAnswer says that none of the members that were asked has answered in time.
	errNoAnswer = fmt.Errorf("no member answers: %w", context.DeadlineExceeded)

	// errChanged says that a key changed between a look at it and the write, or that one is in the way that is about to be removed.
	errChanged = errors.New("the key is just being changed")
)

// permanent are the server's answers that trying again does not change.
var permanent = []error{
	rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrRoleNotFound,
	rpctypes.ErrRequestTooLarge, rpctypes.ErrInvalidAuthMgmt, rpctypes.ErrPermissionNotGranted, rpctypes.ErrRoleNotGranted,
}

// fail names the operation that failed, and marks what cannot be mended. The server's answer stays in the chain.
func (b *Backend) fail(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, errClosed):
		return err
	case b.ctx.Err() != nil:
		return errClosed
	}
	wrapped := fmt.Errorf("etcd: %s: %w", op, b.dial.explain(err))
	if isPermanent(err) {
		return driver.Permanent(wrapped)
	}
	return wrapped
}

func isPermanent(err error) bool {
	for _, p := range permanent {
		if errors.Is(err, p) {
			return true
		}
	}
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		return false
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return false
	}
}

func isLeaseNotFound(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }

// isLeaseLost reports whether an attempt failed because its lease ended meanwhile. There is another one to be had.
func isLeaseLost(err error) bool { return isLeaseNotFound(err) || errors.Is(err, errLeaseLost) }

// ended returns ctx's error in place of the status that gRPC makes of it. An answer of the server
// stays, also if ctx has ended meanwhile.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !isAnswer(err) {
		return ctx.Err()
	}
	return err
}

// isAnswer reports whether the server said err.
func isAnswer(err error) bool {
	var answer rpctypes.EtcdError
	return errors.As(err, &answer) && answer.Code() != codes.Canceled && answer.Code() != codes.DeadlineExceeded
}

// telling returns out of two errors the one that says more: an answer of the server rather than
// that there was none.
func telling(x, y error) error {
	if x == nil || y != nil && isAnswer(y) && !isAnswer(x) {
		return y
	}
	return x
}
