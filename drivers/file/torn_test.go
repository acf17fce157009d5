//go:build linux || darwin

package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
			if good[i] == 0 && flip != 0xff { // there are many of these, most of them in no record
				continue
			}
			bad := bytes.Clone(good)
			bad[i] ^= flip
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

// Whatever part of its writes a process has done when it is killed, the state is the one before its call or the one after it, and the next one can go on from there.
func TestAKillAtAnyByteLeavesTheOldStateOrTheNew(t *testing.T) {
	dir := newDir(t)
	file, small, large := path(dir, "k"), claim("k", "small", ample), claim("k", strings.Repeat("large", 200), ample)
	acquire(t, open(t, dir), claim("another key", "a", ample)) // makes the directory
	for _, step := range []struct {
		what  string
		call  func(b driver.Backend) error
		owner string // afterwards
	}{
		{"the first Acquire", func(b driver.Backend) error { _, err := b.Acquire(t.Context(), small); return err }, small.Owner},
		{"Release", func(b driver.Backend) error { return b.Release(t.Context(), small) }, ""},
		{"an Acquire for which the file is replaced", func(b driver.Backend) error { _, err := b.Acquire(t.Context(), large); return err }, large.Owner},
		{"Renew", func(b driver.Backend) error { _, err := b.Renew(t.Context(), large); return err }, large.Owner},
	} {
		before, _ := os.ReadFile(file)
		owner := inspect(t, open(t, dir), "k").Owner
		for n := 0; ; n++ {
			killed, next := open(t, dir), open(t, dir)
			undo := filedriver.KillAfter(n)
			err := step.call(killed)
			undo()
			if err == nil {
				break
			}
			if got := inspect(t, next, "k").Owner; got != owner {
				t.Fatalf("%s, killed after %d bytes: the holder is %q, want %q", step.what, n, got, owner)
			}
			c := claim("k", "next", ample)
			if _, err := next.Acquire(t.Context(), c); errors.Is(err, driver.ErrHeld) != (owner != "") || owner == "" && err != nil {
				t.Fatalf("%s, killed after %d bytes: the next one's Acquire = %v, and the holder is %q", step.what, n, err, owner)
			}
			if owner == "" {
				release(t, next, c)
			}
			restore(t, file, before)
			_, _ = killed.Close(), next.Close()
		}
		if got := inspect(t, open(t, dir), "k").Owner; got != step.owner {
			t.Fatalf("after %s the holder is %q, want %q", step.what, got, step.owner)
		}
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

func TestADamagedFileIsRemovedAfterARestartThoughTheDirectorysOwnIsDamagedToo(t *testing.T) {
	for what, damage := range map[string]func(file string) error{
		"cut":     func(file string) error { return os.WriteFile(file, []byte("half"), 0o600) },
		"emptied": func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"blank":   func(file string) error { return os.WriteFile(file, make([]byte, 1024), 0o600) },
		"forged":  func(file string) error { return filedriver.ForgeAbout(file, "x", 1<<63, 0) },
		"removed": os.Remove,
	} {
		t.Run(what, func(t *testing.T) {
			dir := newDir(t)
			b := open(t, dir)
			before := acquire(t, b, claim("k", "holder", ample))
			harm := func() {
				restore(t, path(dir, "k"), []byte("half"))
				if err := damage(filepath.Join(dir, ".dlock")); err != nil {
					t.Fatal(err)
				}
			}
			harm()
			b = open(t, dir)
			unbelieved(t, b, path(dir, "k"), "whose holder may be there")
			harm()
			defer filedriver.Restart("another boot")()
			b = open(t, dir)
			if g := acquire(t, b, claim("k", "next", ample)); g.Fence <= before.Fence {
				t.Errorf("the fence after a restart is %d, want more than %d", g.Fence, before.Fence)
			}
			harm()
			unbelieved(t, open(t, dir), path(dir, "k"), "of the same boot")
		})
	}
}

func TestADirectoryKnowsOfOneBootOnly(t *testing.T) {
	dir := newDir(t)
	for i := range 3 {
		defer filedriver.Restart(fmt.Sprint("boot ", i))()
		acquire(t, open(t, dir), claim("k", "holder", ample))
	}
	marks, err := filepath.Glob(filepath.Join(dir, ".dlock-b-*"))
	if err != nil || len(marks) != 1 {
		t.Errorf("the marks of boots are %q, %v; want one", marks, err)
	}
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
