//go:build linux || darwin

package file

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// The system calls that a signal may interrupt, without that.

func openAt(fd int, name string, flags int, mode uint32) (int, error) {
	for {
		got, err := unix.Openat(fd, name, flags, mode)
		if !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func fstatAt(fd int, name string, s *unix.Stat_t) error {
	for {
		if err := unix.Fstatat(fd, name, s, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readAll reads from the beginning until b is full or the file ends.
func readAll(fd int, b []byte) ([]byte, error) {
	for n := 0; ; {
		m, err := unix.Pread(fd, b[n:], int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		default:
			if n += m; m == 0 || n == len(b) {
				return b[:n], nil
			}
		}
	}
}

// pwrite is replaced by tests in which a process is killed within a write.
var pwrite = unix.Pwrite

func writeAt(fd int, b []byte, at int) error {
	for len(b) > 0 {
		n, err := pwrite(fd, b, int64(at))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			b, at = b[n:], at+n
		}
	}
	return nil
}

// monotonic reads the clock that all processes of the machine share, the very one that Go's timers and the engine's deadlines go by.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(monotonicClock, &t) // cannot fail with a clock that exists
	return t.Nano()
}
