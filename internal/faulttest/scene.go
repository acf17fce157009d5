package faulttest

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// What follows are whole faults that are the same for every store. Each is named by its place in the list of faults.

// fencedStore is something that a lock protects. It takes no write from a holder older than the last one it saw.
type fencedStore struct{ highest uint64 }

func (s *fencedStore) write(fence uint64) bool {
	if fence < s.highest {
		return false
	}
	s.highest = fence
	return true
}

// StopHolder is C2: a process that holds key is stopped for two TTLs, and next holds the key meanwhile.
func StopHolder(t *testing.T, driver, dsn, key string, next dlock.Locker) {
	t.Helper()
	const ttl = time.Second
	var store fencedStore
	h := StartHolder(t, driver, dsn, key, ttl)
	fence, err := strconv.ParseUint(h.Line(t, "fence"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if !store.write(fence) {
		t.Fatal("the first write was refused")
	}
	h.Stop()
	stopped := time.Now()
	x := Hold(t, next, key)
	if !store.write(x.Fence()) {
		t.Errorf("the next holder's fence %d was refused after %d", x.Fence(), fence)
	}
	Eventually(t, 10*time.Second, "two TTLs pass", func() bool { return time.Since(stopped) > 2*ttl })
	late := Lateness(t)
	h.Continue()
	if held := h.Line(t, "held"); held != "false" {
		t.Errorf("the first Held() after the pause is %s, want false", held)
	}
	if us, err := strconv.Atoi(h.Line(t, "done")); err != nil || time.Duration(us)*time.Microsecond > 50*time.Millisecond+late() {
		t.Errorf("Done %d µs after waking (%v), want at most 50 ms", us, err)
	}
	if fence, err := strconv.ParseUint(h.Line(t, "write"), 10, 64); err != nil || store.write(fence) {
		t.Errorf("the late write with fence %d was accepted after %d (%v)", fence, x.Fence(), err)
	}
	if !x.Held() {
		t.Errorf("the next holder has lost it: %v", x.Err())
	}
}

// UseDoneContext is B2: every call with a context that is done fails. It closes l and b; the caller sees that nothing was sent.
func UseDoneContext(t *testing.T, l dlock.Locker, b driver.Waiter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := Claim("b2", time.Second)
	_, errTry := l.TryLock(ctx, "b2")
	_, errAcquire := b.Acquire(ctx, c)
	_, errWait := b.Wait(ctx, c, func() {})
	_, errRenew := b.Renew(ctx, c)
	for what, err := range map[string]error{
		"Lock": l.Lock(ctx, "b2"), "TryLock": errTry, "Ping": dlock.Ping(ctx, l), "Backend.Acquire": errAcquire, "Backend.Wait": errWait,
		"Backend.Renew": errRenew, "Backend.Release": b.Release(ctx, c),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want context.Canceled", what, err)
		}
	}
	_ = l.Close()
	_ = b.Close()
}

// RefuseTTLs is one half of C5: l refuses TTLs that no store can keep. The caller sees that nothing was sent.
func RefuseTTLs(t *testing.T, l dlock.Locker) {
	t.Helper()
	for _, ttl := range []time.Duration{0, -1, 1, 999 * time.Microsecond, 1500 * time.Microsecond, 1 << 62, math.MaxInt64, math.MinInt64} {
		if err := l.Lock(t.Context(), "c5", dlock.WithTTL(ttl)); !errors.Is(err, dlock.ErrInvalidTTL) {
			t.Errorf("Lock with a TTL of %v = %v, want ErrInvalidTTL", ttl, err)
		}
	}
}

// OddTTLs are those of the other half of C5, which a driver rounds up, or refuses.
func OddTTLs() []time.Duration {
	return []time.Duration{
		0, -1, 1, 999 * time.Microsecond, 1500 * time.Microsecond, 10*time.Millisecond + 1, time.Second, 1500 * time.Millisecond, 24 * time.Hour, 1 << 62,
		math.MaxInt64, math.MinInt64,
	}
}

// Closing is a Locker that is closed while it is used. Another owner has the lock "busy".
type Closing struct {
	Locker dlock.Locker
	Proxy  *faultproxy.Proxy // between the Locker and the store
	Waits  func() bool       // whether one waits for "busy"
	Closed func()            // called as soon as Close has returned
}

// CloseFaults are states of the network in which a Locker is closed.
func CloseFaults() map[string]faultproxy.Rules {
	return map[string]faultproxy.Rules{
		"the network works":    {},
		"requests wait":        {HoldUp: true},
		"replies wait":         {HoldDown: true},
		"everything vanishes":  {DropUp: true, DropDown: true},
		"replies are delayed":  {DelayDown: 200 * time.Millisecond},
		"connections are shut": {CutAtReply: 1, Refuse: true},
	}
}

// CloseInUse is B6: Close, by many at once, ends a hold and the calls under way, in time. The caller sees that nothing was sent afterwards. It returns when Close
// was called.
func CloseInUse(t *testing.T, c Closing, fault faultproxy.Rules) (began time.Time) {
	t.Helper()
	l := c.Locker
	x, unlocking := Hold(t, l, "held"), Hold(t, l, "unlocking")
	late := Lateness(t)

	var calls sync.WaitGroup
	results := make(chan error, 10)
	start := func(f func() error) { calls.Go(func() { results <- f() }) }
	errBusy := errors.New("TryLock said that another owner has a free key")
	start(func() error { return l.Lock(context.Background(), "busy") })
	Eventually(t, 10*time.Second, "Lock waits", c.Waits)
	c.Proxy.Set(fault)
	start(func() error {
		ok, err := l.TryLock(context.Background(), "flying")
		if !ok && err == nil {
			err = errBusy
		}
		return err
	})
	start(func() error { return unlocking.Unlock(context.Background()) })

	began = time.Now()
	for range 3 {
		start(l.Close)
	}
	_ = l.Close()
	if took := time.Since(began); took > 2*time.Second+late() {
		t.Errorf("Close took %v, want at most 2s", took)
	}
	select {
	case <-x.Done():
	default:
		t.Error("Done is open after Close")
	}
	c.Closed()
	calls.Wait()
	if took := time.Since(began); took > 2*time.Second+200*time.Millisecond+late() {
		t.Errorf("the last call returned after %v, want it to return with Close", took)
	}
	close(results)
	for err := range results {
		if fault == (faultproxy.Rules{}) && err != nil && !errors.Is(err, dlock.ErrClosed) || errors.Is(err, errBusy) {
			t.Errorf("a call returned %v, want ErrClosed or nil", err)
		}
	}
	if err := l.Lock(t.Context(), "later"); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("Lock after Close = %v, want ErrClosed", err)
	}
	return began
}
