package dlocktest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// ample is a TTL that does not run out during a case.
	ample = 2 * time.Minute

	// late is how long after the end of its TTL a hold may still be there.
	late = 1500 * time.Millisecond

	// callLimit is for one call that has every reason to return at once.
	callLimit = 15 * time.Second
)

// caseT is what a case works with: a testing.TB cut down to what may be called on any goroutine, a
// store, and helpers that know its pace.
type caseT struct {
	tb    testing.TB
	c     *testCase
	store Store
	ttl   time.Duration // the shortest that the store handles well: what a case uses that waits for it to pass
	hangs bool          // an outage is one that hangs

	pushed bool // the store tells a waiter at once
	real   bool // time is
	began  time.Time

	ctx     context.Context // ends with the case
	cancel  context.CancelFunc
	started sync.WaitGroup

	mu       sync.Mutex
	over     bool
	cleanups []func()
	trip     time.Duration
	owners   int
	extra    time.Duration // that the case was given
	failed   bool
	timed    bool          // the case relies on renewals in time
	paused   time.Duration // the longest that this machine did something else
	excuse   string        // why a failure proves nothing
}

// Errorf reports that the rule is broken and how that was seen.
func (t *caseT) Errorf(format string, args ...any) {
	t.tb.Helper()
	paused := t.pausedTooLong()
	t.mu.Lock()
	defer t.mu.Unlock()
	what := fmt.Sprintf(format, args...)
	switch {
	case t.over:
	case paused > 0:
		t.excuse = fmt.Sprintf("inconclusive: this machine paused for %v, and then: %s", paused, what)
	default:
		t.failed = true
		t.tb.Errorf("rule %s is broken: %s\n\t%s\n\tRead docs/conformance.md, rule %s.", t.c.id, t.c.rule, what, t.c.id)
	}
}

const heartbeat = 10 * time.Millisecond

// watchPauses notes for how long this machine did something else.
func (t *caseT) watchPauses() {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for last := t.began; ; {
		select {
		case <-ticker.C:
		case <-t.ctx.Done():
			return
		}
		now := time.Now()
		t.mu.Lock()
		t.paused = max(t.paused, now.Sub(last)-heartbeat)
		t.mu.Unlock()
		last = now
	}
}

// pausedTooLong returns for how long this machine paused if that is an excuse: when a case relies
// on renewals in time, and they may have been late for no fault of the store.
func (t *caseT) pausedTooLong() time.Duration {
	t.mu.Lock()
	timed := t.timed
	t.mu.Unlock()
	if !timed {
		return 0
	}
	if paused := t.longestPause(); paused > steady(t.ttl)/4 {
		return paused
	}
	return 0
}

// longestPause returns for how long this machine did something else.
func (t *caseT) longestPause() time.Duration {
	time.Sleep(2 * heartbeat) // the pause may have ended just now
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.paused
}

// lasts gives the case so much more time.
func (t *caseT) lasts(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.extra += d
}

// extraTime takes what the case was given.
func (t *caseT) extraTime() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { t.extra = 0 }()
	return t.extra
}

// Fatalf is Errorf, and ends the goroutine. That is the end of the case too if it is the one that
// the case was called on.
func (t *caseT) Fatalf(format string, args ...any) {
	t.tb.Helper()
	t.Errorf(format, args...)
	runtime.Goexit()
}

// Cleanup has f called when the case is over, the last one first.
func (t *caseT) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *caseT) cleanUp() {
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n == 0 {
			t.mu.Unlock()
			return
		}
		f := t.cleanups[n-1]
		t.cleanups = t.cleanups[:n-1]
		t.mu.Unlock()
		f()
	}
}

// open returns another client of the store.
func (t *caseT) open() driver.Backend {
	t.tb.Helper()
	b := t.store.Open(t.tb)
	if b == nil {
		t.Fatalf("Store.Open returned nil")
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func (t *caseT) clients(n int) []driver.Backend {
	t.tb.Helper()
	clients := make([]driver.Backend, n)
	for i := range clients {
		clients[i] = t.open()
	}
	return clients
}

// claim returns a claim of key by an owner that no other claim has.
func (t *caseT) claim(key string, ttl time.Duration) driver.Claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owners++
	return driver.Claim{Key: key, Token: newToken(), Owner: fmt.Sprintf("owner-%d", t.owners), TTL: ttl}
}

func newToken() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails; see crypto/rand
	return hex.EncodeToString(raw)
}

