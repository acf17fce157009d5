// Package faulttest has what tests of different drivers share that break the network, the server or the clock.
package faulttest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// patience is how long to wait for what must come, on a busy machine too.
const patience = 30 * time.Second

// Eventually waits for a condition, and fails the test when it does not come true in time.
func Eventually(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		last := time.Now().After(end)
		if cond() {
			return
		}
		if last {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// Within waits for a condition, and fails the test when it came true later than limit, which is asked afterwards: it may depend on how slow everything was
// meanwhile.
func Within(t testing.TB, limit func() time.Duration, what string, cond func() bool) {
	t.Helper()
	began := time.Now()
	Eventually(t, patience, what, cond)
	if took, most := time.Since(began), limit(); took > most {
		t.Errorf("after %v, want at most %v: %s", took, most, what)
	}
}

// Receive receives what must come.
func Receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s does not come", what)
		panic("not reached")
	}
}

// Claim returns a claim with a token of its own.
func Claim(key string, ttl time.Duration) driver.Claim {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return driver.Claim{Key: key, Token: hex.EncodeToString(raw[:]), Owner: "a test", TTL: ttl}
}

// Hold acquires a lease that must be had.
func Hold(t testing.TB, l dlock.Locker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	x, err := dlock.Acquire(ctx, l, key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return x
}

// Ended waits for the end of a hold that must end, and returns when that was.
func Ended(t testing.TB, x *dlock.Lease, limit time.Duration) time.Time {
	t.Helper()
	select {
	case <-x.Done():
	case <-time.After(limit):
		t.Fatalf("%s: not Done within %v", x.Key(), limit)
	}
	return time.Now()
}

// Lateness measures, from now to the end of the test, how late this machine wakes a goroutine, so that a busy machine is not taken for a slow lock.
func Lateness(t testing.TB) func() time.Duration {
	const step = 2 * time.Millisecond
	first := time.Now()
	var asleep, worst atomic.Int64 // when the sleep under way began, counted from first; how late one has ended
	overdue := func() int64 { return int64(time.Since(first)-step) - asleep.Load() }
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			asleep.Store(int64(time.Since(first)))
			select {
			case <-stop:
				return
			case <-time.After(step):
			}
			worst.Store(max(worst.Load(), overdue()))
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	// After a pause of the whole process the witness may wake last, so the sleep under way counts too. It is looked at first, as its end moves it to worst.
	return func() time.Duration { return 2 * time.Duration(max(overdue(), worst.Load())) }
}

// CancelAcquire makes an attempt to acquire whose context ends after a while, and sees that it returns soon, with the lock or with the context's error. A
// lock that it has is released.
func CancelAcquire(t *testing.T, l dlock.Locker, key string, after time.Duration, try bool, late func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan time.Time, 1)
	time.AfterFunc(after, func() {
		cancelled <- time.Now()
		cancel()
	})
	var x *dlock.Lease
	var err error
	if try {
		x, _, err = dlock.TryAcquire(ctx, l, key)
	} else {
		x, err = dlock.Acquire(ctx, l, key)
	}
	returned := time.Now()
	if took := returned.Sub(<-cancelled); took > 100*time.Millisecond+late() {
		t.Errorf("returned %v after the cancel, want within 100ms", took)
	}
	switch {
	case x != nil:
		_ = x.Unlock(t.Context())
	case !errors.Is(err, context.Canceled):
		t.Errorf("%s: the error is %v, want that of the context", key, err)
	}
}
