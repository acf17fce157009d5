//go:build linux || darwin

package file_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	filedriver "github.com/dlock-go/dlock/drivers/file"
)

// A member of the group may write to every file of a shared directory. It may forge locks by that,
// but must not reach anything outside the directory through another member.

// forged is a mailbox's name of the right form that nobody was given.
const forged = ".dlock-w-0123456789abcdef01234567"

// attacks are what a member does to the lock "k", which root holds, from within the directory. Each
// aims at the file "target" beside the directory.
var attacks = map[string]func() error{
	"a mailbox outside": func() error {
		return errors.Join(os.Mkdir(".dlock-w-x", 0o777), forgeBox(".dlock-w-x/../../target"))
	},
	"a mailbox behind a link": func() error {
		return errors.Join(os.Symlink("..", ".dlock-w-x"), forgeBox(".dlock-w-x/target"))
	},
	"a mailbox that is a link": func() error { return errors.Join(os.Symlink("../target", forged), forgeBox(forged)) },
	"a mailbox by its path":    func() error { return forgeBox("../target") },
	"a mailbox without a name": func() error { return forgeBox("") },
	"a lock that is a link": func() error {
		return errors.Join(os.Remove(filedriver.FileName("k")), os.Symlink("../target", filedriver.FileName("k")))
	},
	"the directory's file is a link": func() error { return errors.Join(os.Remove(".dlock"), os.Symlink("../target", ".dlock")) },
}

// forgeBox puts a waiter with this mailbox at the head of the queue.
func forgeBox(box string) error {
	return filedriver.Forge(filedriver.FileName("k"), func(f *filedriver.Forged) {
		w := filedriver.ForgedWaiter{Box: box, Ticket: 0x41414141_41414141, TTL: time.Minute, Seen: filedriver.Monotonic()}
		f.Queue = []filedriver.ForgedWaiter{w}
	})
}

const (
	memberUID = 42_001
	groupID   = 42_042
)

// childAttack is a member of the group who is not root. It enters the directory before it lets go
// of its rights, because the directories above may be closed to others.
func childAttack(dir string) {
	attack := attacks[os.Getenv("DLOCK_TEST_ATTACK")]
	if err := errors.Join(os.Chdir(dir), syscall.Setgroups(nil), syscall.Setgid(groupID), syscall.Setuid(memberUID)); err != nil {
		fmt.Println("cannot become another user:", err)
		return
	}
	if _, err := os.Open("../target"); err == nil {
		fmt.Println("error: the member may read the target itself")
		return
	}
	if err := attack(); err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("done")
}

// victim is a shared directory with the held lock "k", and a file beside it that is nobody else's.
type victim struct {
	dir, target, content string
	use                  func()
}

func newVictim(t *testing.T) victim {
	t.Helper()
	dir := newDir(t)
	v := victim{dir: dir, target: filepath.Join(filepath.Dir(dir), "target"), content: strings.Repeat("precious ", 200)}
	if err := errors.Join(mkdir(dir, 0o770|os.ModeSetgid), os.WriteFile(v.target, []byte(v.content), 0o600)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// A change of the group takes the setgid bit away.
		if err := errors.Join(os.Chown(dir, 0, groupID), os.Chmod(dir, 0o770|os.ModeSetgid)); err != nil {
			t.Fatal(err)
		}
	}
	b, c := open(t, dir, filedriver.WithGroup()), claim("k", "root", ample)
	acquire(t, b, c)
	// Whatever these answer, it is about locks. What counts is what they touch.
	v.use = func() {
		_, _ = b.Renew(t.Context(), c)
		_ = b.Release(t.Context(), c)
		_, _ = b.Acquire(t.Context(), claim("k", "next", ample))
		other := open(t, dir, filedriver.WithGroup())
		_, _ = other.Acquire(t.Context(), claim("other", "next", ample))
		_ = filedriver.Sweep(other)
	}
	return v
}

