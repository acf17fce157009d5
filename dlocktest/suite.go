package dlocktest

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

// testCase is one rule and the way to find out whether a driver keeps it.
type testCase struct {
	id    string // stable: people put it into Harness.Skip
	name  string // a few words
	rule  string // one sentence, printed when the rule is broken
	needs []need
	run   func(t *caseT)
}

// cases is the suite, in the order in which it is run.
var cases = slices.Concat(
	exclusionCases, expiryCases, tokenCases, ttlCases, renewCases, batchCases, fenceCases,
	waitCases, waitLeaveCases, waitLoadCases, contextCases, keyCases,
	outageCases, hangCases, inspectCases, closeCases, healthCases, dsnCases,
	lockCases, lockWaitCases, leaseCases, lossCases, lockCloseCases,
)

const (
	caseLimit = 50 * time.Second // for one case
	endLimit  = 8 * time.Second  // for closing what it opened
)

// pace is how fast the store is.
type pace struct {
	ttl   time.Duration // the shortest TTL that it handles well
	limit time.Duration // for one case
	real  bool          // time passes by itself, and while this machine does something else

	pushed bool // it tells a waiter at once
}

// runCase runs c on s, or says why not, and reports whether it failed. The case runs on a goroutine
// of its own, so that one that hangs can be reported.
func runCase(tb testing.TB, c *testCase, s Store, p pace) (skip string, failed bool) {
	tb.Helper()
	if s.Open == nil {
		tb.Fatalf("dlocktest: Store.Open is nil")
	}
	t := &caseT{tb: tb, c: c, store: s, ttl: p.ttl, pushed: p.pushed, real: p.real, began: time.Now()}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if p.real {
		t.started.Go(t.watchPauses)
	}
	done, lacks := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(done)
		defer t.recover()
		if why := t.missing(c.needs); why != "" {
			lacks <- why
			return
		}
		c.run(t)
	}()
	ended := waitFor(done, p.limit)
	for extra := t.extraTime(); !ended && extra > 0; extra = t.extraTime() {
		ended = waitFor(done, extra)
	}
	if !ended {
		t.Errorf("the case has not ended after %v:\n%s", p.limit, stacks())
	}
	t.end(done)
	select {
	case skip = <-lacks:
		return skip, t.failed
	default:
		return t.excuse, t.failed
	}
}

// end closes what the case opened and waits for what it started.
func (t *caseT) end(body <-chan struct{}) {
	t.cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer t.recover()
		t.cleanUp()
		t.started.Wait()
		<-body
	}()
	if !waitFor(ended, endLimit) {
		t.Errorf("closing the clients has not ended the calls under way after %v:\n%s", endLimit, stacks())
	}
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
}

// recover makes a failure of a panic: one broken driver must not hide what the cases after it would
// find.
func (t *caseT) recover() {
	if p := recover(); p != nil {
		t.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

func waitFor(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func stacks() []byte {
	buf := make([]byte, 64<<10)
	return buf[:runtime.Stack(buf, true)]
}
