//go:build linux || darwin

package file

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// about is what a directory knows of itself.
type about struct {
	boot  string // the boot of the machine in which it was last used
	floor uint64 // no file that was removed had a fence above this one
	swept int64  // when files that nobody needs were last removed
}

func (a about) encode() []byte {
	b := putText(make([]byte, recordSize, 128), a.boot)
	b = binary.LittleEndian.AppendUint64(b, a.floor)
	return binary.LittleEndian.AppendUint64(b, uint64(a.swept))
}

func decodeAbout(body []byte) (about, error) {
	if len(body) == 0 {
		return about{}, nil
	}
	d := decoder{b: body}
	a := about{boot: d.text(), floor: d.num(), swept: d.int()}
	if d.bad || len(d.b) > 0 {
		return about{}, errBody
	}
	return a, nil
}

// about reads what the directory knows of itself.
func (d *dir) about() (about, error) {
	_, body, err := d.peek(aboutName)
	if errors.Is(err, errMissing) {
		return about{}, nil
	}
	if err != nil {
		return about{}, err
	}
	a, err := decodeAbout(body)
	if err != nil {
		return about{}, d.damaged(aboutName, err)
	}
	return a, nil
}

// prepare is the first thing to be done with a directory after it was opened. What a crash of the machine left half written is removed by the
// first one who comes: until it has said so in the directory nobody else of this boot writes, so whatever is damaged is from before.
func (d *dir) prepare(ctx context.Context, done <-chan struct{}) (about, error) {
	a, err := d.about()
	if err == nil && a.boot == d.boot {
		return a, nil
	}
	f, err := d.lock(ctx, done, aboutName, true)
	if err != nil {
		return about{}, err
	}
	defer f.close()
	if a, err = decodeAbout(f.body); err != nil {
		return about{}, d.damaged(aboutName, err)
	}
	if a.boot == d.boot {
		return a, nil
	}
	if a.boot != "" {
		if err := d.removeDamaged(); err != nil {
			return about{}, err
		}
	}
	a.boot, a.swept = d.boot, monotonic()
	return a, f.keep(a.encode())
}

// removeDamaged removes the files that cannot be read. Those of a crash lost their fences; the wall clock keeps the next ones above.
func (d *dir) removeDamaged() error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !isKeyFile(name) {
			continue
		}
		_, body, err := d.peek(name)
		if err == nil && body != nil {
			_, err = decodeState(body)
		}
		if errors.Is(err, errDamaged) {
			if err := d.remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	sweepEvery = time.Minute
	sweepAfter = 256 // files made by one process
)

// sweep removes the files of keys that nobody holds or waits for, and the mailboxes of processes that are gone. One process does it at a time, in small steps: one
// that ends soon does its part.
func (d *dir) sweep(done <-chan struct{}) error {
	f, err := d.tryLock(aboutName, true)
	if err != nil || f == nil {
		return err
	}
	defer f.close()
	a, err := decodeAbout(f.body)
	if err != nil {
		return d.damaged(aboutName, err)
	}
	names, err := d.names()
	if err != nil {
		return err
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for some := range slices.Chunk(names, 64) {
		if isClosed(done) {
			return nil
		}
		if err := d.raiseFloor(f, &a, some); err != nil {
			return err
		}
		for _, name := range some {
			d.tidy(name, a.floor)
		}
	}
	a.swept = monotonic()
	return f.keep(a.encode())
}

// raiseFloor sees to it that the floor is not below the fences of some files, before any of them goes: from there the next file of a key goes on, also when the
// wall clock was set back meanwhile.
func (d *dir) raiseFloor(f *locked, a *about, names []string) error {
	floor := a.floor
	for _, name := range names {
		if !isKeyFile(name) {
			continue
		}
		if _, body, err := d.peek(name); err == nil {
			s, _ := decodeState(body)
			floor = max(floor, s.fence)
		}
	}
	if floor == a.floor {
		return nil
	}
	a.floor = floor
	return f.keep(a.encode())
}

// tidy removes one file if nobody needs it.
func (d *dir) tidy(name string, floor uint64) {
	switch {
	case isBox(name) && d.deadBox(name), isLeftover(name) && d.old(name):
		_ = d.remove(name)
	case isKeyFile(name):
		d.tidyKey(name, floor)
	}
}

// tidyKey removes a key's file if nobody holds the key or waits for it.
func (d *dir) tidyKey(name string, floor uint64) {
	f, err := d.tryLock(name, false)
	if err != nil || f == nil {
		return
	}
	defer f.close()
	s, err := f.state()
	if err != nil {
		return
	}
	s.settle(d.boot, monotonic())
	if s.holder == "" && !s.awaited(monotonic()) && s.fence <= floor {
		_ = d.remove(name)
	}
}

// old reports whether a file was made long ago. Nobody takes that long for what is done with it.
func (d *dir) old(name string) bool {
	var s unix.Stat_t
	return fstatAt(d.fd, name, &s) == nil && time.Since(time.Unix(s.Mtim.Unix())) > time.Hour
}

// tryLock is lock that does not wait: no file is the answer when another process works on it.
func (d *dir) tryLock(name string, create bool) (*locked, error) {
	f, err := d.open(name, create)
	if err != nil {
		return nil, err
	}
	if err := flock(f.fd, lockNow); err != nil {
		f.close()
		return nil, nil
	}
	if gone, err := f.read(); err != nil || gone {
		f.close()
		return nil, err
	}
	return f, nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
