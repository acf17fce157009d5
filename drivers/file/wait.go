//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// errNoBox says that a claim has to queue and has no mailbox, or no longer.
var errNoBox = errors.New("no mailbox")

// Wait implements [driver.Waiter]. Nothing runs in the background but the reader of the mailbox: each waiting call looks at the key when it gets a letter, when the holder's TTL has passed, and now and
// then to say that it is there. Whoever looks first at a key that has become free passes it on, be it to another.
func (b *backend) Wait(ctx context.Context, claim driver.Claim, queued func()) (driver.Grant, error) {
	w := waiter{token: claim.Token, owner: claim.Owner, ttl: claim.TTL}
	defer func() { b.mail.unregister(w.ticket) }()
	var woken <-chan struct{}
	heard, rumours := false, 0 // whether a letter made us look, and how many in a row told nothing
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		g, pause, err := b.look(ctx, claim, w)
		switch {
		case errors.Is(err, errNoBox):
			b.mail.unregister(w.ticket)
			if w.box, w.ticket, woken, err = b.register(ctx); err != nil {
				return driver.Grant{}, failed("wait", err)
			}
			continue
		case !errors.Is(err, driver.ErrHeld):
			return g, failed("wait", err)
		}
		queued()
		letters := woken
		if heard { // in a directory of a group everybody can write letters
			letters, pause = nil, min(pause, deafFor(rumours))
			rumours++
		}
		timer.Reset(pause)
		heard = false
		select {
		case <-letters:
			heard = true
		case <-timer.C:
			if letters != nil {
				rumours = 0
			}
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		case <-b.done:
			return driver.Grant{}, failed("wait", errClosed)
		}
	}
}

// deafFor is how long a call does not listen for letters after so many and one that told nothing.
func deafFor(rumours int) time.Duration { return 10 * time.Millisecond << min(rumours, 8) }

// look gets the key, or ErrHeld and a place in the queue, and says when to look again.
func (b *backend) look(ctx context.Context, claim driver.Claim, w waiter) (g driver.Grant, pause time.Duration, err error) {
	err = b.change(ctx, claim.Key, create, func(c *change) (err error) {
		s := &c.state
		if s.holder == claim.Token { // it was passed on to us
			g = s.grant(c.now)
			return nil
		}
		w.seen = c.now.mono
		if i := s.place(w.token); i >= 0 {
			s.queue[i] = w
		}
		if g, err = c.acquire(claim); !errors.Is(err, driver.ErrHeld) {
			return err
		}
		if w.box == "" || !b.mail.has(c.d, w.box) {
			return errNoBox
		}
		i := s.enqueue(w)
		c.dirty = true
		// When the holder's TTL has passed the first in line looks first, and usually alone.
		left := min(time.Duration(s.expires-c.now.mono), time.Minute) // a hold may last for ever
		pause = min(lookEvery(w.ttl), left+time.Duration(i)*2*time.Millisecond)
		return driver.ErrHeld
	})
	return g, pause, err
}

func (b *backend) register(ctx context.Context) (name string, ticket uint64, woken <-chan struct{}, err error) {
	d, err := b.enter(ctx)
	if err != nil {
		return "", 0, nil, err
	}
	defer b.leave()
	return b.mail.register(d)
}
