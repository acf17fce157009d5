package dlocktest

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// faulty is a client of a store in memory, with a network in between that can fail.
type faulty struct {
	*memory.Backend

	mu    sync.Mutex
	err   error           // what every call returns; nil: the network works
	down  context.Context // ends when err is set
	end   context.CancelFunc
	holds map[string]driver.Claim // the last claim that was granted, by key
	cuts  map[string]cut          // by token
}

// cut is what has become of a hold that is taken from its holder.
type cut int

const (
	cutGone   cut = iota + 1 // the store says that it is gone
	cutSilent                // the store says nothing
)

var errSilent = errors.New("dlocktest: the store does not answer")

func newFaulty(b *memory.Backend) *faulty {
	f := &faulty{Backend: b, holds: map[string]driver.Claim{}, cuts: map[string]cut{}}
	f.down, f.end = context.WithCancel(context.Background())
	return f
}

func (f *faulty) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	f.end()
	if err == nil {
		f.down, f.end = context.WithCancel(context.Background())
	}
}

// cut takes key from whoever holds it.
func (f *faulty) cut(key string, how cut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.holds[key]; ok {
		f.cuts[c.Token] = how
	}
}

func (f *faulty) holder(key string) (driver.Claim, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.holds[key]
	return c, ok
}

// trouble is why a call for c cannot be made.
func (f *faulty) trouble(c driver.Claim) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.cuts[c.Token] {
	case cutGone:
		return driver.ErrNotOwner
	case cutSilent:
		return errSilent
	default:
		return f.err
	}
}

// granted notes who holds the key.
func (f *faulty) granted(c driver.Claim, g driver.Grant, err error) (driver.Grant, error) {
	if err == nil {
		f.mu.Lock()
		f.holds[c.Key] = c
		f.mu.Unlock()
	}
	return g, err
}

func (f *faulty) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := f.trouble(c); err != nil {
		return driver.Grant{}, err
	}
	g, err := f.Backend.Acquire(ctx, c)
	return f.granted(c, g, err)
}

func (f *faulty) Wait(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := f.trouble(c); err != nil {
		return driver.Grant{}, err
	}
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(down, cancel)()
	g, err := f.Backend.Wait(waiting, c)
	if why := f.trouble(c); err != nil && ctx.Err() == nil && why != nil {
		return driver.Grant{}, why
	}
	return f.granted(c, g, err)
}

func (f *faulty) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := f.trouble(c); err != nil {
		return driver.Grant{}, err
	}
	return f.Backend.Renew(ctx, c)
}

func (f *faulty) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	renewals := make([]driver.Renewal, len(claims))
	for i, c := range claims {
		renewals[i].Grant, renewals[i].Err = f.Renew(ctx, c)
	}
	return renewals
}

func (f *faulty) Release(ctx context.Context, c driver.Claim) error {
	if err := f.trouble(c); err != nil {
		return err
	}
	return f.Backend.Release(ctx, c)
}

func (f *faulty) Ping(ctx context.Context) error {
	if err := f.trouble(driver.Claim{}); err != nil {
		return err
	}
	return f.Backend.Ping(ctx)
}

func (f *faulty) Inspect(ctx context.Context, key string) (driver.Info, error) {
	if err := f.trouble(driver.Claim{}); err != nil {
		return driver.Info{}, err
	}
	return f.Backend.Inspect(ctx, key)
}

func (f *faulty) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	if err := f.trouble(driver.Claim{}); err != nil {
		return func(yield func(driver.Info, error) bool) { yield(driver.Info{}, err) }
	}
	return f.Backend.List(ctx, prefix)
}

func (f *faulty) Break(ctx context.Context, key string, fence uint64) error {
	if err := f.trouble(driver.Claim{}); err != nil {
		return err
	}
	return f.Backend.Break(ctx, key, fence)
}
