//go:build linux || darwin

package file_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
	"github.com/dlock-go/dlock/internal/faulttest"
)

func sweep(t *testing.T, b driver.Backend) {
	t.Helper()
	if err := filedriver.Sweep(b); err != nil {
		t.Fatalf("sweep = %v, want nil", err)
	}
}

func TestFilesThatNobodyNeedsAreRemoved(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	for i := range 200 {
		c := claim(fmt.Sprint("released ", i), "a", ample)
		acquire(t, b, c)
		release(t, b, c)
	}
	expired := claim("expired", "a", time.Millisecond)
	acquire(t, b, expired)
	held := claim("held", "a", ample)
	acquire(t, b, held)
	got := enqueue(t, b, claim("held", "b", ample))
	acquire(t, b, claim("awaited", "a", time.Millisecond))
	waiting := claim("awaited", "b", ample)
	if err := filedriver.Enqueue(b, waiting); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, forged), 0o600); err != nil {
		t.Fatal(err)
	}
	faulttest.Eventually(t, 5*time.Second, "the holds expire", func() bool { return inspect(t, b, "expired").TTL+inspect(t, b, "awaited").TTL == 0 })
	sweep(t, b)
	left := files(t, dir)
	if len(left) != 3 || !slices.Contains(left, filedriver.FileName("held")) || !slices.Contains(left, filedriver.FileName("awaited")) {
		t.Errorf("after a sweep there are %q, want the files of the held and the awaited key and the waiter's mailbox", left)
	}
	release(t, b, held)
	within(t, 5*time.Second, "the waiter has the key", got)
}

func TestThousandsOfKeysLeaveFewFiles(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	for i := range 3000 {
		c := claim(fmt.Sprint("k", i), "a", ample)
		acquire(t, b, c)
		release(t, b, c)
	}
	faulttest.Eventually(t, 10*time.Second, "fewer than 1000 of 3000 files are left", func() bool { return len(files(t, dir)) < 1000 })
}

func TestFencesRiseWhenAFileWasRemovedAndTheClockSetBack(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	const future = 1 << 52
	if err := filedriver.SetFence(b, "k", future); err != nil {
		t.Fatal(err)
	}
	sweep(t, b)
	if left := files(t, dir); len(left) != 0 {
		t.Fatalf("after a sweep there are %q, want nothing", left)
	}
	for _, client := range []driver.Backend{b, open(t, dir)} {
		c := claim("k", "a", ample)
		if g := acquire(t, client, c); g.Fence <= future {
			t.Errorf("the fence is %d, want more than %d", g.Fence, uint64(future))
		}
		release(t, client, c)
	}
	defer filedriver.Restart("another boot")()
	if g := acquire(t, open(t, dir), claim("k", "a", ample)); g.Fence <= future {
		t.Errorf("the fence after a restart is %d, want more than %d", g.Fence, uint64(future))
	}
}

// Removing a file while others are about to lock it must never leave two of them with a lock each.
func TestNobodyHoldsALockTwiceBecauseItsFileIsRemoved(t *testing.T) {
	t.Run("of a user", func(t *testing.T) { removeWhileInUse(t, newDir(t)) })
	t.Run("of a group", func(t *testing.T) {
		dir := newDir(t)
		if err := mkdir(dir, 0o770|os.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		removeWhileInUse(t, dir, filedriver.WithGroup())
	})
}

func removeWhileInUse(t *testing.T, dir string, opts ...filedriver.Option) {
	stop := make(chan struct{})
	var sweeper, workers sync.WaitGroup
	s := open(t, dir, opts...)
	sweeper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = filedriver.Sweep(s)
			}
		}
	})
	var inside [3]atomic.Int64
	var removed atomic.Int64
	var fences [3]atomic.Uint64
	for w := range 4 {
		b := open(t, dir, opts...)
		workers.Go(func() {
			for i, end := 0, time.Now().Add(20*time.Second); removed.Load() < 100 && time.Now().Before(end); i++ {
				k := (w + i) % 3
				c := claim(fmt.Sprint("k", k), "a", ample)
				g, err := b.Acquire(t.Context(), c)
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err != nil {
					t.Errorf("Acquire = %v", err)
					return
				}
				if n := inside[k].Add(1); n != 1 {
					t.Errorf("%d hold k%d", n, k)
				}
				if before := fences[k].Swap(g.Fence); before >= g.Fence {
					t.Errorf("fence %d follows %d", g.Fence, before)
				}
				if _, err := os.Stat(path(dir, c.Key)); err != nil {
					t.Errorf("the file of a held key: %v", err)
				}
				inside[k].Add(-1)
				if err := b.Release(t.Context(), c); err != nil {
					t.Errorf("Release = %v, want nil", err)
				}
				time.Sleep(rand.N(2 * time.Millisecond)) // a file that is always in use is never removed
				if _, err := os.Stat(path(dir, c.Key)); err != nil {
					removed.Add(1)
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	sweeper.Wait()
	if removed.Load() < 100 {
		t.Errorf("%d files were removed, which is too little to prove anything", removed.Load())
	}
}

func TestManyWaitersGetTheirTurnAndTheFileShrinksAgain(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	const n = 150
	first := claim("k", "first", ample)
	acquire(t, b, first)
	claims, got := make([]driver.Claim, n), make([]<-chan granted, n)
	for i := range n {
		claims[i] = claim("k", fmt.Sprint("waiter ", i), ample)
		got[i] = enqueue(t, b, claims[i])
	}
	if w := inspect(t, b, "k").Waiters; len(w) != n || w[0] != "waiter 0" || w[n-1] != claims[n-1].Owner {
		t.Errorf("%d wait, from %q to %q, want %d in order", len(w), w[0], w[len(w)-1], n)
	}
	large := size(t, path(dir, "k"))
	release(t, b, first)
	fence := uint64(0)
	for i := range n {
		g := within(t, 10*time.Second, claims[i].Owner+" has the key", got[i])
		if g.grant.Fence <= fence {
			t.Errorf("%s has the fence %d after %d", claims[i].Owner, g.grant.Fence, fence)
		}
		fence = g.grant.Fence
		release(t, b, claims[i])
	}
	if small := size(t, path(dir, "k")); small >= large/4 {
		t.Errorf("the file had %d bytes with %d waiters and has %d without", large, n, small)
	}
	if left := files(t, dir); len(left) != 2 {
		t.Errorf("there are %q, want the key's file and the mailbox", left)
	}
}

func size(t *testing.T, file string) int64 {
	t.Helper()
	s, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return s.Size()
}
