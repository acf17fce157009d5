//go:build linux || darwin

package file_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// What a member of the group may put into a shared directory must not stop, slow down or fill a
// process that uses the directory for other keys, or with a deadline.

// forge changes what the file of k says.
func forge(t *testing.T, dir string, change func(f *filedriver.Forged)) {
	t.Helper()
	if err := filedriver.Forge(path(dir, "k"), change); err != nil {
		t.Fatal(err)
	}
}

func TestForgedWaitersWithoutATokenOpenNoFiles(t *testing.T) {
	dir := newDir(t)
	b, c := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, c)
	box := filepath.Join(dir, forged)
	if err := unix.Mkfifo(box, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(box, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close() //nolint:errcheck // it is a pipe
	const many = 100
	forge(t, dir, func(f *filedriver.Forged) {
		for range many {
			f.Queue = append(f.Queue, filedriver.ForgedWaiter{Nobody: true, Box: forged, TTL: ample, Seen: filedriver.Monotonic()})
		}
	})
	before := openFiles(t)
	_ = b.Release(t.Context(), c)
	if more := openFiles(t) - before; more > many/10 {
		t.Errorf("%d more files are open after the release, want none", more)
	}
}

// openFiles returns how many files this process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Skip("the system does not tell which files are open:", err)
	}
	return len(fds)
}

// Giving the key to the next one takes about as long as reading and writing the queue does, however
// many in it are gone.
func TestALongQueueOfWaitersWhoAreGoneIsPassedOverInOneGo(t *testing.T) {
	dir, busy := newDir(t), faulttest.Lateness(t)
	b, c := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, c)
	forge(t, dir, func(f *filedriver.Forged) {
		f.Queue = make([]filedriver.ForgedWaiter, 45_000)
	})
	began := time.Now()
	if _, err := b.Renew(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	renewal := time.Since(began)
	began = time.Now()
	release(t, b, c)
	if took, most := time.Since(began), 15*renewal+busy(); took > most {
		t.Errorf("the release took %v and a renewal %v, want at most %v", took, renewal, most)
	}
	acquire(t, b, claim("k", "next", ample))
}

// A forged fence may be the last one there is. The key is then refused, and stays readable.
func TestAKeyWithoutFencesLeftIsRefusedAndHarmsNoOther(t *testing.T) {
	dir := newDir(t)
	b, c := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, c)
	forge(t, dir, func(f *filedriver.Forged) { f.Fence = filedriver.MaxFence })
	waiting := claim("k", "waiter", childTTL) // by which it looks often
	got := make(chan error, 1)
	enqueued := driver.WithQueued(t.Context(), func() { _ = b.Release(t.Context(), c) })
	go func() {
		_, err := b.Wait(enqueued, waiting)
		got <- err
	}()
	refused(t, "Wait", faulttest.Receive(t, "an answer to who waits", got), path(dir, "k"), "fence")
	for range 3 {
		_, err := b.Acquire(t.Context(), claim("k", "next", ample))
		refused(t, "Acquire", err, path(dir, "k"), "fence")
	}
	sweep(t, b)
	for range 3 {
		other := acquired(t, b, claim("other", "a", ample))
		if _, err := b.Renew(t.Context(), other); err != nil {
			t.Errorf("Renew of another key = %v, want nil", err)
		}
		release(t, b, other)
	}
}

func TestAForgedFloorLeavesFencesForEveryKey(t *testing.T) {
	defer filedriver.Restart("this boot")()
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	if err := filedriver.ForgeAbout(filepath.Join(dir, ".dlock"), "this boot", filedriver.MaxFence, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		other := acquired(t, b, claim("other", "a", ample))
		if _, err := b.Renew(t.Context(), other); err != nil {
			t.Errorf("Renew = %v, want nil", err)
		}
		release(t, b, other)
	}
}

func TestAForgedRecordNumberDoesNotMakeTheNextWriteADamage(t *testing.T) {
	dir := newDir(t)
	b, c := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, c)
	forge(t, dir, func(f *filedriver.Forged) { f.Number = math.MaxUint64 })
	for range 3 {
		if _, err := b.Renew(t.Context(), c); err != nil {
			t.Fatalf("Renew = %v, want nil", err)
		}
	}
	release(t, b, c)
}
