package dlocktest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// toyRequestLimit is how long a request of Wait goes without an answer.
const toyRequestLimit = 3 * time.Second

// toyWaits marks the context of a Wait.
type toyWaits struct{}

func (l *toyLock) place(token string) int {
	return slices.IndexFunc(l.queue, func(w *toyWaiter) bool { return w.claim.Token == token })
}

// nap lets d pass, or returns ctx's error.
func nap(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// travel is the way of a request to the store.
func (c *toyClient) travel(ctx context.Context, op string) error {
	s := c.s
	if s.has("waits-use-up-a-pool") && op != "wait" {
		select {
		case c.pool <- struct{}{}:
			<-c.pool
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return errToyClosed
		}
	}
	if err := nap(ctx, s.odd.latency/2); err != nil || s.odd.busy == 0 {
		return err
	}
	alone := s.busy.Add(1) == 1
	defer s.busy.Add(-1)
	if s.odd.serial {
		select {
		case s.server <- struct{}{}:
			defer func() { <-s.server }()
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return errToyClosed
		}
	} else if alone {
		return nap(ctx, time.Millisecond)
	}
	return nap(ctx, s.odd.busy)
}

// survives reports whether a call is made although the store cannot be reached.
func (c *toyClient) survives(op string) bool {
	return op == "ping" && c.s.has("ping-always-nil") || (op == "renew" || op == "batch") && c.s.has("renew-nil-in-an-outage")
}

// outage is the end of a call that the store does not answer. The store is not locked.
func (c *toyClient) outage(ctx context.Context, op string, claim driver.Claim, changed <-chan struct{}) error {
	s := c.s
	switch {
	case s.has("context-ignored-in-an-outage"):
		timer := time.NewTimer(30 * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
		}
	case s.has("interruptible-but-slow"):
		select {
		case <-ctx.Done():
			time.Sleep(time.Second)
		case <-c.done:
		case <-changed:
		}
	case s.odd.hang:
		c.wait(ctx, op, changed)
	}
	switch {
	case op == "acquire" && s.has("outage-is-held"), op == "wait" && s.has("outage-is-held-for-wait"):
		return driver.ErrHeld
	case op != "acquire" && op != "wait" && s.has("outage-is-not-owner"), op == "batch" && s.has("outage-is-not-owner-for-batches"):
		return driver.ErrNotOwner
	case s.has("outage-is-permanent"):
		return driver.Permanent(errToyDown)
	case ctx.Err() != nil:
		return c.timeout(ctx, op, claim)
	}
	return c.failure(op, claim, errToyDown)
}

// silence is the end of a call that a store does not answer that hangs. The store is not locked.
func (c *toyClient) silence(ctx context.Context, op string, claim driver.Claim, changed <-chan struct{}) error {
	if !c.wait(ctx, op, changed) {
		return c.failure(op, claim, errToyDown)
	}
	if c.s.odd.stragglers && (op == "acquire" || op == "wait") {
		c.straggle(claim)
	}
	return c.timeout(ctx, op, claim)
}

// straggle sends a request that nobody waits for any more: it arrives when the store answers again.
func (c *toyClient) straggle(claim driver.Claim) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	c.sent[claim.Token]++
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for s.hung && !c.closed {
			changed := s.changed
			s.mu.Unlock()
			select {
			case <-c.done:
			case <-changed:
			}
			s.mu.Lock()
		}
		if c.closed {
			return
		}
		if s.step(5 * time.Millisecond); !c.closed {
			_, _ = c.take(context.Background(), claim)
		}
		c.sent[claim.Token]--
	}()
}

// wait waits until the store answers again, and reports whether ctx ended before.
func (c *toyClient) wait(ctx context.Context, op string, changed <-chan struct{}) bool {
	s, limit, done := c.s, 24*time.Hour, ctx.Done()
	if op == "wait" && !s.has("wait-has-no-limit") {
		limit = toyRequestLimit
	}
	if op == "wait" && s.has("wait-ignores-its-context-in-an-outage") || op == "batch" && s.has("batch-ignores-its-context-in-an-outage") {
		limit, done = time.Minute, nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-c.done:
	case <-changed:
	}
	return false
}

// timeout is the end of a call whose context ended before the store answered.
func (c *toyClient) timeout(ctx context.Context, op string, claim driver.Claim) error {
	locks, late := op == "acquire" || op == "wait", errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case locks && late && c.s.has("timeout-in-flight-is-held"), locks && !late && c.s.has("cancelled-in-flight-is-held"):
		return driver.ErrHeld
	case !locks && late && c.s.has("timeout-in-flight-is-not-owner"):
		return driver.ErrNotOwner
	}
	return c.failure(op, claim, ctx.Err())
}

// findToTake is find for an acquisition.
func (c *toyClient) findToTake(ctx context.Context, name string, now time.Time) *toyLock {
	s, l := c.s, c.s.locks[name]
	expired := l != nil && s.expired(l, now)
	switch {
	case l != nil && s.has("breaks-from-the-10th-client") && c.n >= 10:
		return nil
	case expired && s.has("takeover-checks-then-acts"):
		s.step(time.Millisecond)
		return nil
	case expired && ctx.Value(toyWaits{}) == nil && (s.has("acquire-overtakes-at-expiry") && !l.deleted ||
		s.has("acquire-overtakes-after-a-delete") && l.deleted):
		return nil
	}
	return s.find(name, now)
}

// sleepOn waits for a message that does not come, and looks by itself after a while. The store is locked, but not while
// it waits.
func (c *toyClient) sleepOn(ctx context.Context) error {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	c.s.mu.Unlock()
	defer c.s.mu.Lock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return errToyClosed
	case <-timer.C:
		return nil
	}
}

// nearlyOver reports whether the hold of token is in the last twentieth of its TTL, as far as the client knows.
func (c *toyClient) nearlyOver(token string, now time.Time) bool {
	ends := c.ends[token]
	return now.After(ends[0]) && now.Before(ends[1])
}
