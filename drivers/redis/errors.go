package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// ended adds the context's error to one that came of its deadline: the client reports that as a timeout of the connection.
func ended(ctx context.Context, err error) error {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// unexpected turns a reply that no script gives into an error.
func unexpected(op string, reply any) error {
	return fmt.Errorf("redis: %s: unexpected reply of type %T", op, reply)
}
