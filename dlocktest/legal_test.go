package dlocktest

import (
	"testing"
	"testing/synctest"
	"time"
)

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
	{"prompt", oddities{hang: true, prompt: true}, 0},
	{"runs of fences", oddities{runs: 16}, 0},
	{"nothing optional", oddities{optional: true}, 0},
	{"busy", oddities{busy: 100 * time.Millisecond}, 0},
	{"busy, one call at a time", oddities{busy: 100 * time.Millisecond, serial: true}, 2 * time.Second},
	{"busy, and poor", oddities{busy: 100 * time.Millisecond, serial: true, optional: true}, 2 * time.Second},
	{"all of it", oddities{latency: 200 * time.Millisecond, late: time.Second, seconds: true, noWait: true, noFence: true, hang: true}, 4 * time.Second},
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
