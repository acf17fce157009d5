//go:build linux || darwin

package file_test

import (
	"context"
	"errors"
	"fmt"
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
	go func() {
		_, err := b.Wait(t.Context(), waiting, func() { _ = b.Release(t.Context(), c) })
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

// Sparse files cost a member nothing, and each has to be read. Whoever looks at all of them stops
// when its caller has no more time.
func TestAHugeDirectoryKeepsNobodyLongerThanItsContext(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	for i := range 40 {
		f, err := os.Create(filepath.Join(dir, filedriver.FileName(fmt.Sprint("x", i))))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(filedriver.MaxSize), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.(driver.Doctor).Diagnose(soon(t, 5*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Diagnose = %v, want the context's error", err)
	}
	// The first one to come in a boot looks for damaged files.
	if err := filedriver.ForgeAbout(filepath.Join(dir, ".dlock"), "another boot", 0, 0); err != nil {
		t.Fatal(err)
	}
	other := open(t, dir)
	if _, err := other.Acquire(soon(t, 5*time.Millisecond), claim("free", "a", ample)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire = %v, want the context's error", err)
	}
	faulttest.Eventually(t, time.Minute, "the search ends, though no call has the time for it", func() bool {
		_, err := other.Acquire(soon(t, 100*time.Millisecond), claim("free", "a", ample))
		return err == nil || errors.Is(err, driver.ErrHeld)
	})
}

func TestTheDoctorNamesNoMoreDamagedFilesThanAPersonReads(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	for i := range 200 {
		if err := os.WriteFile(path(dir, fmt.Sprint("x", i)), []byte("no lock"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := b.(driver.Doctor).Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, counted := 0, false
	for _, f := range found {
		if f.ID == "file-damaged" {
			n++
			counted = counted || f.Text == "180 more files cannot be read"
		}
	}
	if n != 21 || !counted {
		t.Errorf("the doctor has %d findings about 200 damaged files (counted: %t), want 20 and one that counts the rest", n, counted)
	}
}

// A letter makes a call look at the key, and write that it is there. Letters that tell nothing must
// not make it do nothing else.
func TestAFloodOfForgedLettersIsNotFollowed(t *testing.T) {
	dir := newDir(t)
	b, c := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, c)
	got := enqueue(t, b, claim("k", "waiter", ample))
	pipe, err := os.OpenFile(mailbox(t, dir), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close() //nolint:errcheck // it is a pipe
	before := writes(t, path(dir, "k"))
	const letters = 500
	for range letters {
		if _, err := pipe.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	n := writes(t, path(dir, "k")) - before
	if t.Logf("%d letters, %d writes", letters, n); n > letters/10 {
		t.Errorf("the waiter wrote %d times for %d letters that told nothing, want a few times", n, letters)
	}
	release(t, b, c)
	within(t, 10*time.Second, "the waiter has the key", got)
}

func writes(t *testing.T, file string) (n uint64) {
	t.Helper()
	faulttest.Eventually(t, 10*time.Second, "the file is read while nobody writes", func() bool {
		var err error
		n, err = filedriver.Writes(file)
		return err == nil
	})
	return n
}

// Where a file cannot be renamed without replacing another it is linked, and has two names until the
// first one is removed. A process that is killed between the two must not take the key with it.
func TestAFileWhoseMakerWasKilledBetweenItsTwoNamesIsUsed(t *testing.T) {
	dir := newDir(t)
	if err := mkdir(dir, 0o770|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	b := open(t, dir, filedriver.WithGroup())
	acquire(t, b, claim("other", "a", ample))
	temp := filepath.Join(dir, ".dlock-n-0123456789abcdef01234567")
	err := errors.Join(os.WriteFile(temp, nil, 0o660), os.Chmod(temp, 0o660), os.Link(temp, path(dir, "k")))
	if err != nil {
		t.Fatal(err)
	}
	release(t, b, acquired(t, b, claim("k", "holder", ample)))
}

// A member who links a file of another user into the directory, and removes the link again, all the
// time: whatever is asked about the file in between, it must not be taken for a lock's.
func TestALinkThatComesAndGoesLeadsNobodyOutsideTheDirectory(t *testing.T) {
	v := newVictim(t)
	v.content = ""
	pipe := filepath.Join(filepath.Dir(v.dir), "pipe")
	if err := errors.Join(os.WriteFile(v.target, nil, 0o600), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close() //nolint:errcheck // it is a pipe
	linkAndUnlink(t, v.target, path(v.dir, "linked"))
	linkAndUnlink(t, pipe, filepath.Join(v.dir, forged))
	b := open(t, v.dir, filedriver.WithGroup())
	for range 200 {
		_, _ = b.Acquire(soon(t, time.Millisecond), claim("linked", "root", ample))
		_ = os.Remove(path(v.dir, "k"))
		c := acquired(t, b, claim("k", "root", ample))
		forge(t, v.dir, func(f *filedriver.Forged) {
			for range 50 {
				f.Queue = append(f.Queue, filedriver.ForgedWaiter{Box: forged, TTL: ample, Seen: filedriver.Monotonic()})
			}
		})
		_ = b.Release(t.Context(), c)
	}
	v.unharmed(t)
	if err := reader.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, _ := reader.Read(make([]byte, 64)); n != 0 {
		t.Errorf("a pipe outside the directory got %d bytes, want none", n)
	}
}

// linkAndUnlink makes a link to target and removes it, all the time, until the test ends.
func linkAndUnlink(t *testing.T, target, link string) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Link(target, link)
				_ = os.Remove(link)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}
