package dlock_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// remote is a memory store that the engine takes for one behind a network: every call gets a goroutine of its own.
type remote struct{ *memory.Backend }

func (remote) CallMode() driver.CallMode { return driver.Detached }

var benchBackends = []struct {
	name string
	open func() driver.Backend
}{
	{"inline", func() driver.Backend { return memory.New() }},
	{"remote", func() driver.Backend { return remote{memory.New()} }},
}

// BenchmarkBackend is what the engine's cost is on top of.
func BenchmarkBackend(b *testing.B) {
	m := memory.New()
	c := driver.Claim{Key: "k", Token: "0123456789abcdef0123456789abcdef", Owner: "o", TTL: 10 * time.Second}
	b.ReportAllocs()
	for b.Loop() {
		_, err1 := m.Acquire(b.Context(), c)
		err2 := m.Release(b.Context(), c)
		if err1 != nil || err2 != nil {
			b.Fatal(err1, err2)
		}
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	for _, backend := range benchBackends {
		b.Run(backend.name, func(b *testing.B) {
			l := open(b, backend.open(), dlock.Config{})
			b.ReportAllocs()
			for b.Loop() {
				err1 := l.Lock(b.Context(), "k")
				err2 := l.Unlock(b.Context(), "k")
				if err1 != nil || err2 != nil {
					b.Fatal(err1, err2)
				}
			}
		})
	}
}

func BenchmarkAcquireUnlock(b *testing.B) {
	for _, backend := range benchBackends {
		b.Run(backend.name, func(b *testing.B) {
			l := open(b, backend.open(), dlock.Config{})
			b.ReportAllocs()
			for b.Loop() {
				x, err := dlock.Acquire(b.Context(), l, "k")
				if err != nil {
					b.Fatal(err)
				}
				if err := x.Unlock(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOneKey is 64 goroutines of one Locker on one key.
func BenchmarkOneKey(b *testing.B) {
	for _, backend := range benchBackends {
		b.Run(backend.name, func(b *testing.B) {
			l := open(b, backend.open(), dlock.Config{})
			b.ReportAllocs()
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					x, err := dlock.Acquire(b.Context(), l, "k")
					if err != nil {
						b.Error(err)
						return
					}
					if err := x.Unlock(b.Context()); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// BenchmarkHeld is 10,000 locks of 3 s that are held for 10 s.
func BenchmarkHeld(b *testing.B) {
	for _, backend := range benchBackends {
		b.Run(backend.name, func(b *testing.B) {
			for range b.N {
				before := runtime.NumGoroutine()
				l := open(b, backend.open(), dlock.Config{DefaultTTL: 3 * time.Second})
				var leases []*dlock.Lease
				for i := range 10_000 {
					x, err := dlock.Acquire(b.Context(), l, fmt.Sprint(i))
					if err != nil {
						b.Fatal(err)
					}
					leases = append(leases, x)
				}
				cpu, most := cpuTime(), 0
				for range 1000 {
					time.Sleep(10 * time.Millisecond)
					most = max(most, runtime.NumGoroutine()-before)
				}
				lost := 0
				for _, x := range leases {
					if !x.Held() {
						lost++
					}
				}
				b.ReportMetric((cpuTime() - cpu).Seconds(), "cpu-s")
				b.ReportMetric(float64(most), "goroutines")
				b.ReportMetric(float64(lost), "lost")
				_ = l.Close()
			}
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
