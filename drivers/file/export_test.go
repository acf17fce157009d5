//go:build linux || darwin

package file

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver"
)

// FileName is the name of a key's file.
var FileName = fileName

// DefaultDir is where the locks of a user are whose environment has nothing but HOME.
func DefaultDir(home string, uid int) string {
	return defaultPlace(func(name string) string { return map[string]string{"HOME": home}[name] }, uid).path
}

// Monotonic reads the clock that all processes share.
var Monotonic = monotonic

// Restart makes this process take the machine for one that was started as id, until the function it returns is called.
func Restart(id string) (undo func()) {
	before := thisBoot
	thisBoot = func() (string, error) { return id, nil }
	return func() { thisBoot = before }
}

// WithoutSync makes this process do without syncing files.
func WithoutSync() { fsync = func(int) error { return nil } }

// KillAfter makes this process write no more than n bytes, like one that is killed then, until the function it returns is called.
func KillAfter(n int) (undo func()) {
	before := pwrite
	pwrite = func(fd int, b []byte, at int64) (int, error) {
		if n == 0 {
			return 0, errors.New("killed")
		}
		b = b[:min(n, len(b))]
		n -= len(b)
		return before(fd, b, at)
	}
	return func() { pwrite = before }
}

// Sweep removes the files that nobody needs.
func Sweep(b driver.Backend) error {
	d, err := b.(*backend).enter(context.Background())
	if err != nil {
		return err
	}
	defer b.(*backend).leave()
	return d.sweep(b.(*backend).done)
}

// SetFence makes fence the last one that was given for key, as if the wall clock had been there.
func SetFence(b driver.Backend, key string, fence uint64) error {
	return b.(*backend).change(context.Background(), key, true, func(c *change) error {
		c.state.fence, c.dirty = fence, true
		return nil
	})
}

// Enqueue puts c into the queue, as a Wait does that ends before it has the key.
func Enqueue(b driver.Backend, c driver.Claim) error {
	return b.(*backend).change(context.Background(), c.Key, true, func(ch *change) error {
		ch.state.enqueue(waiter{token: c.Token, owner: c.Owner, ttl: c.TTL, seen: ch.now.mono})
		ch.dirty = true
		return nil
	})
}
