//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"slices"

	"github.com/dlock-go/dlock/driver"
)

// Acquire implements [driver.Backend].
func (b *backend) Acquire(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	var g driver.Grant
	err := b.change(ctx, claim.Key, create|hasty, func(c *change) (err error) {
		g, err = c.acquire(claim)
		return err
	})
	if errors.Is(err, errBusy) && b.saysOf(ctx, claim, (*state).heldByAnother) {
		err = driver.ErrHeld
	}
	return g, failed("acquire", err)
}

// saysOf reports whether the key's file says this of a claim. It does not need the flock, which a
// process that is stopped may keep: until that process goes on, nobody changes what the file says.
func (b *backend) saysOf(ctx context.Context, claim driver.Claim, this func(s *state, token string) bool) bool {
	d, err := b.enter(ctx)
	if err != nil {
		return false
	}
	defer b.leave()
	s, err := d.look(fileName(claim.Key))
	return err == nil && this(&s, claim.Token)
}

func (c *change) acquire(claim driver.Claim) (driver.Grant, error) {
	s := &c.state
	if s.holder == "" {
		c.passOn() // to whoever waits, which may be the claim itself
	}
	switch s.holder {
	case "":
		if s.fence >= maxFence {
			return driver.Grant{}, c.d.damaged(fileName(claim.Key), errNoFence)
		}
		s.give(claim.Token, claim.Owner, claim.TTL, c.now)
	case claim.Token:
		s.lengthen(claim.TTL, c.now)
	default:
		return driver.Grant{}, driver.ErrHeld
	}
	c.dirty = true
	return s.grant(c.now), nil
}

// Renew implements [driver.Backend].
func (b *backend) Renew(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	var g driver.Grant
	err := b.change(ctx, claim.Key, 0, func(c *change) error {
		s := &c.state
		if s.holder != claim.Token || s.holder == "" {
			return driver.ErrNotOwner
		}
		s.lengthen(claim.TTL, c.now)
		c.dirty = true
		g = s.grant(c.now)
		return nil
	})
	return g, failed("renew", orNotOwner(err))
}

// Release implements [driver.Backend].
func (b *backend) Release(ctx context.Context, claim driver.Claim) error {
	err := b.release(ctx, claim, hasty)
	if errors.Is(err, errBusy) {
		if b.saysOf(ctx, claim, (*state).unknown) {
			return driver.ErrNotOwner
		}
		err = b.release(ctx, claim, 0)
	}
	return failed("release", orNotOwner(err))
}

func (b *backend) release(ctx context.Context, claim driver.Claim, as how) error {
	return b.change(ctx, claim.Key, as, func(c *change) error {
		switch s := &c.state; {
		case s.holder == claim.Token && s.holder != "":
			c.handOver()
		case !s.leave(claim.Token):
			return driver.ErrNotOwner
		}
		c.dirty = true
		return nil
	})
}

// Break implements [driver.Breaker].
func (b *backend) Break(ctx context.Context, key string, fence uint64) error {
	err := b.change(ctx, key, 0, func(c *change) error {
		if c.state.holder == "" || c.state.fence != fence {
			return driver.ErrNotOwner
		}
		c.handOver()
		return nil
	})
	return failed("break", orNotOwner(err))
}

// orNotOwner says what a missing file means: nobody holds the key.
func orNotOwner(err error) error {
	if errors.Is(err, errMissing) {
		return driver.ErrNotOwner
	}
	return err
}

// handOver ends the hold and gives the key to whoever is next.
func (c *change) handOver() {
	c.state.free()
	c.dirty = true
	c.passOn()
}

// passOn gives a free key to the first in the queue who is there. Those in front, who are not, have lost their place.
func (c *change) passOn() {
	s, asked := &c.state, 0
	for ; asked < len(s.queue) && s.holder == "" && s.fence < maxFence; asked++ {
		w := s.queue[asked]
		if w.silent(c.now.mono) {
			continue
		}
		var there bool
		if c.wake, there = c.d.address(w); there {
			s.give(w.token, w.owner, w.ttl, c.now)
		}
	}
	if asked > 0 { // all at once: a forged queue may be long
		s.queue = slices.Delete(s.queue, 0, asked)
		c.dirty = true
	}
}
