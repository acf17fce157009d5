//go:build linux || darwin

package file_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// stopWithin does what a process does that is stopped while it works on a key: it keeps the file locked.
func stopWithin(t *testing.T, file string) (goOn func()) {
	t.Helper()
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = unix.Close(fd) }
}

func TestCallsReturnWhenTheirContextEndsWhileAProcessIsStoppedWithinItsCall(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b, c := open(t, dir), claim("k", "holder", ample)
	g := acquire(t, b, c)
	goOn := stopWithin(t, path(dir, "k"))
	for what, call := range map[string]func(ctx context.Context) error{
		"Acquire": func(ctx context.Context) error { _, err := b.Acquire(ctx, claim("k", "other", ample)); return err },
		"Wait": func(ctx context.Context) error {
			_, err := b.Wait(ctx, claim("k", "other", ample), func() {})
			return err
		},
		"Renew":   func(ctx context.Context) error { _, err := b.Renew(ctx, c); return err },
		"Release": func(ctx context.Context) error { return b.Release(ctx, c) },
		"Break":   func(ctx context.Context) error { return b.(driver.Breaker).Break(ctx, "k", g.Fence) },
	} {
		began := time.Now()
		err := call(soon(t, 100*time.Millisecond))
		if d := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || d > 2*time.Second {
			t.Errorf("%s = %v after %v, want the context's error after 100ms", what, err, d)
		}
	}
	if info := inspect(t, b, "k"); info.Owner != "holder" {
		t.Errorf("Inspect = %+v, want the holder: looking does not wait", info)
	}
	other := claim("other key", "other", ample)
	acquire(t, b, other)
	if _, err := b.Acquire(t.Context(), claim("k", "other", ample)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire without a deadline = %v, want ErrHeld: the file says who holds the key", err)
	}
	goOn()
	release(t, b, c)
}

func TestCloseEndsACallThatWaitsForAStoppedProcess(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	defer stopWithin(t, path(dir, "k"))()
	ended := make(chan error, 1)
	go func() { _, err := b.Acquire(t.Context(), claim("k", "other", ample)); ended <- err }()
	time.Sleep(20 * time.Millisecond) // whether the call is under way by now makes no difference to what follows
	_ = b.Close()
	select {
	case err := <-ended:
		if err == nil || errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire = %v, want that the backend is closed", err)
		}
	case <-time.After(2 * time.Second):
		t.Error("Acquire has not returned 2s after Close")
	}
}

func TestCloseRemovesTheMailboxAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	a, b := open(t, dir), open(t, dir)
	acquire(t, a, claim("k", "holder", ample))
	enqueue(t, a, claim("k", "a", ample))
	enqueue(t, b, claim("k", "b", ample))
	before := files(t, dir)
	_ = b.Close()
	gone := slices.DeleteFunc(before, func(name string) bool { return slices.Contains(files(t, dir), name) })
	if len(gone) != 1 || !strings.HasPrefix(gone[0], ".dlock-w-") {
		t.Errorf("Close removed %q, want one mailbox", gone)
	}
}

func TestAWaiterWhoseMailboxWasRemovedStillGetsItsTurn(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b, first := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, first)
	got := enqueue(t, b, claim("k", "waiter", 300*time.Millisecond))
	if err := os.Remove(mailbox(t, dir)); err != nil {
		t.Fatal(err)
	}
	// It would be passed over again and again if it did not make another one.
	faulttest.Eventually(t, 5*time.Second, "the waiter has a mailbox again", func() bool { return len(files(t, dir)) == 2 })
	release(t, b, first)
	within(t, 5*time.Second, "the waiter has the key", got)
}

func TestAHandOverWhoseLetterIsLostIsFoundByLooking(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b, first := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, first)
	got := enqueue(t, b, claim("k", "waiter", ample))
	box := mailbox(t, dir)
	if err := os.Rename(box, box+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(box, 0o600); err != nil {
		t.Fatal(err)
	}
	thief, err := os.OpenFile(box, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = thief.Close() }()
	release(t, b, first)
	if n, err := thief.Read(make([]byte, 64)); n != 8 || err != nil {
		t.Fatalf("the letter has %d bytes, %v; want 8", n, err)
	}
	within(t, 6*time.Second, "the waiter has the key", got)
}

func TestAMailboxSurvivesWhatIsNoLetter(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	b := open(t, dir)
	ticket, woken, err := filedriver.Register(b)
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(mailbox(t, dir), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close() //nolint:errcheck // it is a pipe
	for _, letter := range [][]byte{[]byte("junk, of 13 b"), binary.LittleEndian.AppendUint64(nil, ticket)} {
		if _, err := pipe.Write(letter); err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatalf("nobody was woken by %q", letter)
		}
	}
}

// mailbox is where the only mailbox is.
func mailbox(t *testing.T, dir string) string {
	t.Helper()
	boxes := slices.DeleteFunc(files(t, dir), func(name string) bool { return !strings.HasPrefix(name, ".dlock-w-") })
	if len(boxes) != 1 {
		t.Fatalf("the mailboxes are %q, want one", boxes)
	}
	return filepath.Join(dir, boxes[0])
}

func TestRemovingTheDirectoryTakesTheLocksAndNothingGetsStuck(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	a, b, c := open(t, dir), open(t, dir), claim("k", "holder", ample)
	before := acquire(t, a, c)
	got := enqueue(t, b, claim("k", "waiter", 3*time.Second))
	if err := os.Rename(dir, dir+".gone"); err != nil { // at once: the waiter could make its file again in between
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir + ".gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Renew(t.Context(), c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Renew of a hold that was removed = %v, want ErrNotOwner", err)
	}
	if g := within(t, 5*time.Second, "the waiter has the key", got); g.grant.Fence <= before.Fence {
		t.Errorf("the fence is %d, want more than %d", g.grant.Fence, before.Fence)
	}
	if _, err := a.Acquire(t.Context(), c); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire = %v, want ErrHeld: both are in the new directory", err)
	}
}

func TestAMovedDirectoryIsNotUsedAnyMore(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	a, b := open(t, dir), open(t, dir)
	acquire(t, a, claim("other", "a", ample))
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	acquire(t, b, claim("k", "b", ample))
	if _, err := a.Acquire(t.Context(), claim("k", "a", ample)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire by a client of before = %v, want ErrHeld", err)
	}
}
