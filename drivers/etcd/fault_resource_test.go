package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// F2. It does not run beside other tests: it counts what the whole process has.
func TestManyCyclesLeaveNothingBehind(t *testing.T) {
	cycles := 2_000
	if os.Getenv("DLOCK_LONG") != "" {
		cycles = 100_000
	}
	s := startSite(t, 1)
	l := openLocker(t, 10*time.Minute, s.Addrs()...) // no renewal, which would have the lease watched
	var slow atomic.Int64                            // cycles of which the server did not answer a request in time
	run := func(n int) {
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				for i := range n / 16 {
					key := fmt.Sprint("f2-", (g+i)%32) // now free, now wanted by others
					err := dlock.Do(t.Context(), l, key, func(context.Context) error { return nil })
					if errors.Is(err, context.DeadlineExceeded) {
						slow.Add(1)
					} else if err != nil {
						t.Errorf("Do: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(cycles / 4)
	before := faulttest.Measure(t)
	run(cycles)
	after := before.Again(t, cycles*100)
	t.Logf("%d cycles: before %+v, after %+v", cycles, before, after)
	if n := slow.Load(); n > int64(cycles/100) {
		t.Errorf("%d of %d cycles were not answered in time", n, cycles)
	}
	faulttest.Eventually(t, 5*time.Second, "the server has no keys", func() bool {
		names, err := s.left(t.Context(), "f2-")
		return err == nil && len(names) == 0
	})
	if leases, err := s.witness.Leases(t.Context()); err != nil || len(leases.Leases) > 1 {
		t.Errorf("the server has the leases %v, %v; want one at most", leases, err)
	}
}

// F2
func TestLockersThatWereClosedLeaveNothingBehind(t *testing.T) {
	s := startSite(t, 1)
	run := func(n int) { faulttest.OpenAndClose(t, n, "etcd", dsnOf(s.Addrs()...)) }
	run(5)
	before := faulttest.Measure(t)
	run(30)
	before.Again(t, faulttest.AnyHeap)
	faulttest.Eventually(t, 30*time.Second, "the server has neither a lease nor a key", func() bool { // those that Close could not revoke in time end by themselves
		leases, err := s.witness.Leases(t.Context())
		return err == nil && len(leases.Leases) == 0 && s.count(t, "f2")+s.count(t, "f2-kept") == 0
	})
}

// hostileKeys are keys that a careless driver takes for something else.
func hostileKeys() []string {
	return []string{
		"a", " ", "0", "\x00", "a\x00", "a\x00b", "\r\n", "a\r\n", "\xff\xfe", "a\xff", "\xff", "é", "e\u0301", "/", "//", "a/", "a//", "a/b", "a/b/", "a/b/c",
		"..", "../a", "a/../b", "./a", ".", "{", "}", "{a}", "%", "%2", "%2F", "a%2F", "a%2Fb", "%252F", "%25", "a%", "*", "?", "[a]", `\`, `"`, "'", "A", "\t",
		"\u2028", "a0", "a.", "a-", "a/" + strings.Repeat("0", 32), "a/694d8a1b2c3d4e5f", strings.Repeat("k", 1024), strings.Repeat("k", 1023),
		strings.Repeat("/", 1024), strings.Repeat("\xff", 1024), strings.Repeat("%", 1024), strings.Repeat("\x00", 1024),
	}
}

// F3
func TestHostileKeysAreKeptApart(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	a, b := openLocker(t, 50*time.Second, s.Addrs()...), openLocker(t, 50*time.Second, s.Addrs()...)
	inspector := openBackend(t, s.Addrs()...)
	keys := hostileKeys()
	leases := map[string]*dlock.Lease{}
	for _, key := range keys {
		x, ok, err := dlock.TryAcquire(t.Context(), a, key)
		if !ok || err != nil {
			t.Fatalf("TryAcquire(%.40q) = %v, %v: it meets another key", key, ok, err)
		}
		leases[key] = x
	}
	// Every one has a queue of its own, and what is kept for one is not taken for another.
	type granted struct {
		driver.Grant
		err error
	}
	waiters, claims := map[string]chan granted{}, map[string]driver.Claim{}
	for _, key := range keys {
		c, queued, got := faulttest.Claim(key, 50*time.Second), make(chan struct{}, 1), make(chan granted, 1)
		claims[key], waiters[key] = c, got
		go func() {
			g, err := inspector.Wait(t.Context(), c, func() { queued <- struct{}{} })
			got <- granted{g, err}
		}()
		faulttest.Receive(t, fmt.Sprintf("a place in the queue of %.40q", key), queued)
		info, err := inspector.Inspect(t.Context(), key)
		if err != nil || info.Key != key || info.Fence != leases[key].Fence() || len(info.Waiters) != 1 {
			t.Errorf("Inspect(%.40q) = %+v, %v; want the fence %d and one waiter", key, info, err, leases[key].Fence())
		}
	}
	var listed []string
	for info, err := range inspector.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, info.Key)
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(keys)); !slices.Equal(listed, want) {
		t.Errorf("List shows %d keys, want %d: %.40q", len(listed), len(want), listed)
	}
	for i, key := range keys {
		if err := leases[key].Unlock(t.Context()); err != nil {
			t.Errorf("Unlock(%.40q): %v", key, err)
		}
		if g := faulttest.Receive(t, fmt.Sprintf("the hand-over of %.40q", key), waiters[key]); g.err != nil {
			t.Fatalf("Wait(%.40q): %v", key, g.err)
		}
		if ok, err := b.TryLock(t.Context(), key); ok || err != nil {
			t.Errorf("TryLock(%.40q) of another = %v, %v; want false", key, ok, err)
		}
		for _, other := range keys[i+1:] {
			if !leases[other].Held() {
				t.Fatalf("releasing %.40q ended the hold of %.40q", key, other)
			}
		}
		if err := inspector.Release(t.Context(), claims[key]); err != nil {
			t.Errorf("Release(%.40q): %v", key, err)
		}
		if ok, err := b.TryLock(t.Context(), key); !ok || err != nil {
			t.Errorf("TryLock(%.40q) when free = %v, %v; want true", key, ok, err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", 1025)} {
		if err := a.Lock(t.Context(), key); !errors.Is(err, dlock.ErrInvalidKey) {
			t.Errorf("Lock of a key of %d bytes = %v, want ErrInvalidKey", len(key), err)
		}
	}
}
