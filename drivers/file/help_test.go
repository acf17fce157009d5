//go:build linux || darwin

package file_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
)

const ample = 2 * time.Minute

// newDir is a directory of locks that is not there yet.
func newDir(t testing.TB) string { return filepath.Join(t.TempDir(), "locks") }

// open returns a client of the locks in dir.
func open(t testing.TB, dir string, opts ...filedriver.Option) driver.Waiter {
	t.Helper()
	b, err := filedriver.New(dir, opts...)
	if err != nil {
		t.Fatalf("New(%q) = %v, want nil", dir, err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(driver.Waiter)
}

// path is where the file of a key is.
func path(dir, key string) string { return filepath.Join(dir, filedriver.FileName(key)) }

// claim returns a claim with a token of its own.
func claim(key, owner string, ttl time.Duration) driver.Claim {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return driver.Claim{Key: key, Token: hex.EncodeToString(raw[:]), Owner: owner, TTL: ttl}
}

func acquire(t testing.TB, b driver.Backend, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), c)
	if err != nil {
		t.Fatalf("Acquire of %q by %s = %v, want a grant", c.Key, c.Owner, err)
	}
	return g
}

// acquired is the claim when it was granted.
func acquired(t testing.TB, b driver.Backend, c driver.Claim) driver.Claim {
	t.Helper()
	acquire(t, b, c)
	return c
}

func release(t testing.TB, b driver.Backend, c driver.Claim) {
	t.Helper()
	if err := b.Release(t.Context(), c); err != nil {
		t.Fatalf("Release of %q by %s = %v, want nil", c.Key, c.Owner, err)
	}
}

func inspect(t testing.TB, b driver.Backend, key string) driver.Info {
	t.Helper()
	info, err := b.(driver.Inspector).Inspect(t.Context(), key)
	if err != nil {
		t.Fatalf("Inspect of %q = %v", key, err)
	}
	return info
}

// granted is what came of a Wait.
type granted struct {
	grant driver.Grant
	err   error
	at    time.Time
}

// enqueue starts a Wait and returns when it is in the queue, or has the key.
func enqueue(t testing.TB, b driver.Waiter, c driver.Claim) <-chan granted {
	t.Helper()
	ch, queued := make(chan granted, 1), make(chan struct{})
	once := sync.OnceFunc(func() { close(queued) })
	go func() {
		g, err := b.Wait(t.Context(), c, once)
		ch <- granted{g, err, time.Now()}
	}()
	select {
	case <-queued:
	case g := <-ch: // the holder's time was up before
		ch <- g
	case <-time.After(20 * time.Second):
		t.Fatalf("%s is not queued", c.Owner)
	}
	return ch
}

// within receives what comes of a Wait, which must succeed in time.
func within(t testing.TB, limit time.Duration, what string, ch <-chan granted) granted {
	t.Helper()
	select {
	case g := <-ch:
		if g.err != nil {
			t.Fatalf("%s: %v", what, g.err)
		}
		return g
	case <-time.After(limit):
		t.Fatalf("not within %v: %s", limit, what)
		return granted{}
	}
}

// files returns what is in dir, without its own files.
func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != ".dlock" && !strings.HasPrefix(e.Name(), ".dlock-b-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// refused asserts that err is permanent and says all of words.
func refused(t testing.TB, what string, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, driver.ErrPermanent) || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("%s = %v, want a permanent error", what, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s = %q, want it to say %q", what, err, word)
		}
	}
}

// soon is a ctx for a call that has to return.
func soon(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
