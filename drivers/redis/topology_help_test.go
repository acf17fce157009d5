package redis_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// plainClient is a client for looking at a server past the driver.
func plainClient(t testing.TB, addr string) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// limited is the test's context with a limit, so that a wait that never ends becomes a failure.
func limited(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// claimFor is a claim with a token of its own.
func claimFor(key string, n int, ttl time.Duration) driver.Claim {
	return driver.Claim{Key: key, Token: fmt.Sprintf("%032x", n), Owner: fmt.Sprintf("owner %d", n), TTL: ttl}
}

// mustAcquire acquires, or ends the test.
func mustAcquire(t testing.TB, b driver.Backend, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := b.Acquire(limited(t, 10*time.Second), c)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v, want it granted", c.Key, err)
	}
	return g
}

// waiting is a Wait under way.
type waiting struct {
	queued chan struct{} // closed when the store has said so
	done   chan struct{} // closed when it has returned
	grant  driver.Grant
	err    error
}

// startWait calls Wait, and returns when the claim is in the queue.
func startWait(t testing.TB, b driver.Waiter, c driver.Claim) *waiting {
	t.Helper()
	w := &waiting{queued: make(chan struct{}), done: make(chan struct{})}
	var once sync.Once
	ctx, queued := limited(t, 30*time.Second), func() { once.Do(func() { close(w.queued) }) }
	go func() {
		defer close(w.done)
		w.grant, w.err = b.Wait(ctx, c, queued)
	}()
	select {
	case <-w.queued:
	case <-w.done:
		t.Fatalf("Wait(%q) = %v, %v; want it to wait", c.Key, w.grant, w.err)
	case <-time.After(15 * time.Second):
		t.Fatalf("Wait(%q) has not queued", c.Key)
	}
	return w
}

// readCommand reads an array of bulk strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r, "*")
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := readLength(r, "$")
		if err != nil {
			return nil, err
		}
		raw := make([]byte, size+2)
		if _, err := io.ReadFull(r, raw); err != nil {
			return nil, err
		}
		args[i] = string(raw[:size])
	}
	return args, nil
}

func readLength(r *bufio.Reader, kind string) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), kind))
}
