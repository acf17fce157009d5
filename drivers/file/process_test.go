//go:build linux || darwin

package file_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// late is how late a busy machine may be.
const late = 2 * time.Second

func TestTheNextOwnerHasAKilledHoldersLockAfterTheTTL(t *testing.T) {
	t.Parallel()
	dir, busy := newDir(t), faulttest.Lateness(t)
	holder := startChild(t, "hold", dir)
	var start int64
	var fence uint64
	holder.says(t, "granted", &start, &fence)
	got := enqueue(t, open(t, dir), claim("k", "next", ample))
	holder.kill()
	g := within(t, childTTL+late, "the next owner has the lock", got)
	since := time.Since(g.at)
	expiry := time.Duration(start-filedriver.Monotonic()) + childTTL + since
	if expiry > 0 {
		t.Errorf("the next owner had the lock %v before the killed holder's TTL had passed", expiry)
	}
	if g.grant.Fence <= fence {
		t.Errorf("the next owner has the fence %d, and the one before had %d", g.grant.Fence, fence)
	}
	if -expiry > late/2+busy() {
		t.Errorf("the next owner had the lock %v after the killed holder's TTL had passed", -expiry)
	}
	t.Logf("%v after the TTL", -expiry)
}

func TestAWaiterThatWasKilledIsPassedOverAtOnce(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b, first := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, first)
	head := startChild(t, "wait long", dir)
	head.says(t, "queued")
	got := enqueue(t, b, claim("k", "next", ample))
	if w := inspect(t, b, "k").Waiters; !slices.Equal(w, []string{"child", "next"}) {
		t.Fatalf("%q wait, want the child and then the next one", w)
	}
	head.kill()
	began := time.Now()
	release(t, b, first)
	g := within(t, late, "the next one has the lock", got)
	t.Logf("%v after the release", g.at.Sub(began))
}

func TestAWaiterThatIsStoppedIsPassedOverAndQueuesAgain(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b, first, next := open(t, dir), claim("k", "holder", ample), claim("k", "next", ample)
	acquire(t, b, first)
	head := startChild(t, "wait", dir)
	head.says(t, "queued")
	got := enqueue(t, b, next)
	head.stopOutside(t, b)
	faulttest.Eventually(t, 10*time.Second, "the stopped process is no longer taken for one who waits", func() bool {
		return slices.Equal(inspect(t, b, "k").Waiters, []string{"next"})
	})
	release(t, b, first)
	g := within(t, late, "the next one has the lock", got)
	head.goOn(t)
	faulttest.Eventually(t, 10*time.Second, "the process that goes on waits again", func() bool { return len(inspect(t, b, "k").Waiters) == 1 })
	release(t, b, next)
	var fence uint64
	head.says(t, "granted", &fence)
	if fence <= g.grant.Fence {
		t.Errorf("the last one has the fence %d, and the one before had %d", fence, g.grant.Fence)
	}
}

func TestTheMailboxOfAStoppedProcessMayBeFull(t *testing.T) {
	t.Parallel()
	dir, busy := newDir(t), faulttest.Lateness(t)
	b, first, next := open(t, dir), claim("k", "holder", ample), claim("k", "next", ample)
	acquire(t, b, first)
	head := startChild(t, "wait", dir)
	head.says(t, "queued")
	box := mailbox(t, dir)
	got := enqueue(t, b, next)
	head.stopOutside(t, b)
	pipe, err := os.OpenFile(box, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close() //nolint:errcheck // it is a pipe
	if err := pipe.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = pipe.Write(make([]byte, 4096))
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		release(t, b, first)
	}()
	select {
	case <-released:
	case <-time.After(late):
		t.Fatal("the release waits for room in the mailbox")
	}
	began := time.Now()
	g := within(t, 20*time.Second, "the next one has the lock", got)
	if took, most := g.at.Sub(began), 2*childTTL+late+busy(); took > most {
		t.Errorf("the next one had the lock after %v, want at most %v", took, most)
	}
	head.goOn(t)
}

func TestAHolderThatWasStoppedBeyondItsTTLKnows(t *testing.T) {
	t.Parallel()
	// It may be stopped just within a renewal. Then it keeps the file locked, and others from the key, until it goes on.
	for range 5 {
		dir := newDir(t)
		holder := startChild(t, "hold lease", dir)
		var fence uint64
		holder.says(t, "granted", &fence)
		holder.stop(t)
		g, err := open(t, dir).Wait(soon(t, childTTL+2*late), claim("k", "next", ample), func() {})
		if err != nil {
			t.Logf("the holder was stopped within a call: %v", err)
			continue
		}
		if g.Fence <= fence {
			t.Errorf("the next owner has the fence %d, and the one before had %d", g.Fence, fence)
		}
		time.Sleep(childTTL) // for the stop to be longer than the TTL, whenever the last renewal was
		holder.goOn(t)
		var held bool
		if holder.says(t, "held", &held); held {
			t.Error("the first Held after the process was stopped for longer than the TTL is true, want false")
		}
		return
	}
	t.Error("nobody got the lock of a holder that was stopped")
}

