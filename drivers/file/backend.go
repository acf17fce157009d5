//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// backend is one client of a directory.
type backend struct {
	where   place
	done    chan struct{} // closed when Close begins
	closing sync.Once

	// A call that touches the directory has mu for reading, so that Close, which has it for writing, comes after the last of them.
	mu     sync.RWMutex
	closed bool

	dir     atomic.Pointer[dir]
	opening chan struct{} // has room for the one call that opens the directory
	opened  []*dir        // guarded by opening: all that were, as one that was replaced may still be in use

	made      atomic.Int32 // files, since the last sweep
	sweeping  atomic.Bool
	preparing atomic.Bool // in the background
	work      sync.WaitGroup

	mail mail
}

var (
	_ driver.Waiter    = (*backend)(nil)
	_ driver.Inspector = (*backend)(nil)
	_ driver.Breaker   = (*backend)(nil)
	_ driver.Pinger    = (*backend)(nil)
	_ driver.Doctor    = (*backend)(nil)
)

func newBackend(where place) (driver.Backend, error) {
	return &backend{where: where, done: make(chan struct{}), opening: make(chan struct{}, 1)}, nil
}

// enter begins a call: it returns the directory. Without an error, leave has to follow.
func (b *backend) enter(ctx context.Context) (*dir, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.RLock()
	d, err := b.current(ctx)
	if err != nil {
		b.mu.RUnlock()
	}
	return d, err
}

func (b *backend) leave() { b.mu.RUnlock() }

func (b *backend) current(ctx context.Context) (*dir, error) {
	if b.closed {
		return nil, errClosed
	}
	if d := b.dir.Load(); d != nil && d.same() {
		return d, nil
	}
	select {
	case b.opening <- struct{}{}:
		defer func() { <-b.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.done:
		return nil, errClosed
	}
	if d := b.dir.Load(); d != nil && d.same() {
		return d, nil
	}
	return b.openDir(ctx)
}

func (b *backend) openDir(ctx context.Context) (*dir, error) {
	d, err := openDir(b.where)
	if err != nil {
		return nil, err
	}
	a, err := d.prepare(ctx, b.done)
	if err != nil {
		if ctx.Err() == nil || !b.preparing.CompareAndSwap(false, true) {
			d.close()
			return nil, err
		}
		// There may be so many files that no call has the time to look at all of them.
		b.work.Go(func() {
			defer b.preparing.Store(false)
			defer d.close()
			_, _ = d.prepare(context.Background(), b.done)
		})
		return nil, err
	}
	b.opened = append(b.opened, d)
	b.dir.Store(d)
	b.sweepIfDue(d, a)
	return d, nil
}

// change is one atomic step on a key's state.
type change struct {
	b     *backend
	d     *dir
	now   instant
	state state
	dirty bool   // the state is to be written
	wake  letter // to be sent when it was
}

// change gives f the state of key, alone, and writes what f makes of it. Without a file, and unless one is to be made, the answer is errMissing.
func (b *backend) change(ctx context.Context, key string, as how, f func(c *change) error) error {
	d, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer b.leave()
	file, err := d.lock(ctx, b.done, fileName(key), as)
	if err != nil {
		return err
	}
	defer file.close()
	c := change{b: b, d: d}
	if err := c.read(file, key); err != nil {
		return err
	}
	answer := f(&c)
	defer func() { c.wake.drop() }()
	if c.dirty {
		if err := file.write(c.state.encode(make([]byte, recordSize, 512))); err != nil {
			return err
		}
	}
	file.close()
	c.wake.send()
	return answer
}

// read makes c be about the state in file, as it is now.
func (c *change) read(file *locked, key string) (err error) {
	if c.state, err = file.state(); err != nil {
		return err
	}
	if file.seq == 0 {
		if err := c.begin(key); err != nil {
			return err
		}
	}
	if c.state.key != key {
		return c.d.damaged(file.name, errOtherKey)
	}
	c.now.time = time.Now() // first: see instant
	c.now.mono = monotonic()
	c.state.settle(c.d.boot, c.now.mono)
	return nil
}

// begin is for a file without a record. Its fences go on where those of files that were removed ended.
func (c *change) begin(key string) error {
	a, err := c.d.about()
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	c.state.key, c.state.fence = key, a.floor
	c.b.made.Add(1)
	c.b.sweepIfDue(c.d, a)
	return nil
}

// Close leaves holds until they expire. Claims of this client that wait are passed over from now on.
func (b *backend) Close() error {
	b.closing.Do(func() {
		close(b.done)
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		b.mail.close()
		b.work.Wait()
		for _, d := range b.opened {
			d.close()
		}
	})
	return nil
}

// failed names the operation, unless the answer is one that the engine knows.
func failed(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrNotOwner):
		return err
	}
	return fmt.Errorf("file: %s: %w", op, err)
}
