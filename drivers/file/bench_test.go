//go:build linux || darwin

package file_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

func claim(key, who string, ttl time.Duration) driver.Claim {
	return driver.Claim{Key: key, Token: fmt.Sprintf("%032x", who), Owner: who, TTL: ttl}
}

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
	backend := open(b, filepath.Join(b.TempDir(), "locks"))
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
	l, err := dlock.New(open(b, filepath.Join(b.TempDir(), "locks")), &dlock.Config{})
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

// BenchmarkHandOver passes a key back and forth between two who want it all the time.
func BenchmarkHandOver(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "locks")
	clients := []driver.Waiter{open(b, dir).(driver.Waiter), open(b, dir).(driver.Waiter)}
	claims := []driver.Claim{claim("bench", "a", time.Minute), claim("bench", "b", time.Minute)}
	if _, err := clients[0].Acquire(b.Context(), claims[0]); err != nil {
		b.Fatal(err)
	}
	granted := make(chan error, 1)
	for i := 0; b.Loop(); i++ {
		holder, next := i%2, (i+1)%2
		queued := make(chan struct{})
		go func() {
			ctx := driver.WithQueued(b.Context(), func() {
				select {
				case <-queued:
				default:
					close(queued)
				}
			})
			_, err := clients[next].Wait(ctx, claims[next])
			granted <- err
		}()
		<-queued
		began := time.Now()
		if err := clients[holder].Release(b.Context(), claims[holder]); err != nil {
			b.Fatal(err)
		}
		if err := <-granted; err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds()), "µs/last-hand-over")
	}
}