// A process that is stopped within a call keeps the file locked. Nobody can have the key, and who
// does not want to wait is told soon whom to continue or kill.
func TestWhoeverMeetsAProcessStoppedWithinItsCallIsToldWhichItIs(t *testing.T) {
	t.Parallel()
	dir, late := newDir(t), faulttest.Lateness(t)
	b := open(t, dir)
	release(t, b, acquired(t, b, claim("k", "before", ample)))
	stopped := startChild(t, "stop within", dir)
	stopped.says(t, "about to stop")
	stopped.awaitStop(t)
	pid := fmt.Sprint(stopped.cmd.Process.Pid)

	began, other := time.Now(), claim("k", "other", ample)
	_, err := b.Acquire(t.Context(), other)
	if took, most := time.Since(began), 3*time.Second+late(); took > most {
		t.Errorf("Acquire took %v, want at most %v", took, most)
	}
	t.Logf("Acquire = %v after %v", err, time.Since(began))
	if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrPermanent) || !strings.Contains(err.Error(), "is it stopped?") {
		t.Fatalf("Acquire of a free key = %v, want an error that asks whether the process is stopped", err)
	}
	if runtime.GOOS == "linux" && !strings.Contains(err.Error(), "Process "+pid+" is") {
		t.Errorf("Acquire of a free key = %v, want it to say that process %s is stopped", err, pid)
	}
	if err := b.Release(t.Context(), other); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release of what was never acquired = %v, want ErrNotOwner", err)
	}
	l, err := dlock.New(open(t, dir), &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if ok, err := l.TryLock(t.Context(), "k"); ok || err == nil || !strings.Contains(err.Error(), "is it stopped?") {
		t.Errorf("TryLock = %v, %v; want the question whether the process is stopped", ok, err)
	}
	_ = l.Close()
	t.Logf("TryLock and Close took %v", time.Since(began))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := b.Wait(ctx, other, func() {}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "is it stopped?") {
		t.Errorf("Wait = %v, want the context's error and the question whether the process is stopped", err)
	}
	stopped.goOn(t)
	stopped.says(t, "granted")
	if _, err := b.Acquire(t.Context(), other); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire after the process went on = %v, want ErrHeld", err)
	}
}

func TestAKeyHeldByAProcessStoppedWithinARenewalIsHeld(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	stopped := startChild(t, "stop in renewal", dir)
	stopped.says(t, "about to stop")
	stopped.awaitStop(t)
	b, other := open(t, dir), claim("k", "other", ample)
	if _, err := b.Acquire(t.Context(), other); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire = %v, want ErrHeld: the file says that the process holds the key", err)
	}
}

// hold is a line pair of the log that the children share.
type hold struct {
	pid        int
	fence      uint64
	began, end int64
}

// Processes lock one key all the time and are killed at random points. Whatever they were doing, no two of them ever hold it at once, fences rise
// from one to the next, and nobody finds a state that cannot be read.
func TestProcessesThatAreKilledAtRandomNeverHoldALockTogether(t *testing.T) {
	t.Parallel()
	const processes, lasting = 5, 6 * time.Second
	dir := newDir(t)
	killed := map[int]int64{}
	running := make([]*child, processes)
	for i := range running {
		running[i] = startChild(t, "cycle", dir)
	}
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		i := rand.IntN(processes)
		running[i].says(t, "ready")
		time.Sleep(rand.N(20 * time.Millisecond))
		running[i].kill()
		killed[running[i].cmd.Process.Pid] = filedriver.Monotonic()
		running[i] = startChild(t, "cycle", dir)
	}
	for _, c := range running {
		c.kill()
		killed[c.cmd.Process.Pid] = filedriver.Monotonic()
	}
	holds := readLog(t, filepath.Join(filepath.Dir(dir), "log"), killed)
	slices.SortFunc(holds, func(x, y hold) int { return int(x.began - y.began) })
	for i := 1; i < len(holds); i++ {
		before, next := holds[i-1], holds[i]
		if next.began < before.end {
			t.Errorf("process %d got the lock %v before process %d had ended its hold", next.pid, time.Duration(before.end-next.began), before.pid)
		}
		if next.fence <= before.fence {
			t.Errorf("the fence %d follows %d", next.fence, before.fence)
		}
	}
	if len(holds) < 20 || len(killed) < 2*processes {
		t.Errorf("there were %d holds and %d kills, which is too little to prove anything", len(holds), len(killed))
	}
	t.Logf("%d holds by %d processes", len(holds), len(killed))
}

// readLog reads the holds. One of a process that was killed ended with it, or with its TTL. One that was over when its process came to know of it is none.
func readLog(t *testing.T, file string, killed map[int]int64) []hold {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	open := map[int]hold{}
	var holds []hold
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var word string
		var h hold
		if _, err := fmt.Sscan(lines.Text(), &word, &h.pid, &h.fence, &h.began, &h.end); err != nil || word == "error" {
			t.Errorf("a process wrote %q", strings.TrimSpace(lines.Text()))
			continue
		}
		if word == "got" {
			open[h.pid] = h
			continue
		}
		got := open[h.pid]
		delete(open, h.pid)
		got.end = min(got.end, h.began)
		holds = append(holds, got)
	}
	for pid, h := range open {
		h.end = min(h.end, killed[pid])
		holds = append(holds, h)
	}
	return slices.DeleteFunc(holds, func(h hold) bool { return h.end <= h.began })
}
