package dlocktest

import (
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var healthCases = []testCase{
	{"ping-answers", "a readiness check", "Ping succeeds while the store can be reached, and fails after Close.", []need{needPinger}, pingAnswers},
	{"ping-outage", "an outage", "Ping fails while the store cannot be reached.", []need{needPinger, needOutage}, pingOutage},
	{"ping-changes-nothing", "no traces", "Ping needs no lock and changes nothing in the store.", []need{needPinger, needInspect}, pingChangesNothing},
	{"doctor-findings", "findings", "Every Finding has an ID, a text and one of the three levels, and the worst come first.", []need{needDoctor}, doctorFindings},
	{"inline", "inline", "A backend that says its calls are Inline answers without waiting for anything.", []need{needInline}, inline},
}

func (t *caseT) ping(b driver.Backend) error {
	ctx, cancel := t.limited(2 * time.Second)
	defer cancel()
	return b.(driver.Pinger).Ping(ctx)
}

func pingAnswers(t *caseT) {
	b := t.open()
	t.acquire(b, t.claim("k", ample))
	for range 3 {
		if err := t.ping(b); err != nil {
			t.Errorf("Ping returned %q", err)
		}
	}
	t.close(b)
	if t.ping(b) == nil {
		t.Errorf("Ping after Close returned nil")
	}
}

func pingOutage(t *caseT) {
	b := t.open()
	if err := t.ping(b); err != nil {
		t.Fatalf("Ping returned %q", err)
	}
	t.outage(true)
	if t.ping(b) == nil {
		t.Errorf("Ping in an outage returned nil")
	}
	t.outage(false)
	var err error
	if !t.until(10*time.Second, func() bool { err = t.ping(b); return err == nil }) {
		t.Errorf("Ping fails 10s after the end of an outage: %v", err)
	}
}

func pingChangesNothing(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	for range 3 {
		if err := t.ping(a); err != nil {
			t.Fatalf("Ping returned %q", err)
		}
	}
	if keys := t.list(b, ""); len(keys) > 1 || len(keys) == 1 && keys[0] != "k" {
		t.Errorf("the store holds %q after Ping, want nothing but %q", keys, "k")
	}
	t.takeOver(b, h)
}

func doctorFindings(t *caseT) {
	b := t.open()
	findings, err := b.(driver.Doctor).Diagnose(t.ctx)
	if err != nil {
		t.Fatalf("Diagnose returned %q", err)
	}
	levels := []string{"error", "warning", "info"}
	worst := 0
	for _, f := range findings {
		level := slices.Index(levels, f.Level)
		if f.ID == "" || f.Text == "" || level < 0 {
			t.Errorf("the finding %+v lacks an ID, a text or a level out of %q", f, levels)
		}
		if level < worst {
			t.Errorf("the finding %q comes after one that is less bad", f.ID)
		}
		worst = max(worst, level)
	}
}

func inline(t *caseT) {
	a, b := t.open(), t.open()
	t.acquire(a, t.claim("held", ample))
	best := time.Hour
	for range 5 {
		c, began := t.claim("k", ample), time.Now()
		t.taken(b, "held")
		t.acquire(b, c)
		t.renew(b, c)
		t.release(b, c)
		if p, ok := b.(driver.Pinger); ok {
			_ = p.Ping(t.ctx)
		}
		best = min(best, time.Since(began))
	}
	if best > 5*time.Millisecond {
		t.Errorf("five calls took %v at best", best)
	}
}
