package dlocktest

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var (
	_ driver.Waiter       = (*toyClient)(nil)
	_ driver.BatchRenewer = (*toyClient)(nil)
	_ driver.Inspector    = (*toyClient)(nil)
	_ driver.Breaker      = (*toyClient)(nil)
	_ driver.Pinger       = (*toyClient)(nil)
	_ driver.Doctor       = (*toyClient)(nil)
	_ driver.CallModer    = (*toyClient)(nil)
)

func (c *toyClient) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	s := c.s
	answers := make([]driver.Renewal, len(claims))
	if err := c.enter(ctx, "batch", driver.Claim{}); err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	now := time.Now()
	for i, claim := range claims {
		if s.has("batch-goes-by-the-first-ttl") {
			claim.TTL = claims[0].TTL
		}
		if s.has("batch-does-nothing") || s.has("batch-ends-at-100") && i >= 100 {
			answers[i].Grant, answers[i].Err = c.look(claim, now)
			continue
		}
		answers[i].Grant, answers[i].Err = c.extend(claim, now)
		if s.has("batch-tells-what-is-left") && answers[i].Err == nil {
			answers[i].Grant.TTL = s.locks[claim.Key].expires.Sub(now)
		}
		if s.has("batch-shortens") && answers[i].Err == nil {
			s.locks[claim.Key].expires = now.Add(claim.TTL)
		}
	}
	_ = c.leave(ctx)
	return c.mixed(answers)
}

// look answers as Renew would, and does nothing.
func (c *toyClient) look(claim driver.Claim, now time.Time) (driver.Grant, error) {
	l := c.s.find(claim.Key, now)
	if !c.s.owns(l, claim) {
		return driver.Grant{}, driver.ErrNotOwner
	}
	return driver.Grant{Fence: l.fence, TTL: claim.TTL, Start: now}, nil
}

// mixed is answers, or what a broken driver makes of them.
func (c *toyClient) mixed(answers []driver.Renewal) []driver.Renewal {
	switch s := c.s; {
	case s.has("batch-answers-in-another-order"):
		slices.Reverse(answers)
	case s.has("batch-fails-as-a-whole"):
		for _, a := range answers {
			if a.Err != nil {
				return slices.Repeat([]driver.Renewal{a}, len(answers))
			}
		}
	case s.has("batch-chunks-come-as-they-will"):
		chunks := slices.Collect(slices.Chunk(answers, 64))
		slices.Reverse(chunks)
		return slices.Concat(chunks...)
	case s.has("batch-chunk-fails-as-a-whole") && len(answers) > 64:
		for chunk := range slices.Chunk(answers, 64) {
			if i := slices.IndexFunc(chunk, func(a driver.Renewal) bool { return a.Err != nil }); i >= 0 {
				copy(chunk, slices.Repeat(chunk[i:i+1], len(chunk)))
			}
		}
	case s.has("batch-fails-above-2000") && len(answers) > 2000:
		return slices.Repeat([]driver.Renewal{{Err: errToyDown}}, len(answers))
	case s.has("batch-answers-nothing-with-one") && len(answers) == 0:
		return make([]driver.Renewal, 1)
	}
	return answers
}

func (c *toyClient) Inspect(ctx context.Context, key string) (driver.Info, error) {
	if err := c.enter(ctx, "inspect", driver.Claim{}); err != nil {
		return driver.Info{}, err
	}
	s, now := c.s, time.Now()
	defer s.mu.Unlock()
	l := s.locks[s.name(c, key)]
	if !s.has("inspect-shows-the-expired") {
		l = s.find(s.name(c, key), now)
	}
	info := driver.Info{Key: key}
	if l != nil {
		info = c.info(l, key, now)
	} else if s.has("inspect-shows-the-last-fence") {
		info.Fence = s.fences[key]
	}
	return info, nil
}

