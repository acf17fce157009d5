package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

const ttl = 10 * time.Second

// claim is who's claim of the key "k". Its token is made from the name.
func claim(who string) driver.Claim {
	return driver.Claim{Key: "k", Token: fmt.Sprintf("%032x", who), Owner: who, TTL: ttl}
}

func withKey(c driver.Claim, key string) driver.Claim { c.Key = key; return c }

func withTTL(c driver.Claim, d time.Duration) driver.Claim { c.TTL = d; return c }

func acquire(t *testing.T, b driver.Backend, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), c)
	if err != nil {
		t.Fatalf("Acquire of %q by %s = %v, want a grant", c.Key, c.Owner, err)
	}
	return g
}

func refuseAcquire(t *testing.T, b driver.Backend, c driver.Claim) {
	t.Helper()
	if g, err := b.Acquire(t.Context(), c); !errors.Is(err, driver.ErrHeld) || g != (driver.Grant{}) {
		t.Fatalf("Acquire of %q by %s = %+v, %v; want ErrHeld", c.Key, c.Owner, g, err)
	}
}

func release(t *testing.T, b driver.Backend, c driver.Claim) {
	t.Helper()
	if err := b.Release(t.Context(), c); err != nil {
		t.Fatalf("Release of %q by %s = %v, want nil", c.Key, c.Owner, err)
	}
}

// call is a Wait under way.
type call struct {
	cancel context.CancelFunc
	done   chan struct{}
	grant  driver.Grant
	err    error
	at     time.Time // when it returned
}

// wait calls Wait and returns when it is queued or has returned.
func wait(t *testing.T, b driver.Waiter, c driver.Claim) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.grant, w.err = b.Wait(ctx, c, func() {})
		w.at = time.Now()
	}()
	synctest.Wait()
	return w
}

// abandon queues c and ends its Wait, which leaves c in the queue.
func abandon(t *testing.T, b driver.Waiter, c driver.Claim) {
	t.Helper()
	w := wait(t, b, c)
	w.cancel()
	synctest.Wait()
	if !errors.Is(w.err, context.Canceled) {
		t.Fatalf("a cancelled Wait = %v, want context.Canceled", w.err)
	}
}

func (w *call) waits(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
		t.Fatalf("Wait returned %+v, %v; want it to wait", w.grant, w.err)
	default:
	}
}

// granted asserts that Wait has returned a grant by now.
func (w *call) granted(t *testing.T) driver.Grant {
	t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
	default:
		t.Fatal("Wait has not returned, want a grant")
	}
	if w.err != nil {
		t.Fatalf("Wait = %v, want a grant", w.err)
	}
	return w.grant
}

// failed asserts that Wait has returned an error by now.
func (w *call) failed(t *testing.T) error {
	t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
	default:
		t.Fatal("Wait has not returned, want an error")
	}
	if w.err == nil || w.grant != (driver.Grant{}) {
		t.Fatalf("Wait = %+v, %v; want an error alone", w.grant, w.err)
	}
	return w.err
}

// refuteToken asserts that no token made by claim is in text.
func refuteToken(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, strings.Repeat("0", 16)) {
		t.Errorf("%q has a token in it, want none", text)
	}
}

// open opens dsn and closes it at the end of the test.
func open(t *testing.T, dsn string) *memory.Backend {
	t.Helper()
	b, err := memory.Driver{}.Open(dsn)
	if err != nil {
		t.Fatalf("Open(%q) = %v, want nil", dsn, err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*memory.Backend)
}
