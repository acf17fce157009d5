package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// permanent are the beginnings of the server's answers that trying again does not change.
var permanent = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "ERR The user executing the script ", "WRONGTYPE",
	"ERR unknown command", "ERR invalid password", "ERR DB index is out of range", "ERR Client sent AUTH",
}

// classify names the operation that failed, and marks what cannot be mended. The server's answer stays in the chain.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("redis: %s: %w", op, err)
	var answer redis.Error
	if !errors.As(err, &answer) {
		return wrapped
	}
	text := answer.Error()
	for _, p := range permanent {
		if strings.HasPrefix(text, p) || strings.Contains(text, "script: ") && strings.Contains(text, p) {
			return driver.Permanent(wrapped)
		}
	}
	return wrapped
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
	var answer redis.Error
	if end == nil || errors.Is(err, end) || errors.As(err, &answer) {
		return err
	}
	return fmt.Errorf("%w: %w", end, err)
}

// unexpected turns a reply that no script gives into an error.
func unexpected(op string, reply any) error {
	return fmt.Errorf("redis: %s: unexpected reply of type %T", op, reply)
}
