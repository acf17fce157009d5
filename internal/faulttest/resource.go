package faulttest

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// Resources are those of this process that a leak shows in.
type Resources struct{ Goroutines, Descriptors, Heap int }

// Measure counts what the whole process has. It skips the test where descriptors cannot be counted.
func Measure(t *testing.T) Resources {
	t.Helper()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted: %v", err)
	}
	return Resources{runtime.NumGoroutine(), len(fds), int(m.HeapAlloc)}
}

// AnyHeap is for [Resources.Again] if the heap does not matter.
const AnyHeap = 1 << 40

// Again waits until there is hardly more than before, of the heap by so many bytes, and returns what there is.
func (before Resources) Again(t *testing.T, heap int) (now Resources) {
	t.Helper()
	Eventually(t, 15*time.Second, "goroutines, descriptors and heap are as before", func() bool {
		now = Measure(t)
		return now.Goroutines <= before.Goroutines+4 && now.Descriptors <= before.Descriptors+4 && now.Heap <= before.Heap+heap
	})
	return now
}

// OpenAndClose is a part of F2: n Lockers, one after another, are opened, used and closed with a lock held.
func OpenAndClose(t *testing.T, n int, driver, dsn string) {
	t.Helper()
	late := Lateness(t)
	for range n {
		l, err := dlock.Open(driver, dsn, &dlock.Config{DefaultTTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		_ = Hold(t, l, "f2").Unlock(t.Context())
		if err := Hold(t, l, "f2-kept").Extend(t.Context(), 20*time.Second); err != nil { // a renewal, for which a connection may be made
			t.Fatal(err)
		}
		if err := l.Close(); err != nil && late() < 100*time.Millisecond { // it does not wait long for a backend
			t.Fatal(err)
		}
	}
}
