package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// enter begins a call. If there is no error, the store is locked.
func (c *toyClient) enter(ctx context.Context, op string, claim driver.Claim) error {
	s := c.s
	if err := c.travel(ctx, op); err != nil {
		return c.failure(op, claim, err)
	}
	s.mu.Lock()
	var err error
	switch {
	case c.closed && !s.has("close-does-nothing"):
		err = errToyClosed
	case !c.gone.IsZero():
		err = errToyDown
	case s.hung:
		c.broken = s.has("client-stuck-after-a-hang")
		changed := s.changed
		s.mu.Unlock()
		return c.silence(ctx, op, claim, changed)
	case s.down && c.survives(op):
	case s.down:
		c.broken = s.has("client-broken-by-an-outage")
		changed := s.changed
		s.mu.Unlock()
		return c.outage(ctx, op, claim, changed)
	case c.broken:
		err = errToyDown
	}
	if err != nil {
		s.mu.Unlock()
		return c.failure(op, claim, err)
	}
	return nil
}

// failure is err as the driver returns it.
func (c *toyClient) failure(op string, claim driver.Claim, err error) error {
	switch {
	case c.s.has("error-shows-a-token"), c.s.has("wait-error-shows-a-token") && op == "wait":
		return fmt.Errorf("toy: %s by %s: %w", op, claim.Token, err)
	case c.s.has("context-error-is-held") && op == "acquire" && !errors.Is(err, errToyClosed):
		return driver.ErrHeld
	case c.s.has("context-error-is-not-owner") && op != "acquire" && !errors.Is(err, errToyClosed):
		return driver.ErrNotOwner
	}
	return err
}

// leave ends a call: the store is unlocked, and the answer takes its time.
func (c *toyClient) leave(ctx context.Context) error {
	c.s.mu.Unlock()
	return nap(context.WithoutCancel(ctx), c.s.odd.latency/2)
}

// step lets others in between the two halves of what should be one step.
func (s *toy) step(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
}

func (c *toyClient) grant(l *toyLock, asked time.Duration, start time.Time) driver.Grant {
	s := c.s
	g := driver.Grant{Fence: l.fence, Fences: s.odd.runs, TTL: s.ttl(asked), Start: start}
	switch {
	case s.odd.noFence:
		g.Fence = 0
	case s.has("grant-ttl-doubled"):
		g.TTL = 2 * asked
	case s.has("ttl-floored-in-silence"), s.has("ttl-halved"), s.has("ttl-in-whole-seconds"):
		g.TTL = asked
	case s.has("start-by-the-wall-clock"):
		g.Start = start.Round(0)
	case s.has("start-at-the-reply") && asked < time.Minute: // some replies are slower than others
		s.step(50 * time.Millisecond)
		g.Start = time.Now()
	case s.has("start-in-the-future"):
		g.Start = time.Now().Add(time.Second)
	}
	return g
}

func (c *toyClient) Acquire(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	s := c.s
	for {
		g, err := c.acquire(ctx, claim)
		if !errors.Is(err, driver.ErrHeld) || !s.has("acquire-blocks") {
			return g, err
		}
		if err := nap(ctx, 10*time.Millisecond); err != nil {
			return driver.Grant{}, err
		}
	}
}

func (c *toyClient) acquire(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	s := c.s
	if s.has("fence-taken-before-the-lock") {
		s.mu.Lock()
		if s.numbers[claim.Token] == 0 {
			s.numbers["last"]++
			s.numbers[claim.Token] = 1000 + s.numbers["last"]
		}
		s.mu.Unlock()
	}
	if err := c.enter(ctx, "acquire", claim); err != nil {
		return driver.Grant{}, err
	}
	if s.has("close-lets-calls-finish") && c.n == 1 { // one client is slow
		s.step(200 * time.Millisecond)
	}
	g, err := c.take(ctx, claim)
	if late := c.leave(ctx); late != nil && err == nil {
		err = late
	}
	return g, err
}

