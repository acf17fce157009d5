//go:build linux || darwin

package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
)

func image(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func restore(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// unbelieved asserts that a file which is damaged gives its lock to nobody, and that the error says which it is.
func unbelieved(t *testing.T, b driver.Backend, file, how string) {
	t.Helper()
	c := claim("k", "thief", ample)
	_, err := b.Acquire(t.Context(), c)
	refused(t, "Acquire of a file "+how, err, file, "damaged", "remove it")
	refused(t, "Release of a file "+how, b.Release(t.Context(), c), file)
}

func TestADamagedFileGivesItsLockToNobody(t *testing.T) {
	dir := newDir(t)
	b, file := open(t, dir), path(dir, "k")
	holder := claim("k", "holder", ample)
	acquire(t, b, claim("k", "first", 1))
	acquire(t, b, holder) // both slots are in use, as they are in a file of some age
	good := image(t, file)
	for i := range good {
		for _, flip := range []byte{0xff, 0x01, 0x80, good[i]} {
			bad := bytes.Clone(good)
			if bad[i] ^= flip; bad[i] == good[i] {
				continue
			}
			restore(t, file, bad)
			if _, err := b.Acquire(t.Context(), claim("k", "thief", ample)); err == nil {
				t.Fatalf("byte %d changed from %#x to %#x: the lock was given to another", i, good[i], bad[i])
			} else if !errors.Is(err, driver.ErrHeld) {
				refused(t, "Acquire", err, file, "damaged")
			}
		}
	}
	restore(t, file, good)
	release(t, b, holder)
}

func TestAFileThatWasCutIsDamagedUnlessItIsEmpty(t *testing.T) {
	dir := newDir(t)
	b, file := open(t, dir), path(dir, "k")
	first := acquire(t, b, claim("k", "holder", ample))
	good := image(t, file)
	for n := len(good) - 1; n > 0; n-- {
		restore(t, file, good[:n])
		unbelieved(t, b, file, "that was cut")
	}
	restore(t, file, nil)
	if g := acquire(t, b, claim("k", "next", ample)); g.Fence <= first.Fence {
		t.Errorf("the fence after the file was emptied is %d, want more than %d", g.Fence, first.Fence)
	}
}

func TestAForeignFileIsNoLock(t *testing.T) {
	dir := newDir(t)
	b, file := open(t, dir), path(dir, "k")
	other := claim("other", "holder", ample)
	acquire(t, b, other)
	restore(t, file, image(t, path(dir, "other")))
	unbelieved(t, b, file, "of another key")
	restore(t, file, bytes.Repeat([]byte("text\n"), 1024/5+1)[:1024])
	unbelieved(t, b, file, "of text")
	release(t, b, other)
}

// A write changes a slot and then the mark. Whatever part of it was done when the process was killed, the state is the one before it or the one after it.
func TestAKillAtAnyByteLeavesTheOldStateOrTheNew(t *testing.T) {
	dir := newDir(t)
	b, file := open(t, dir), path(dir, "k")
	if err := filedriver.SetFence(b, "warm", 1); err != nil { // makes the directory
		t.Fatal(err)
	}
	var before []byte
	var last driver.Claim
	owner := ""
	for _, next := range []string{"first", "", "second", ""} {
		if next == "" {
			release(t, b, last)
		} else {
			last = claim("k", next, ample)
			acquire(t, b, last)
		}
		after := image(t, file)
		const mark, none = 8, 'e'
		first := before == nil
		if first {
			before = make([]byte, len(after))
		}
		torn := bytes.Clone(before)
		for i := range after {
			switch {
			case i != mark:
				torn[i] = after[i]
			case first:
				torn[i] = none
			}
			restore(t, file, torn)
			if got := inspect(t, b, "k").Owner; got != owner {
				t.Fatalf("after %d bytes of the write the holder is %q, want %q", i, got, owner)
			}
			// Whoever comes next writes over what was not finished.
			if c := claim("k", "another", ample); owner == "" {
				acquire(t, b, c)
				release(t, b, c)
			}
		}
		restore(t, file, after)
		if got := inspect(t, b, "k").Owner; got != next {
			t.Fatalf("after the write the holder is %q, want %q", got, next)
		}
		before, owner = after, next
	}
}

func TestADamagedFileIsRemovedWhenTheMachineWasRestarted(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	before := acquire(t, b, claim("k", "holder", ample))
	held := claim("held", "holder", ample)
	acquire(t, b, held)
	restore(t, path(dir, "k"), []byte("half"))
	restore(t, filepath.Join(dir, "notes.txt"), []byte("not ours"))
	unbelieved(t, b, path(dir, "k"), "that was cut")

	defer filedriver.Restart("another boot")()
	b = open(t, dir)
	if g := acquire(t, b, claim("k", "next", ample)); g.Fence <= before.Fence {
		t.Errorf("the fence after a restart is %d, want more than %d", g.Fence, before.Fence)
	}
	acquire(t, b, claim("held", "next", ample)) // its holder is gone
	image(t, filepath.Join(dir, "notes.txt"))
	restore(t, path(dir, "k"), []byte("half"))
	unbelieved(t, open(t, dir), path(dir, "k"), "that was cut after the restart")
}

func TestADamagedDirectoryFileIsBegunAnew(t *testing.T) {
	dir := newDir(t)
	c := claim("k", "holder", ample)
	acquire(t, open(t, dir), c)
	restore(t, filepath.Join(dir, ".dlock"), []byte("half"))
	b := open(t, dir)
	if _, err := b.Acquire(t.Context(), claim("k", "thief", ample)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire of a held key = %v, want ErrHeld", err)
	}
	acquire(t, b, claim("new", "holder", ample))
	release(t, b, c)
}
