package dlocktest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// optional are the needs that a driver, and not its harness, has to meet.
var optional = []need{
	needFence, needWaiter, needBatch, needInspect, needBreaker, needPinger, needDoctor, needInline, needInterr,
}

// summary is what a run has come to.
type summary struct {
	mu                   sync.Mutex
	run, failed, skipped int
	proven, broken       map[need]bool
	reasons              []string
	ids                  map[string][]string // of the cases that were skipped, by the reason
}

// add notes the outcome of c. An empty skip means that it was run.
func (s *summary) add(c *testCase, skip string, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids, s.proven, s.broken = map[string][]string{}, map[need]bool{}, map[need]bool{}
	}
	if skip != "" {
		s.skipped++
		if s.ids[skip] == nil {
			s.reasons = append(s.reasons, skip)
		}
		s.ids[skip] = append(s.ids[skip], c.id)
		return
	}
	s.run++
	if failed {
		s.failed++
	}
	for _, n := range c.needs {
		s.proven[n] = true
		s.broken[n] = s.broken[n] || failed
	}
}

// String is one line.
func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "dlocktest: %d run, %d failed, %d skipped", s.run, s.failed, s.skipped)
	list := func(title string, ok func(n need) bool) {
		var names []string
		for _, n := range optional {
			if ok(n) {
				names = append(names, string(n))
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "; %s: %s", title, strings.Join(names, ", "))
		}
	}
	list("proven", func(n need) bool { return s.proven[n] && !s.broken[n] })
	list("broken", func(n need) bool { return s.broken[n] })
	for i, why := range s.reasons {
		b.WriteString([]string{"; skipped: ", ", "}[min(i, 1)])
		if ids := s.ids[why]; len(ids) <= 3 {
			fmt.Fprintf(&b, "%s (%s)", strings.Join(slices.Sorted(slices.Values(ids)), ", "), why)
		} else {
			fmt.Fprintf(&b, "%d cases (%s)", len(ids), why)
		}
	}
	return b.String()
}