// take is Acquire with the store locked.
func (c *toyClient) take(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	s, now, name := c.s, time.Now(), c.s.name(c, claim.Key)
	if l := s.locks[name]; s.has("expired-hold-is-free-for-all") && l != nil && s.expired(l, now) {
		return driver.Grant{Fence: l.fence + 1}, nil
	}
	l := c.findToTake(ctx, name, now)
	if s.has("acquire-checks-then-acts") {
		s.step(3 * time.Millisecond)
	}
	s.numbers["attempts"]++
	switch {
	case l == nil && s.has("free-key-refused-now-and-then") && s.numbers["attempts"]%10 == 0:
		return driver.Grant{}, driver.ErrHeld
	case l == nil:
		l = &toyLock{name: name}
		s.give(l, c, claim, now)
		s.locks[name] = l
		if s.has("key-has-a-companion") {
			s.locks[name+":q"] = l
		}
	case s.has("client-is-the-owner") && l.client == c:
		l.claim = claim
	case l.claim.Token == claim.Token && s.has("same-token-refused"):
		return driver.Grant{}, driver.ErrHeld
	case l.claim.Token == claim.Token:
		c.takeAgain(l, claim, now)
		if s.has("same-token-told-what-is-left") {
			return driver.Grant{Fence: l.fence, TTL: l.expires.Sub(now), Start: now}, nil
		}
	default:
		return driver.Grant{}, c.refused(l, now)
	}
	l.given = false
	c.ends[claim.Token] = [2]time.Time{now.Add(claim.TTL * 19 / 20), now.Add(claim.TTL)}
	if s.has("hold-ends-with-its-context") {
		context.AfterFunc(ctx, func() { _ = c.Release(context.Background(), claim) })
	}
	return c.grant(l, claim.TTL, now), nil
}

// takeAgain is Acquire by the holder.
func (c *toyClient) takeAgain(l *toyLock, claim driver.Claim, now time.Time) {
	s := c.s
	end := now.Add(s.ttl(claim.TTL))
	if end.After(l.expires) && !s.has("same-token-keeps-its-ttl") || s.has("same-token-shortens") {
		l.ttl, l.expires = end.Sub(now), end
	}
	if s.has("same-token-gets-another-fence") || s.has("same-token-gets-another-fence-after-a-renewal") && l.renewed {
		l.fence = s.nextFence(l.name, c, claim)
	}
}

// refused is Acquire of another's key.
func (c *toyClient) refused(l *toyLock, now time.Time) error {
	s := c.s
	if s.has("refused-attempt-refreshes") {
		l.expires = now.Add(l.ttl)
	}
	if s.has("fence-taken-by-losers") {
		l.fence++
	}
	if s.has("acquire-overtakes") && len(l.queue) == 0 && l.given {
		l.claim.Token = "" // taken from the one whose turn it was
		delete(s.locks, l.name)
	}
	return driver.ErrHeld
}

func (c *toyClient) Renew(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	if err := c.enter(ctx, "renew", claim); err != nil {
		return driver.Grant{}, err
	}
	g, err := c.extend(claim, time.Now())
	if late := c.leave(ctx); late != nil && err == nil {
		err = late
	}
	return g, err
}

// extend is Renew with the store locked.
func (c *toyClient) extend(claim driver.Claim, now time.Time) (driver.Grant, error) {
	s, name := c.s, c.s.name(c, claim.Key)
	if g, ok := c.renewed[claim.Token]; ok && s.has("renewal-answered-from-a-cache") && now.Sub(g.Start) < time.Second {
		return g, nil
	}
	l := s.locks[name]
	if !s.has("renewal-revives-the-expired") {
		l = s.find(name, now)
	}
	l = s.byToken("renewal-by-token-alone", l, claim.Token)
	mine := s.owns(l, claim) || s.has("renewal-of-a-waiter") && l != nil && l.place(claim.Token) >= 0
	if s.has("takeover-ignores-a-renewal") && mine {
		s.step(2 * time.Millisecond) // until it is committed
	}
	if s.has("renew-checks-then-acts") {
		s.step(3 * time.Millisecond)
		l = s.find(name, time.Now())
	}
	switch {
	case l == nil && s.has("renewal-creates"):
		l = &toyLock{name: name}
		s.give(l, c, claim, now)
		s.locks[name] = l
	case l != nil && s.has("renewal-by-any-token"), l != nil && mine:
	case l != nil && s.has("renewal-refused-but-made"):
		l.expires = now.Add(claim.TTL)
		return driver.Grant{}, driver.ErrNotOwner
	default:
		return driver.Grant{}, driver.ErrNotOwner
	}
	c.lengthen(l, claim.TTL, now)
	g := c.grant(l, claim.TTL, now)
	switch {
	case s.has("renewal-tells-what-is-left"):
		g.TTL = l.expires.Sub(now)
	case s.has("renewal-tells-the-first-ttl"):
		g.TTL = max(g.TTL, l.ttl)
	}
	if !s.odd.noFence && s.has("fence-changes-on-renewal") {
		g.Fence++
	}
	if s.has("renewal-creates") || s.has("renewal-by-any-token") {
		g.Fence = 0 // which would give the other grant away
	}
	c.renewed[claim.Token] = g
	return g, nil
}

