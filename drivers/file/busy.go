//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A process works on a file for some microseconds, unless it is stopped just then.
const (
	// lockLimit is how long to wait for one that works on the same file.
	lockLimit = 5 * time.Second

	// hastyLimit is how long whoever does not want to wait does: an Acquire that is made twice is
	// answered within the five seconds that callers give it.
	hastyLimit = 2 * time.Second

	// keeperEvery is how often to ask who it is. One that is stopped twice in a row is not just
	// being started or debugged.
	keeperEvery = 100 * time.Millisecond
)

var errBusy = errors.New("another process keeps the file locked; is it stopped?")

const lockNow = unix.LOCK_EX | unix.LOCK_NB

// lockFile gets the flock of fd, unless ctx ends, done is closed or the limit passes before. It polls, because a blocked flock could not be left.
func lockFile(ctx context.Context, done <-chan struct{}, fd int, hasty bool) error {
	err := flock(fd, lockNow)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	began, limit := time.Now(), lockLimit
	if hasty {
		limit = hastyLimit
	}
	keeper, pause := keeper{fd: fd}, 5*time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return keeper.sayAlso(ctx.Err(), time.Since(began))
		case <-done:
			return errClosed
		}
		if err := flock(fd, lockNow); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		waited := time.Since(began)
		keeper.look(waited)
		if waited > limit || hasty && keeper.stopped > 1 {
			return keeper.error()
		}
		pause = min(2*pause, 2*time.Millisecond)
		timer.Reset(pause)
	}
}

// keeper is the process that keeps a file locked, as far as that can be known.
type keeper struct {
	fd      int
	looks   int
	pid     int // 0: not known
	stopped int // at so many looks in a row
}

// look finds out who it is, now and then.
func (k *keeper) look(waited time.Duration) {
	if waited < time.Duration(k.looks+1)*keeperEvery {
		return
	}
	k.looks++
	before := k.pid
	k.pid = flockOwner(k.fd)
	switch {
	case k.pid == 0 || !isStopped(k.pid):
		k.stopped = 0
	case k.pid != before:
		k.stopped = 1
	default:
		k.stopped++
	}
}

// error says who keeps the file locked.
func (k *keeper) error() error {
	switch {
	case k.stopped > 0:
		return fmt.Errorf("%w Process %d is: continue it or kill it", errBusy, k.pid)
	case k.pid > 0:
		return fmt.Errorf("%w It is process %d", errBusy, k.pid)
	}
	return errBusy
}

// sayAlso adds to why a wait ended what it was for, unless it was short.
func (k *keeper) sayAlso(why error, waited time.Duration) error {
	if waited < keeperEvery {
		return why
	}
	k.look(waited)
	return fmt.Errorf("%w: %w", why, k.error())
}
