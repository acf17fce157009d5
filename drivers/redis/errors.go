package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// permanent are the beginnings of the server's answers that trying again does not change.
var permanent = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "The user executing the script ", "Unknown Redis command called from ",
	"unknown command", "invalid password", "DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode", "Client sent AUTH",
	"Client names cannot contain ",
}

// notApplied is what the scripts put behind an error when nothing is left of what they wrote.
const notApplied = " (not applied)"

// named says which operation failed. The server's answer stays in the chain.
func named(op string, err error) error { return fmt.Errorf("redis: %s: %w", op, discreet(err)) }

// classify is named that also marks what cannot be mended, for an operation before which nothing was applied.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	err = named(op, err)
	if refused(err) || errors.Is(err, redis.ErrClosed) { // nothing is sent by a client that its owner has closed
		return driver.Permanent(err)
	}
	return err
}

// echo is where a server that does not know a command begins to repeat its arguments, which may be a password or a token.
const echo = "with args beginning with:"

// discreet cuts off what a server repeats of a command. Nothing that has the whole text stays in the chain.
func discreet(err error) error {
	if !strings.Contains(err.Error(), echo) {
		return err
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		return answer(beforeEcho(reply.Error()))
	}
	return errors.New(beforeEcho(err.Error()))
}

func beforeEcho(text string) string {
	text, _, _ = strings.Cut(text, echo)
	return strings.TrimRight(text, ", ")
}

// answer is what is left of a server's answer.
type answer string

func (a answer) Error() string { return string(a) }

// RedisError implements [redis.Error].
func (answer) RedisError() {}

// refused reports whether err is an answer of the server that trying again does not change, to a request that was not applied. What a script was refused is such
// an answer only if the script says so: it may have written before. Redis 7 puts the place in the script behind the error, and Redis 6.2 in front of it.
func refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text, undone := strings.CutSuffix(reply.Error(), notApplied)
	inside := strings.Contains(text, "@user_script:")
	if inside && !undone {
		return false
	}
	text = strings.TrimPrefix(text, "ERR ")
	return slices.ContainsFunc(permanent, func(p string) bool { return strings.HasPrefix(text, p) || inside && strings.Contains(text, p) })
}

// ended adds the context's error to one that came of its end: what the client reports is a timeout, or a connection that was closed.
func ended(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	end := ctx.Err()
	if at, ok := ctx.Deadline(); ok && end == nil && !time.Now().Before(at) {
		end = context.DeadlineExceeded
	}
	var reply redis.Error
	if end == nil || errors.Is(err, end) || errors.As(err, &reply) {
		return err
	}
	return fmt.Errorf("%w: %w", end, err)
}

// unexpected turns a reply that no script gives into an error.
func unexpected(op string, reply any) error {
	return fmt.Errorf("redis: %s: unexpected reply of type %T", op, reply)
}
