package dlocktest

import (
	"cmp"
	"context"
	"flag"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var onlyLegal = flag.String("legal.real", "", "the legal store to run in real time, by its name, instead of the busy ones")

// legal are stores that are slow, coarse or poor, and keep every rule.
var legal = []struct {
	name   string
	odd    oddities
	minTTL time.Duration
}{
	{"plain", oddities{}, 0},
	{"slow", oddities{latency: 200 * time.Millisecond}, 4 * time.Second},
	{"late", oddities{late: time.Second}, 0},
	{"whole seconds", oddities{seconds: true}, 0},
	{"poll only", oddities{noWait: true}, 0},
	{"no fences", oddities{noFence: true}, 0},
	{"hanging", oddities{hang: true}, 0},
	{"interruptible", oddities{hang: true, interruptible: true}, 0},
	{"requests that come late", oddities{hang: true, stragglers: true}, 0},
	{"runs of fences", oddities{runs: 16}, 0},
	{"nothing optional", oddities{optional: true}, 0},
	{"busy", oddities{busy: 100 * time.Millisecond}, 0},
	{"busy, one call at a time", oddities{busy: 100 * time.Millisecond, serial: true}, 2 * time.Second},
	{"busy, and poor", oddities{busy: 100 * time.Millisecond, serial: true, optional: true}, 2 * time.Second},
	{"all of it", oddities{latency: 200 * time.Millisecond, late: time.Second, seconds: true, noWait: true, noFence: true, hang: true}, 4 * time.Second},
}

// TestLegalStoresPassInRealTime runs all cases at once: they sleep most of the time.
func TestLegalStoresPassInRealTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes most of a minute of real time")
	}
	t.Parallel()
	var wg sync.WaitGroup
	for _, l := range legal {
		if *onlyLegal == "" && l.odd.busy == 0 || *onlyLegal != "" && l.name != *onlyLegal {
			continue
		}
		p := pace{ttl: cmp.Or(l.minTTL, defaultMinTTL), limit: caseLimit, real: true}
		for i := range cases {
			wg.Go(func() { passes(t, &cases[i], l.name, l.odd, p) })
		}
	}
	wg.Wait()
}

// passes asserts that c passes, and asks again where this machine stood still meanwhile.
func passes(t *testing.T, c *testCase, store string, odd oddities, p pace) {
	for try := 1; ; try++ {
		watch := &caseT{began: time.Now()}
		watch.ctx, watch.cancel = context.WithCancel(t.Context())
		go watch.watchPauses()
		rec := &recorder{TB: t}
		runCase(rec, c, newToy("", odd).store(rec), p)
		paused := watch.longestPause()
		watch.cancel()
		switch {
		case len(rec.failures) == 0:
			return
		case paused < 200*time.Millisecond || try == 3:
			t.Errorf("the store %q: %d failures in try %d, and this machine paused for %v; the first is: %s",
				store, len(rec.failures), try, paused, rec.failures[0])
			return
		}
		t.Logf("the store %q: %s is asked again, because this machine paused for %v", store, c.id, paused)
	}
}

func TestLegalStoresPass(t *testing.T) {
	for _, l := range legal {
		t.Run(l.name, func(t *testing.T) {
			Run(t, Harness{
				New:    func(t *testing.T) Store { return newToy("", l.odd).store(t) },
				Around: synctest.Test,
				MinTTL: l.minTTL,
			})
		})
	}
}