func (v victim) unharmed(t *testing.T) {
	t.Helper()
	if got := string(image(t, v.target)); got != v.content {
		t.Errorf("a file outside the directory begins with %q, want it untouched", got[:min(len(got), 20)])
	}
	if got := mode(t, v.target).Perm(); got != 0o600 {
		t.Errorf("a file outside the directory has the mode %v, want 0600 as before", got)
	}
}

func TestAMemberOfTheGroupCannotMakeRootTouchFilesOutsideTheDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run the attack as another user; without root it is run as the same one, see below")
	}
	for what := range attacks {
		t.Run(what, func(t *testing.T) {
			v := newVictim(t)
			t.Setenv("DLOCK_TEST_ATTACK", what)
			c := startChild(t, "attack", v.dir)
			select {
			case line := <-c.lines:
				if strings.HasPrefix(line, "cannot become another user") {
					t.Skip(line)
				}
				if line != "done" {
					t.Fatalf("the member wrote %q, want that the attack is made", line)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the member did nothing")
			}
			v.use()
			v.unharmed(t)
		})
	}
}

func TestAForgedFileReachesNothingOutsideTheDirectory(t *testing.T) {
	for what, attack := range attacks {
		t.Run(what, func(t *testing.T) {
			v := newVictim(t)
			t.Chdir(v.dir)
			if err := attack(); err != nil {
				t.Fatal(err)
			}
			v.use()
			v.unharmed(t)
		})
	}
}

// Where the kernel lets everybody link to every file (fs.protected_hardlinks=0), a member can give
// a file of another user a name in the directory.
func TestAFileWithAnotherNameOutsideTheDirectoryIsNotWritten(t *testing.T) {
	for what, name := range map[string]string{"a lock": filedriver.FileName("k"), "the directory's file": ".dlock", "a mailbox": forged} {
		for _, content := range []string{"", "precious"} {
			t.Run(fmt.Sprintf("%s of %d bytes", what, len(content)), func(t *testing.T) {
				v := newVictim(t)
				v.content = content
				name := filepath.Join(v.dir, name)
				_ = os.Remove(name)
				if err := errors.Join(os.WriteFile(v.target, []byte(content), 0o600), os.Link(v.target, name)); err != nil {
					t.Fatal(err)
				}
				if what == "a mailbox" {
					t.Chdir(v.dir)
					if err := forgeBox(forged); err != nil {
						t.Fatal(err)
					}
				}
				v.use()
				v.unharmed(t)
			})
		}
	}
}

// Between the making of a mailbox and its opening a member can put something else in its place.
func TestAMailboxThatWasSwappedIsNeitherUsedNorGivenAnotherMode(t *testing.T) {
	v := newVictim(t)
	b := open(t, v.dir, filedriver.WithGroup())
	pipe := filepath.Join(filepath.Dir(v.dir), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, place := range map[string]func(name string) error{
		"a file":        func(name string) error { return os.Link(v.target, name) },
		"a link":        func(name string) error { return os.Symlink(v.target, name) },
		"a linked pipe": func(name string) error { return os.Link(pipe, name) },
	} {
		name := filepath.Join(v.dir, forged)
		if err := place(name); err != nil {
			t.Fatal(err)
		}
		if err := filedriver.OpenBox(b, forged); err == nil {
			t.Errorf("%s in the place of a mailbox was opened, want an error", what)
		}
		v.unharmed(t)
		if got := mode(t, pipe).Perm(); got != 0o600 {
			t.Errorf("a pipe outside the directory has the mode %v, want 0600 as before", got)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALetterGoesToNothingButAPipeOfTheDirectory(t *testing.T) {
	v := newVictim(t)
	pipe := filepath.Join(filepath.Dir(v.dir), "pipe")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Link(pipe, filepath.Join(v.dir, forged))); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close() //nolint:errcheck // it is a pipe
	t.Chdir(v.dir)
	if err := forgeBox(forged); err != nil {
		t.Fatal(err)
	}
	v.use()
	if err := reader.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, _ := reader.Read(make([]byte, 64)); n != 0 {
		t.Errorf("a pipe outside the directory got %d bytes, want none", n)
	}
}
