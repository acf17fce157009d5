package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var contextCases = []testCase{
	{"ctx-done", "done at entry", "A call whose context has ended returns soon, and tells nothing about the key that the store has not said.", nil, ctxDone},
	{"ctx-in-flight", "cancelled in flight", "A call returns soon after its context ends, also while the store does not answer, and does not claim to know what the store holds.", []need{needOutage}, ctxInFlight},
	{"ctx-interruptible", "interruptible", "A backend that says its calls are Interruptible returns at once when the context of a call ends, also while the store does not answer.", []need{needInterr, needOutage}, ctxInterruptible},
	{"ctx-after", "cancelled after success", "The context bounds the call, not the hold: when it ends after the grant, the hold stays.", nil, ctxAfter},
	{"ctx-acquire-returns", "Acquire does not wait", "Acquire of a key that is held answers at once and does not wait for the key.", nil, ctxAcquireReturns},
}

// backendCall is a call of a backend that may be ended.
type backendCall struct {
	op   string
	make func(ctx context.Context, b driver.Backend, c driver.Claim) error
}

// calls are the three calls that every backend has.
var calls = []backendCall{
	{"Acquire", func(ctx context.Context, b driver.Backend, c driver.Claim) error {
		_, err := b.Acquire(ctx, c)
		return err
	}},
	{"Renew", func(ctx context.Context, b driver.Backend, c driver.Claim) error {
		_, err := b.Renew(ctx, c)
		return err
	}},
	{"Release", func(ctx context.Context, b driver.Backend, c driver.Claim) error { return b.Release(ctx, c) }},
}

func ctxDone(t *caseT) {
	b := t.open()
	soon := t.soon()
	dead, cancel := context.WithCancel(t.ctx)
	cancel()
	for _, call := range calls {
		held := t.claim("held", ample)
		t.acquire(b, held)
		began := time.Now()
		err := call.make(dead, b, held)
		if d := time.Since(began); d > soon {
			t.Errorf("%s with a context that has ended took %v", call.op, d)
		}
		if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("%s by the holder with a context that has ended returned %q", call.op, err)
		}
		_ = t.tryRelease(b, held)
	}
	c := t.claim("free", ample)
	if _, err := b.Acquire(dead, c); errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire of a free key with a context that has ended returned %q", err)
	}
	_ = t.tryRelease(b, c)
	t.free(b, "free")
}

// allCalls are the calls that b has and that name a claim.
func (t *caseT) allCalls(b driver.Backend) []backendCall {
	all := slices.Clone(calls)
	if t.supports(b, needBatch) {
		all = append(all, backendCall{"RenewBatch", func(ctx context.Context, b driver.Backend, c driver.Claim) error {
			answers := b.(driver.BatchRenewer).RenewBatch(ctx, []driver.Claim{c})
			if len(answers) != 1 {
				return fmt.Errorf("a batch of one claim has %d answers", len(answers))
			}
			return answers[0].Err
		}})
	}
	if t.supports(b, needWaiter) {
		all = append(all, t.waitCall())
	}
	return all
}

func ctxInFlight(t *caseT) { cancelInFlight(t, t.allCalls(t.open()), t.soon()) }

// ctxInterruptible leaves room for a machine that is busy, and none for the timeout of a connection.
func ctxInterruptible(t *caseT) {
	prompt := []backendCall{calls[0], calls[2]}
	if b := t.open(); t.supports(b, needWaiter) {
		prompt = append(prompt, t.waitCall())
	}
	if _, ok := t.open().(driver.Pinger); ok {
		prompt = append(prompt, backendCall{"Ping", func(ctx context.Context, b driver.Backend, _ driver.Claim) error {
			return b.(driver.Pinger).Ping(ctx)
		}})
	}
	cancelInFlight(t, prompt, 300*time.Millisecond)
}

// cancelInFlight makes each call while the store does not answer, and ends its context. It has to return within limit, and
// what this machine paused.
func cancelInFlight(t *caseT, calls []backendCall, limit time.Duration) {
	b, soon := t.open(), t.soon()
	c := t.claim("k", ample)
	t.acquire(b, c)
	t.outage(true)
	for _, call := range calls {
		for _, end := range []string{"was cancelled", "timed out"} {
			p := t.start(func(ctx context.Context, p *pending) {
				if end == "timed out" {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
					defer cancel()
				}
				p.err = call.make(ctx, b, c)
			})
			t.pause(50 * time.Millisecond)
			if end == "was cancelled" {
				p.cancel()
			}
			began := time.Now()
			if !t.await(p.done, limit+soon) || time.Since(began) > limit+t.longestPause() {
				t.Errorf("%s has not returned %v after its context ended: it %s", call.op, limit, end)
				continue
			}
			t.trouble(call.op+" that "+end+" in an outage", p.err)
		}
	}
}

func ctxAfter(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", ample)
	for _, call := range calls[:2] {
		ctx, cancel := context.WithCancel(t.ctx)
		err := call.make(ctx, a, c)
		cancel()
		if err != nil {
			t.Fatalf("%s returned %q", call.op, err)
		}
		t.pause(5*t.roundTrip() + 20*time.Millisecond)
		t.taken(b, "k")
	}
	t.renew(a, c)
}

func ctxAcquireReturns(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	first := t.claim("k", ample)
	t.acquire(a, first)
	for range 3 {
		p := t.start(func(ctx context.Context, p *pending) { _, p.err = b.Acquire(ctx, t.claim("k", ample)) })
		if !t.await(p.done, soon) {
			t.Fatalf("Acquire of a key that is held has not returned after %v", soon)
		}
		if !errors.Is(p.err, driver.ErrHeld) {
			t.Errorf("Acquire of a key that is held returned %v, want ErrHeld", p.err)
		}
	}
}