func (c *toyClient) lengthen(l *toyLock, asked time.Duration, now time.Time) {
	s := c.s
	end := now.Add(s.ttl(asked))
	l.renewed = true
	switch {
	case s.has("renewal-does-nothing"):
		return
	case s.has("renewal-halves"):
		end = now.Add(asked / 2)
	case s.has("renewal-adds"):
		end = l.expires.Add(asked)
	case s.has("renewal-by-the-first-ttl"):
		end = now.Add(l.ttl)
	}
	if end.After(l.expires) || s.has("renewal-shortens") || s.has("renewal-halves") {
		l.expires = end
		s.signal() // whoever waits has set a timer for the end
	}
}

func (c *toyClient) Release(ctx context.Context, claim driver.Claim) error {
	s := c.s
	if err := c.enter(ctx, "release", claim); err != nil {
		return err
	}
	err := c.remove(claim, time.Now())
	if errors.Is(err, driver.ErrNotOwner) && c.sent[claim.Token] > 0 && !s.has("release-forgets-what-was-sent") {
		err = errToyUnsure
	}
	if late := c.leave(ctx); late != nil && err == nil {
		err = late
	}
	return err
}

// remove is Release with the store locked.
func (c *toyClient) remove(claim driver.Claim, now time.Time) error {
	s, name := c.s, c.s.name(c, claim.Key)
	l := s.byToken("release-by-token-alone", s.find(name, now), claim.Token)
	mine := s.owns(l, claim)
	if s.has("release-checks-then-acts") && mine {
		s.step(3 * time.Millisecond)
		if l = s.find(name, time.Now()); l == nil {
			return driver.ErrNotOwner
		}
	}
	switch {
	case l != nil && s.has("release-by-any-token"), l != nil && s.past[claim.Token]:
		mine = true
	case l != nil && s.has("release-unchecked-near-the-end") && l.expires.Sub(now) < l.ttl/20:
		mine = true
	case l != nil && s.has("late-release-unchecked") && c.nearlyOver(claim.Token, now):
		mine = true
	case l == nil && s.has("release-of-the-expired-is-nil") && s.ended[claim.Token]:
		return nil
	case mine && l.given && s.has("given-cannot-be-released"):
		return driver.ErrNotOwner
	case mine && s.has("release-does-nothing"):
		return nil
	}
	if mine {
		s.past[claim.Token] = s.has("released-token-still-releases")
		s.pass(l, now)
		return nil
	}
	if l != nil && !s.has("release-leaves-the-queue-entry") {
		if s.has("release-leaves-the-queue-in-words-only") {
			return nil
		}
		if i := l.place(claim.Token); i >= 0 {
			if s.has("release-of-a-waiter-pops-the-head") {
				i = 0
			}
			l.queue = slices.Delete(l.queue, i, i+1)
			return nil
		}
	}
	if s.has("release-always-nil") {
		return nil
	}
	return driver.ErrNotOwner
}

func (c *toyClient) Close() error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	close(c.done)
	switch {
	case s.has("close-removes-every-lock"):
		clear(s.locks)
	case s.has("fence-reset-on-close"):
		clear(s.fences)
	case s.has("vanished-stays-queued"):
		return nil
	case s.has("close-ends-the-waits-of-all"):
		s.numbers["ended"] = 1
		s.signal()
	}
	for _, l := range s.locks {
		l.queue = slices.DeleteFunc(l.queue, func(w *toyWaiter) bool { return w.client == c })
	}
	return nil
}
