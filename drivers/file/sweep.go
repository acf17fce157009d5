//go:build linux || darwin

package file

import (
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepEvery = time.Minute
	sweepAfter = 256 // files made by one process
)

// sweepIfDue has files removed that nobody needs, if that was not done for a while or this process has made many.
func (b *backend) sweepIfDue(d *dir, a about) {
	now := monotonic()
	due := a.swept > now || a.swept < now-int64(sweepEvery) || b.made.Load() >= sweepAfter
	if !due || !b.sweeping.CompareAndSwap(false, true) {
		return
	}
	b.made.Store(0)
	b.work.Go(func() {
		defer b.sweeping.Store(false)
		_ = d.sweep(b.done) // whoever comes next tries again
	})
}

// sweep removes the files of keys that nobody holds or waits for, and the mailboxes of processes that are gone. One process does it at a time, in small steps: one
// that ends soon does its part.
func (d *dir) sweep(done <-chan struct{}) error {
	f, err := d.tryLock(aboutName)
	if err != nil || f == nil {
		return err
	}
	defer f.close()
	a, err := decodeAbout(f.body)
	if err != nil || a.boot != d.boot { // it is to be prepared first
		return err
	}
	names, err := d.names()
	if err != nil {
		return err
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for some := range slices.Chunk(names, 64) {
		if err := d.raiseFloor(done, f, &a, some); err != nil {
			return err
		}
		for _, name := range some {
			if isClosed(done) { // asked for every file, as each may take its time
				return nil
			}
			d.tidy(name, a.floor)
		}
	}
	a.swept = monotonic()
	return f.write(a.encode())
}

// raiseFloor sees to it that the floor is not below the fences of some files, before any of them goes: from there the next file of a key goes on, also when the
// wall clock was set back meanwhile.
func (d *dir) raiseFloor(done <-chan struct{}, f *locked, a *about, names []string) error {
	floor := a.floor
	for _, name := range names {
		if isClosed(done) {
			return errClosed
		}
		if !isKeyFile(name) {
			continue
		}
		if _, body, err := d.peek(name); err == nil {
			if s, _ := decodeState(body); s.fence <= maxFloor { // the file of another one stays
				floor = max(floor, s.fence)
			}
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
	f, err := d.tryLock(name)
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
func (d *dir) tryLock(name string) (*locked, error) {
	f, err := d.open(name, false)
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
