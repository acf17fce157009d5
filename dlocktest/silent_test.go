package dlocktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// switchable is on or off.
type switchable struct {
	mu  sync.Mutex
	off chan struct{} // closed when it is switched off; nil: it is off
}

func (s *switchable) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.off == nil:
		s.off = make(chan struct{})
	case !on && s.off != nil:
		close(s.off)
		s.off = nil
	}
}

// isOn returns what is closed when it is switched off, nil if it is off.
func (s *switchable) isOn() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.off
}

// silent is a client of a store that may stop answering.
type silent struct {
	*faulty
	hung *switchable
}

var errNoAnswer = errors.New("the store has not answered")

// ask returns an error if the store did not answer.
func (b *silent) ask(ctx context.Context) error {
	off := b.hung.isOn()
	if off == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-off:
		return errNoAnswer
	}
}

func (b *silent) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := b.ask(ctx); err != nil {
		return driver.Grant{}, err
	}
	return b.faulty.Acquire(ctx, c)
}

func (b *silent) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := b.ask(limited); err != nil {
		return driver.Grant{}, err
	}
	return b.faulty.Wait(ctx, c, queued)
}

func (b *silent) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := b.ask(ctx); err != nil {
		return driver.Grant{}, err
	}
	return b.faulty.Renew(ctx, c)
}

func (b *silent) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	if err := b.ask(ctx); err != nil {
		renewals := make([]driver.Renewal, len(claims))
		for i := range renewals {
			renewals[i].Err = err
		}
		return renewals
	}
	return b.faulty.RenewBatch(ctx, claims)
}

func (b *silent) Release(ctx context.Context, c driver.Claim) error {
	if err := b.ask(ctx); err != nil {
		return err
	}
	return b.faulty.Release(ctx, c)
}
