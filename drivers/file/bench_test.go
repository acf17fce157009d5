//go:build linux || darwin

package file_test

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// BenchmarkFlock is the yardstick: what flock(2) costs without anything around it.
func BenchmarkFlock(b *testing.B) {
	path := filepath.Join(b.TempDir(), "lock")
	for b.Loop() {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			b.Fatal(err)
		}
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			b.Fatal(err)
		}
		_ = unix.Flock(fd, unix.LOCK_UN)
		_ = unix.Close(fd)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	backend := open(b, newDir(b))
	c := claim("bench", "bench", time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := backend.Acquire(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if err := backend.Release(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	l, err := dlock.New(open(b, newDir(b)), &dlock.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Lock(b.Context(), "bench"); err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(b.Context(), "bench"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHandOver passes a key back and forth between two clients. An operation is: the next one queues, the holder releases, the next one has it.
func BenchmarkHandOver(b *testing.B) {
	dir := newDir(b)
	clients := []driver.Waiter{open(b, dir), open(b, dir)}
	claims := []driver.Claim{claim("bench", "a", time.Minute), claim("bench", "b", time.Minute)}
	acquire(b, clients[0], claims[0])
	var passing time.Duration
	for i := 0; b.Loop(); i++ {
		holder, next := i%2, (i+1)%2
		got := enqueue(b, clients[next], claims[next])
		began := time.Now()
		release(b, clients[holder], claims[holder])
		passing += within(b, time.Minute, "the next one has it", got).at.Sub(began)
	}
	b.ReportMetric(float64(passing.Nanoseconds())/float64(b.N), "ns/hand-over")
}
