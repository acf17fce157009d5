package dlocktest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func (c *toyClient) Wait(ctx context.Context, claim driver.Claim, queued func()) (driver.Grant, error) {
	s, called := c.s, time.Now()
	if s.odd.noWait {
		return driver.Grant{}, errors.ErrUnsupported
	}
	if s.has("one-wait-at-a-time") {
		select {
		case c.turn <- struct{}{}:
			defer func() { <-c.turn }()
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		case <-c.done:
			return driver.Grant{}, errToyClosed
		}
	}
	if s.has("waits-use-up-a-pool") {
		select {
		case c.pool <- struct{}{}:
			defer func() { <-c.pool }()
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		case <-c.done:
			return driver.Grant{}, errToyClosed
		}
	}
	if s.has("goroutine-per-wait") {
		go func() { <-c.done }()
	}
	if err := c.enter(ctx, "wait", claim); err != nil {
		return driver.Grant{}, err
	}
	g, err := c.take(context.WithValue(ctx, toyWaits{}, true), claim)
	if s.has("queued-is-said-too-soon") {
		queued()
	}
	switch {
	case err != nil && s.has("wait-polls"):
		g, err = c.poll(ctx, claim, queued)
	case err != nil && !s.has("wait-answers-held"):
		g, err = c.waitInLine(ctx, claim, queued)
	}
	if late := c.leave(ctx); late != nil && err == nil {
		err = late
	}
	switch {
	case s.has("wait-start-missing"):
		g.Start = time.Time{}
	case s.has("wait-start-at-the-call"):
		g.Start = called
	case s.has("wait-start-at-the-reply") && err == nil:
		time.Sleep(50 * time.Millisecond)
		g.Start = time.Now()
	}
	return g, err
}

// waitInLine puts claim into the queue and waits. The store is locked, but not while it waits.
func (c *toyClient) waitInLine(ctx context.Context, claim driver.Claim, queued func()) (driver.Grant, error) {
	s, name := c.s, c.s.name(c, claim.Key)
	if s.has("wake-up-lost-while-queuing") {
		s.step(200 * time.Microsecond)
		if s.locks[name] == nil {
			if err := c.sleepOn(ctx); err != nil {
				return driver.Grant{}, err
			}
			if g, err := c.take(ctx, claim); err == nil {
				return g, nil
			}
		}
	}
	if l := s.locks[name]; l != nil && s.has("queue-is-full-at-10") && len(l.queue) >= 10 {
		return driver.Grant{}, driver.ErrHeld
	}
	if s.locks[name] == nil {
		return driver.Grant{}, errToyDown // refused although it is free: one of the bugs
	}
	c.enqueue(s.locks[name], claim)
	for {
		l := s.find(name, time.Now())
		switch {
		case c.closed && !s.has("close-leaves-waits"):
			return driver.Grant{}, errToyClosed
		case ctx.Err() != nil && s.has("cancelled-wait-says-held"):
			return driver.Grant{}, driver.ErrHeld
		case ctx.Err() != nil && !s.has("wait-ignores-its-context"):
			return driver.Grant{}, c.failure("wait", claim, ctx.Err())
		case s.down, s.numbers["ended"] > 0, !c.gone.IsZero():
			return driver.Grant{}, errToyDown
		case l != nil && l.claim.Token == claim.Token:
			if s.has("acquire-overtakes") {
				s.step(2 * time.Millisecond)
				if l = s.locks[name]; l == nil || l.claim.Token != claim.Token {
					if g, err := c.take(ctx, claim); err == nil {
						return g, nil
					}
					return c.waitInLine(ctx, claim, queued)
				}
			}
			l.given = false
			return c.grant(l, claim.TTL, l.since), nil
		case l == nil || l.place(claim.Token) < 0:
			return driver.Grant{}, errors.New("toy: the claim is no longer in the queue")
		}
		c.block(ctx, l, queued)
	}
}

func (c *toyClient) enqueue(l *toyLock, claim driver.Claim) {
	s := c.s
	i := l.place(claim.Token)
	if i >= 0 && s.has("second-wait-goes-to-the-back") {
		l.queue = slices.Delete(l.queue, i, i+1)
		i = -1
	}
	if i < 0 {
		l.queue = append(l.queue, &toyWaiter{claim, c})
	}
}

// block waits for anything that might matter, with the store unlocked.
func (c *toyClient) block(ctx context.Context, l *toyLock, queued func()) {
	s := c.s
	changed, left := s.changed, time.Until(l.expires.Add(s.odd.late))
	switch {
	case s.has("acquire-overtakes-at-expiry"), s.has("acquire-overtakes-after-a-delete"):
		left = max(left, 0) + 20*time.Millisecond
	case s.unheard(l.name):
		changed = nil
	case s.has("push-is-a-heartbeat"):
		changed, left = nil, 50*time.Millisecond
	}
	if s.has("expiry-unnoticed-by-waiters") || s.has("ttl-ignored") || s.has("client-renews-by-itself") {
		left = 24 * time.Hour
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	done, closed := ctx.Done(), c.done
	if s.has("wait-ignores-its-context") {
		done = nil
	}
	if s.has("close-leaves-waits") {
		closed = nil
	}
	s.mu.Unlock()
	if !s.has("queued-is-never-said") {
		queued()
	}
	select {
	case <-done:
	case <-closed:
	case <-changed:
	case <-timer.C:
	}
	s.mu.Lock()
}