func (c *toyClient) info(l *toyLock, key string, now time.Time) driver.Info {
	s := c.s
	info := driver.Info{Key: key, Owner: l.claim.Owner, Fence: l.fence, TTL: l.expires.Sub(now), Since: l.since}
	for _, w := range l.queue {
		info.Waiters = append(info.Waiters, w.claim.Owner)
	}
	switch {
	case s.odd.noFence:
		info.Fence = 0
	case s.has("inspect-shows-the-first-ttl"):
		info.TTL = l.since.Add(l.ttl).Sub(now)
	case s.has("inspect-shows-another-fence"):
		info.Fence++
	case s.has("inspect-shows-the-token") && info.Owner == "":
		info.Owner = l.claim.Token
	case s.has("inspect-shows-the-tokens-of-waiters"):
		for i, w := range l.queue {
			info.Waiters[i] = cmp.Or(info.Waiters[i], w.claim.Token)
		}
	case s.has("inspect-shows-the-queue-backwards"):
		slices.Reverse(info.Waiters)
	}
	return info
}

func (c *toyClient) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	return func(yield func(driver.Info, error) bool) {
		infos, err := c.snapshot(ctx, prefix)
		for i, info := range infos {
			if c.s.has("list-is-one-page") && i == 100 {
				return
			}
			if !yield(info, nil) && !c.s.has("list-does-not-stop") {
				return
			}
			if c.s.has("list-yields-twice") && i == 0 && !yield(info, nil) {
				return
			}
		}
		if err != nil {
			yield(driver.Info{}, err)
		}
	}
}

func (c *toyClient) snapshot(ctx context.Context, prefix string) ([]driver.Info, error) {
	if err := c.enter(ctx, "list", driver.Claim{}); err != nil {
		return nil, err
	}
	s, now := c.s, time.Now()
	defer s.mu.Unlock()
	var infos []driver.Info
	for name := range s.locks {
		l := s.locks[name]
		if !s.has("inspect-shows-the-expired") {
			l = s.find(name, now)
		}
		key := name
		if l != nil {
			key = l.claim.Key
		}
		matches := strings.HasPrefix(key, prefix)
		switch {
		case s.has("list-takes-patterns"):
			matches, _ = path.Match(prefix+"*", name)
		case s.has("list-by-like"):
			matches = like(key, prefix)
		case s.has("list-ignores-the-prefix"):
			matches = true
		}
		if l != nil && matches {
			infos = append(infos, c.info(l, key, now))
		}
	}
	slices.SortFunc(infos, func(x, y driver.Info) int { return strings.Compare(x.Key, y.Key) })
	return infos, nil
}

func (c *toyClient) Break(ctx context.Context, key string, fence uint64) error {
	if c.s.odd.noFence {
		return errors.ErrUnsupported
	}
	if err := c.enter(ctx, "break", driver.Claim{}); err != nil {
		return err
	}
	s, now := c.s, time.Now()
	defer s.mu.Unlock()
	l := s.find(s.name(c, key), now)
	switch {
	case l == nil || l.fence != fence && !s.has("break-ignores-the-fence"):
		return driver.ErrNotOwner
	case s.has("break-does-nothing"):
	case s.has("break-forgets-the-queue"):
		l.queue = nil
		s.pass(l, now)
	case s.has("fence-reset-on-break"):
		s.pass(l, now)
		delete(s.fences, l.name)
	default:
		s.pass(l, now)
	}
	return nil
}

func (c *toyClient) Ping(ctx context.Context) error {
	if c.s.has("ping-nil-after-close") && isClosed(c.done) {
		return nil
	}
	if err := c.enter(ctx, "ping", driver.Claim{}); err != nil {
		return err
	}
	if c.s.has("ping-writes") {
		_, _ = c.take(ctx, driver.Claim{Key: "ping", Token: newToken(), TTL: time.Second})
	}
	return c.leave(ctx)
}

func (c *toyClient) Diagnose(context.Context) ([]driver.Finding, error) {
	findings := []driver.Finding{
		{ID: "toy-memory", Level: "warning", Text: "locks are kept in memory", Advice: "use a real store"},
		{ID: "toy-test", Level: "info", Text: "this is a test"},
	}
	switch {
	case c.s.has("doctor-tells-the-best-first"):
		slices.Reverse(findings)
	case c.s.has("doctor-has-levels-of-its-own"):
		findings[0].Level = "WARN"
	}
	return findings, nil
}

func (c *toyClient) CallMode() driver.CallMode {
	switch {
	case c.s.has("inline-but-slow"):
		return driver.Inline
	case c.s.odd.interruptible || c.s.has("interruptible-but-slow"):
		return driver.Interruptible
	default:
		return driver.Detached
	}
}