// limited returns the context of one call.
func (t *caseT) limited(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.ctx, d)
}

// sleep lets d pass for the store. Only the goroutine of the case calls it.
func (t *caseT) sleep(d time.Duration) {
	if t.store.Advance == nil {
		t.pause(d)
		return
	}
	for d > 0 {
		step := min(d, t.ttl/10)
		t.store.Advance(step)
		d -= step
	}
}

// pause lets d pass for this process, be it that the store's clock stands still.
func (t *caseT) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
		runtime.Goexit() // the case was given up
	}
}

// tick is how long to wait between two looks at something that is to change. It grows, so that few
// looks are needed and little time is lost.
func tick(look int) time.Duration {
	return min(50*time.Millisecond, time.Millisecond+time.Duration(look)*time.Millisecond/4)
}

// until reports whether ok became true within limit.
func (t *caseT) until(limit time.Duration, ok func() bool) bool {
	for look, end := 0, time.Now().Add(limit); ; look++ {
		last := !time.Now().Before(end)
		if ok() {
			return true
		}
		if last {
			return false
		}
		t.sleep(tick(look))
	}
}

// await reports whether done was closed within limit.
func (t *caseT) await(done <-chan struct{}, limit time.Duration) bool {
	if t.store.Advance != nil {
		return t.until(limit, func() bool { return isClosed(done) })
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-t.ctx.Done():
		runtime.Goexit() // the case was given up
	}
	return isClosed(done)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// each runs f n times at once and returns when all have returned.
func (t *caseT) each(n int, f func(i int)) { t.beside(n, f).Wait() }

// beside runs f n times at once, beside the case.
func (t *caseT) beside(n int, f func(i int)) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		t.started.Go(func() {
			defer wg.Done()
			defer t.recover()
			f(i)
		})
	}
	return &wg
}

// join returns when all of wg have returned. Meanwhile it lets time pass for the store.
func (t *caseT) join(wg *sync.WaitGroup) {
	done := make(chan struct{})
	t.started.Go(func() { wg.Wait(); close(done) })
	for look := 0; t.store.Advance != nil && !isClosed(done); look++ {
		t.sleep(tick(look))
	}
	<-done
}

// waitIn is Wait by a call that need not say when it is queued.
func (t *caseT) waitIn(ctx context.Context, b driver.Backend, c driver.Claim) (driver.Grant, error) {
	return b.(driver.Waiter).Wait(ctx, c, func() {})
}

// rounds yields 0, 1, … n-1, and stops when ten seconds have passed: slow stores are tested less,
// not longer.
func (t *caseT) rounds(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		end := time.Now().Add(10 * time.Second)
		for i := range n {
			if time.Now().After(end) || !yield(i) {
				return
			}
		}
	}
}

// soon is what "promptly" means with this store: two seconds and some round trips.
func (t *caseT) soon() time.Duration { return 2*time.Second + 20*t.roundTrip() }

// roundTrip is how long a call takes.
func (t *caseT) roundTrip() time.Duration {
	if t.trip > 0 {
		return t.trip
	}
	b, worst := t.open(), time.Microsecond
	for i := range 3 {
		c, began := t.claim(fmt.Sprint("dlocktest round trip ", i), ample), time.Now()
		t.acquire(b, c)
		t.release(b, c)
		worst = max(worst, time.Since(began)/2)
	}
	t.trip = worst
	return worst
}

// steady is a TTL for holds that have to survive by renewals: a test machine may pause for a
// moment.
func (t *caseT) steady() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timed = true
	return steady(t.ttl)
}

func steady(ttl time.Duration) time.Duration { return max(ttl, min(5*ttl, time.Second)) }

// trouble asserts that err is an error which does not claim to know what the store holds.
func (t *caseT) trouble(op string, err error) {
	t.tb.Helper()
	switch {
	case err == nil:
		t.Errorf("%s returned nil, want an error", op)
	case errors.Is(err, driver.ErrHeld):
		t.Errorf("%s returned %q, which matches ErrHeld", op, err)
	case errors.Is(err, driver.ErrNotOwner):
		t.Errorf("%s returned %q, which matches ErrNotOwner", op, err)
	}
}
