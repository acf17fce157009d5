package dlocktest

import (
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Harness tells Run how to test a driver. Only New is required.
type Harness struct {
	// New returns a fresh, empty store. It is called once per case, within Around. Where time is
	// real it may call t.Parallel, if stores do not disturb each other.
	New func(t *testing.T) Store

	// Around calls f once, with t or with a subtest of it. Set it to synctest.Test for virtual time.
	// Default: nil, which means that f is called directly, in real time.
	Around func(t *testing.T, f func(t *testing.T))

	// MinTTL is the shortest TTL that the store handles well: at least 20 times what a call takes.
	// Many cases wait until it has passed, so a long one makes a long run. Default: 0, which means
	// 200ms.
	MinTTL time.Duration

	// Pushed says that the store sends a message to a waiter that gets the key, so that the waiter
	// need not ask. A [driver.Waiter] may be like that or not. If it is, the median time from a
	// Release to the return of the Wait must be a few round trips. Default: false, which means that
	// this time is printed and not judged.
	Pushed bool

	// Skip names the cases that are not to be run, by id, and the reason for each. An id that no
	// case has fails the run. Default: nil, which means that all are run.
	Skip map[string]string
}

// Store is a store to be tested. Only Open is required; cases that need more are skipped without
// it.
type Store struct {
	// Open returns another client of this store, as another process would have it. The suite closes
	// each client, some of them twice.
	Open func(t testing.TB) driver.Backend

	// Driver and DSN are what dlock.Open takes to open this store. Default: "", which means that it
	// cannot be opened so.
	Driver, DSN string

	// Advance is for a store whose clock the test moves by hand: it lets d pass for the store and for
	// this process. The suite calls it in small steps. Default: nil, which means time.Sleep.
	Advance func(d time.Duration)

	// Outage(true) makes the store unreachable for every client, and Outage(false) reachable again.
	// Calls may then fail or hang. What the store holds stays, and expires. For a store that is
	// reached by TCP it is [Proxy.Cut]. Default: nil, which means that it cannot be done.
	Outage func(down bool)

	// Hang(true) makes the store silent for every client: connections stay open, requests can be
	// sent, and no reply comes until Hang(false). Requests that were sent meanwhile may be applied
	// then, or be lost. For a store that is reached by TCP it is [Proxy.Hang]. Default: nil, which
	// means that it cannot be done.
	Hang func(hangs bool)

	// Vanish ends a client that Open returned as if its process had been killed or its network were
	// gone: from then on nothing that it sends reaches the store, and Close was not called. A
	// [Proxy] for each client, cut for good, does it. Its calls may return any error. The suite
	// closes the client when the case is over. Default: nil, which means that it cannot be done.
	Vanish func(b driver.Backend)

	// Delete removes the hold of key behind the drivers' backs, as an operator would who looks into
	// the store. Default: nil, which means that it cannot be done.
	Delete func(key string)
}

const defaultMinTTL = 200 * time.Millisecond

// Run tests a driver: each case is a subtest of t, in the order of docs/conformance.md. A call of
// the driver that does not return becomes a failure of the case within a minute. In real time, a
// case that relies on renewals and fails while this machine paused for too long for them is skipped
// as inconclusive. The last line tells which optional interfaces were proven and what was skipped.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.New == nil {
		t.Fatal("dlocktest: Harness.New is nil")
	}
	for _, id := range unknown(h.Skip) {
		t.Errorf("dlocktest: Harness.Skip has %q, and there is no such case", id)
	}
	var sum summary
	t.Cleanup(func() { t.Log(sum.String()) })
	for i := range cases {
		t.Run(cases[i].id, func(t *testing.T) {
			why, failed := "", true // until it has returned
			defer func() { sum.add(&cases[i], why, failed) }()
			if why, failed = h.run(t, &cases[i]); why != "" {
				t.Skip(why)
			}
		})
	}
}

// unknown returns the ids in skip that no case has, sorted.
func unknown(skip map[string]string) []string {
	var ids []string
	for id := range skip {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.id == id }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// run runs one case, or says why not, and reports whether it failed.
func (h Harness) run(t *testing.T, c *testCase) (skip string, failed bool) {
	if why, ok := h.Skip[c.id]; ok {
		return "the harness says: " + why, false
	}
	pace := pace{ttl: h.MinTTL, limit: caseLimit, pushed: h.Pushed}
	if pace.ttl == 0 {
		pace.ttl = defaultMinTTL
	}
	if h.Around == nil {
		pace.real = true
		return runCase(t, c, h.New(t), pace)
	}
	// Virtual time stands still while a goroutine waits for a mutex or for the network, and the
	// limit within it too.
	defer time.AfterFunc(caseLimit, func() {
		debug.SetTraceback("all")
		panic("dlocktest: case " + c.id + " hangs")
	}).Stop()
	pace.limit += 200 * pace.ttl
	h.Around(t, func(t *testing.T) { skip, failed = runCase(t, c, h.New(t), pace) })
	return skip, failed
}
