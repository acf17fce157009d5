package dlocktest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// stuck is a backend whose Acquire returns only when it is closed.
type stuck struct {
	driver.Backend
	closed chan struct{}
}

func (b *stuck) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	<-b.closed
	return driver.Grant{}, errToyClosed
}

func (b *stuck) Close() error { close(b.closed); return nil }

// failuresOf runs a case of its own in real time.
func failuresOf(t *testing.T, run func(t *caseT), limit time.Duration) string {
	rec := &recorder{TB: t}
	s := Store{Open: func(testing.TB) driver.Backend { return &stuck{closed: make(chan struct{})} }}
	runCase(rec, &testCase{id: "some-id", rule: "Some rule.", run: run}, s, pace{ttl: time.Second, limit: limit})
	return strings.Join(rec.failures, "\n")
}

func TestHangBecomesAFailure(t *testing.T) {
	hangs := func(t *caseT) { _, _ = t.open().Acquire(context.Background(), t.claim("k", ample)) }
	got := failuresOf(t, hangs, time.Second)
	for _, want := range []string{"rule some-id is broken: Some rule.", "the case has not ended after 1s", "(*stuck).Acquire"} {
		if !strings.Contains(got, want) {
			t.Errorf("a case that hangs reported %.300q, want it to contain %q", got, want)
		}
	}
}

func TestPanicBecomesAFailure(t *testing.T) {
	got := failuresOf(t, func(*caseT) { panic("oh no") }, time.Second)
	if !strings.Contains(got, "panic: oh no") || !strings.Contains(got, "harness_test.go") {
		t.Errorf("a case that panics reported %.300q, want the panic and where it was", got)
	}
}

func TestFatalOnAnyGoroutineFailsTheCase(t *testing.T) {
	after := false
	got := failuresOf(t, func(t *caseT) {
		t.each(2, func(i int) { t.Fatalf("goroutine %d", i) })
		after = true
		t.Fatalf("the case itself")
	}, time.Second)
	if !after || strings.Count(got, "Some rule.") != 3 {
		t.Errorf("three failures reported %q", got)
	}
}

// A store whose clock has to be moved by hand is moved in small steps, so that what lives by renewals survives.
func TestAdvanceMovesTheClock(t *testing.T) {
	steps := 0
	synctest.Test(t, func(t *testing.T) {
		for _, id := range []string{
			"ttl-expires", "wait-expiry", "lease-renewed", "loss-outage", "lock-holder-expires", "excl-expiry-race",
			"token-last-moments", "fence-rises-idle", "wait-no-overtaking-expiry", "wait-release-race", "wait-dozens", "hang-wait",
			"hang-release", "renew-granted", "wait-any-key",
		} {
			s := newToy("", oddities{}).store(t)
			s.Advance = func(d time.Duration) { steps++; time.Sleep(d) }
			if skip, _ := runCase(t, caseByID(id), s, pace{ttl: defaultMinTTL, limit: caseLimit}); skip != "" {
				t.Errorf("%s was skipped: %s", id, skip)
			}
		}
	})
	if steps < 100 {
		t.Errorf("the clock was moved in %d steps, want many small ones", steps)
	}
}

// TestRunTellsWhatItDid runs the suite on a broken driver in a process of its own.
func TestRunTellsWhatItDid(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestInner$", "-test.v")
	cmd.Env = append(os.Environ(), "DLOCKTEST_INNER=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the suite passed a broken driver and a Skip of a case that does not exist")
	}
	for _, want := range []string{
		`Harness.Skip has "no-such-case", and there is no such case`,
		"the harness says: it takes too long",
		"the store has no driver.Inline calls",
		"the store has no driver.Interruptible calls",
		"--- FAIL: TestInner/token-release-wrong",
		"rule token-release-wrong is broken: Release with a token that does not hold the key",
		"--- PASS: TestInner/excl-two-clients",
		"Read docs/conformance.md, rule token-release-wrong.",
		" failed, 4 skipped; proven: driver.BatchRenewer, driver.Inspector,",
		"; broken: fences, driver.Waiter, driver.Breaker",
		"ctx-interruptible (the store has no driver.Interruptible calls)",
		"fence-thousand (the harness says: it takes too long)",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
}

func TestInner(t *testing.T) {
	if os.Getenv("DLOCKTEST_INNER") == "" {
		t.Skip("TestRunTellsWhatItDid runs it in a process of its own")
	}
	Run(t, Harness{
		New:    func(t *testing.T) Store { return newToy("release-by-any-token", oddities{}).store(t) },
		Around: synctest.Test,
		Skip:   map[string]string{"no-such-case": "it is not there", "fence-thousand": "it takes too long"},
	})
}

// A machine that stood still is no fault of the driver, but only where renewals were to be made meanwhile.
func TestPauseIsAnExcuseForMissedRenewalsOnly(t *testing.T) {
	for _, timed := range []bool{false, true} {
		rec := &recorder{TB: t}
		skip, _ := runCase(rec, &testCase{id: "some-id", rule: "Some rule.", run: func(t *caseT) {
			if timed {
				t.steady()
			}
			t.mu.Lock()
			t.paused = time.Second
			t.mu.Unlock()
			t.Fatalf("lost")
		}}, Store{Open: func(testing.TB) driver.Backend { return nil }}, pace{ttl: time.Second, limit: time.Second, real: true})
		if excused := len(rec.failures) == 0 && strings.Contains(skip, "inconclusive"); excused != timed {
			t.Errorf("with timed = %v the failures are %q and the skip is %q", timed, rec.failures, skip)
		}
	}
}
