//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"os"
	"time"

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

// BeforeWrite makes this process call f whenever it is about to write to a file.
func BeforeWrite(f func()) {
	before := pwrite
	pwrite = func(fd int, b []byte, at int64) (int, error) {
		f()
		return before(fd, b, at)
	}
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
	return b.(*backend).change(context.Background(), key, create, func(c *change) error {
		c.state.fence, c.dirty = fence, true
		return nil
	})
}

// Enqueue puts c into the queue, as a Wait does that ends before it has the key.
func Enqueue(b driver.Backend, c driver.Claim) error {
	return b.(*backend).change(context.Background(), c.Key, create, func(ch *change) error {
		ch.state.enqueue(waiter{token: c.Token, owner: c.Owner, ttl: c.TTL, seen: ch.now.mono})
		ch.dirty = true
		return nil
	})
}

// OpenBox opens a mailbox that was just made.
func OpenBox(b driver.Backend, name string) error {
	d, err := b.(*backend).enter(context.Background())
	if err != nil {
		return err
	}
	defer b.(*backend).leave()
	box, err := d.openBox(name)
	box.close()
	return err
}

// Register returns the ticket of a call that waits, and where it hears of its letters.
func Register(b driver.Backend) (ticket uint64, woken <-chan struct{}, err error) {
	_, ticket, woken, err = b.(*backend).register(context.Background())
	return ticket, woken, err
}

// MaxSize is how large a lock's file may be.
const MaxSize = maxSize

// MaxFence is the last fence.
const MaxFence = maxFence

// IsKeyFile, IsBox and IsLeftover tell what a name in the directory is.
var IsKeyFile, IsBox, IsLeftover = isKeyFile, isBox, isLeftover

// Forged is what somebody who may write to a lock's file can put into it.
type Forged struct {
	Key                   string
	Number                uint64 // of the record
	Fence                 uint64
	Since, Start, Expires int64
	Queue                 []ForgedWaiter
}

// ForgedWaiter is a place in the queue that nobody asked for.
type ForgedWaiter struct {
	Nobody bool // it has no token
	Box    string
	Ticket uint64
	TTL    time.Duration
	Seen   int64
}

// Forge changes what a lock's file says, in place and with checksums that are right.
func Forge(file string, change func(f *Forged)) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, body, err := parse(data)
	if err != nil {
		return err
	}
	s, err := decodeState(body)
	if err != nil {
		return err
	}
	f := Forged{Key: s.key, Number: 1, Fence: s.fence, Since: s.since, Start: s.start, Expires: s.expires}
	change(&f)
	s.key, s.fence, s.since, s.start, s.expires, s.queue = f.Key, f.Fence, f.Since, f.Start, f.Expires, nil
	for i, w := range f.Queue {
		forged := waiter{token: "forged" + string(rune('a'+i)), owner: "forger", ttl: w.TTL, box: w.Box, ticket: w.Ticket, seen: w.Seen}
		if w.Nobody {
			forged.token = ""
		}
		s.queue = append(s.queue, forged)
	}
	return os.WriteFile(file, fileImage(s.encode(make([]byte, recordSize)), f.Number), 0o600)
}

// ForgeAbout makes the directory's own file say this.
func ForgeAbout(file, boot string, floor uint64, swept int64) error {
	return os.WriteFile(file, fileImage(about{boot: boot, floor: floor, swept: swept}.encode(), 1), 0o600)
}

// fileImage is a file whose only record is b, which has room for the record's head in front.
func fileImage(b []byte, seq uint64) []byte {
	seal(b, seq)
	image := make([]byte, sizeFor(len(b)-recordSize))
	copy(image, header(markOf(seq)))
	copy(image[slotAt(seq, len(image)):], b)
	return image
}

// Sealed is a file whose only record has this body, with checksums that are right.
func Sealed(body []byte) []byte { return fileImage(append(make([]byte, recordSize), body...), 1) }

// Body is what the record of a file says that counts.
func Body(image []byte) []byte {
	_, body, _ := parse(image)
	return body
}

// Writes is how often a lock's file was written.
func Writes(file string) (uint64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	seq, _, err := parse(data)
	return seq, err
}
