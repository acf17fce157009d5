//go:build linux || darwin

package file_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
)

func TestDSNsThatCannotBeUsedAreRefused(t *testing.T) {
	for dsn, want := range map[string]string{
		"redis://localhost":          "it must begin with file://",
		"file:/var/lib/x":            "it must begin with file://",
		"file://relative/path":       "file:///absolute/path",
		"file://./x":                 "file:///absolute/path",
		"file://bob:hunter2@/x":      "without user, password or host",
		"file:///x?mode=0770":        `unknown parameter "mode"; accepted: group`,
		"file:///x?group=everybody":  `parameter "group" must be true, false, on or off`,
		"file:///x?group=on&group=o": `parameter "group" is given 2 times`,
	} {
		b, err := driver.Open("file", dsn)
		if b != nil || !errors.Is(err, driver.ErrInvalidDSN) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, %v; want ErrInvalidDSN with %q", dsn, b, err, want)
		}
	}
	if b, err := filedriver.New("relative"); b != nil || err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("New of a relative path = %v, %v; want an error that asks for an absolute one", b, err)
	}
}

func TestOpeningMakesNothing(t *testing.T) {
	dir := newDir(t)
	open(t, dir)
	if _, err := os.Lstat(dir); err == nil {
		t.Error("New made the directory, want nothing before the first call")
	}
}

// usedDir returns the directory that an empty DSN leads to.
func usedDir(t *testing.T) string {
	t.Helper()
	b, err := driver.Open("file", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	c := claim("k", "a", ample)
	acquire(t, b, c)
	defer release(t, b, c)
	findings, err := b.(driver.Doctor).Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if dir, ok := strings.CutPrefix(f.Text, "locks are in "); ok {
			return dir
		}
	}
	t.Fatalf("Diagnose = %+v, want the directory", findings)
	return ""
}

func TestTheDefaultDirectoryIsTheUsersOwn(t *testing.T) {
	home, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	if got, want := usedDir(t), filepath.Join(home, ".local/state/dlock"); got != want {
		t.Errorf("the directory is %q, want %q", got, want)
	}
	t.Setenv("XDG_STATE_HOME", state)
	if got, want := usedDir(t), filepath.Join(state, "dlock"); got != want {
		t.Errorf("with XDG_STATE_HOME the directory is %q, want %q", got, want)
	}
	t.Setenv("XDG_STATE_HOME", "relative")
	if got, want := usedDir(t), filepath.Join(home, ".local/state/dlock"); got != want {
		t.Errorf("with a relative XDG_STATE_HOME the directory is %q, want %q", got, want)
	}
}

func TestTheDefaultDirectoryDoesNotDependOnTheEnvironment(t *testing.T) {
	want := filedriver.DefaultDir("", os.Geteuid())
	for _, home := range []string{"/nonexistent", "relative", "/proc/1/root/nonexistent"} {
		if got := filedriver.DefaultDir(home, os.Geteuid()); got != want {
			t.Errorf("with HOME=%s the directory is %q, want %q as without", home, got, want)
		}
	}
	const nobody = 4_000_000_000
	if got := filedriver.DefaultDir(t.TempDir(), nobody); got != fmt.Sprint("/tmp/dlock-", nobody) {
		t.Errorf("with the HOME of another user, and none of one's own, the directory is %q", got)
	}
}

func TestWhatIsMadeIsPrivate(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	enqueue(t, b, claim("k", "waiter", ample))
	if got := mode(t, dir); got != os.ModeDir|0o700 {
		t.Errorf("the directory's mode is %v, want 0700", got)
	}
	for _, name := range append(files(t, dir), ".dlock") {
		if got := mode(t, filepath.Join(dir, name)); got.Perm() != 0o600 {
			t.Errorf("the mode of %s is %v, want 0600", name, got)
		}
	}
}

func TestWhatAGroupSharesCanBeUsedByTheGroup(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := newDir(t)
	b := open(t, dir, filedriver.WithGroup())
	_, err := b.Acquire(t.Context(), claim("k", "holder", ample))
	refused(t, "Acquire in a directory that is missing", err, "install -d -m 2770 -g GROUP "+dir)
	if err := mkdir(dir, 0o770|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	acquire(t, b, claim("k", "holder", ample))
	for i := range 20 {
		enqueue(t, b, claim("k", fmt.Sprint("waiter ", i), ample))
	}
	for _, name := range append(files(t, dir), ".dlock") {
		if got := mode(t, filepath.Join(dir, name)); got.Perm() != 0o660 {
			t.Errorf("the mode of %s is %v, want 0660", name, got)
		}
	}
	if left := files(t, dir); len(left) != 2 {
		t.Errorf("there are %q, want the key's file and the mailbox", left)
	}
	_, err = open(t, dir).Acquire(t.Context(), claim("k", "private", ample))
	refused(t, "Acquire without group=on in a directory that a group shares", err, dir, "group=on")
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	s, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return s.Mode()
}

func TestADirectoryThatOthersCouldTamperWithIsRefused(t *testing.T) {
	for _, c := range []struct {
		what string
		make func(t *testing.T, dir string) error
		opts []filedriver.Option
		want string
	}{
		{"writable by others", func(_ *testing.T, dir string) error { return mkdir(dir, 0o707) }, nil, "written by others"},
		{"writable by the group", func(_ *testing.T, dir string) error { return mkdir(dir, 0o770) }, nil, "group=on"},
		{"sticky", func(_ *testing.T, dir string) error { return mkdir(dir, 0o777|os.ModeSticky) }, nil, "written by others"},
		{"a link", func(t *testing.T, dir string) error { return os.Symlink(t.TempDir(), dir) }, nil, "symbolic link"},
		{"shared with all", func(_ *testing.T, dir string) error { return mkdir(dir, 0o777|os.ModeSetgid) }, []filedriver.Option{filedriver.WithGroup()}, "written by others"},
		{"shared without setgid", func(_ *testing.T, dir string) error { return mkdir(dir, 0o770) }, []filedriver.Option{filedriver.WithGroup()}, "2770"},
		{"shared and sticky", func(_ *testing.T, dir string) error { return mkdir(dir, 0o770|os.ModeSetgid|os.ModeSticky) }, []filedriver.Option{filedriver.WithGroup()}, "sticky"},
		{"another user's", func(t *testing.T, dir string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can make a directory of another user")
			}
			return errors.Join(mkdir(dir, 0o700), os.Chown(dir, 4242, 4242))
		}, nil, "another user"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := newDir(t)
			if err := c.make(t, dir); err != nil {
				t.Fatal(err)
			}
			b := open(t, dir, c.opts...)
			_, err := b.Acquire(t.Context(), claim("k", "a", ample))
			refused(t, "Acquire", err, dir, c.want)
			refused(t, "Ping", b.(driver.Pinger).Ping(t.Context()), dir, c.want)
		})
	}
}

// mkdir makes a directory with this mode, whatever the umask.
func mkdir(dir string, mode os.FileMode) error {
	return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode))
}

func TestADirectoryIsMadeAndTheOneAboveItIsNot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing", "locks")
	b := open(t, dir)
	if _, err := b.Acquire(t.Context(), claim("k", "a", ample)); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("Acquire below a directory that is missing = %v, want an error that names it", err)
	}
}

func TestLinksAndPipesAreNoFiles(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("real", "a", ample))
	target := filepath.Join(t.TempDir(), "target")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path(dir, "link")), unix.Mkfifo(path(dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"link", "pipe"} {
		_, err := b.Acquire(t.Context(), claim(key, "a", ample))
		refused(t, "Acquire of a "+key, err, path(dir, key))
	}
	if s := size(t, target); s != 0 {
		t.Errorf("the link's target has %d bytes, want it untouched", s)
	}
}

func TestWhatIsNoFileOfALockKeepsNobodyFromTheOtherKeys(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "a", ample))
	target := filepath.Join(t.TempDir(), "target")
	err := errors.Join(os.WriteFile(target, []byte("x"), 0o600), os.Symlink(target, path(dir, "link")), unix.Mkfifo(path(dir, "pipe"), 0o600),
		os.Mkdir(path(dir, "folder"), 0o700), os.WriteFile(filepath.Join(dir, "\x1b[31m.dlock"), []byte("x"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", path(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close() //nolint:errcheck // it is a socket
	for _, restarted := range []bool{false, true} {
		if restarted {
			defer filedriver.Restart("another boot")()
			b = open(t, dir)
		}
		acquire(t, b, claim(fmt.Sprint("other ", restarted), "a", ample))
		sweep(t, b)
		_, err := b.Acquire(t.Context(), claim("folder", "a", ample))
		refused(t, "Acquire of a folder", err, path(dir, "folder"))
		for info, err := range b.(driver.Inspector).List(t.Context(), "") {
			if err != nil && strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("List yields %+v, %q, want nothing of a file with a name that no key has", info, err)
			}
		}
	}
	// Nobody can hold anything after a restart, and what stood in the way is gone.
	for _, key := range []string{"link", "pipe", "socket"} {
		acquire(t, b, claim(key, "a", ample))
	}
	if got := string(image(t, target)); got != "x" {
		t.Errorf("the link's target is %q, want it untouched", got)
	}
}

func TestDiagnoseTellsWhatIsWrong(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "a", ample))
	restore(t, path(dir, "bad"), []byte("x"))
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	findings, err := b.(driver.Doctor).Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range findings {
		got[f.ID] = f.Level
	}
	for id, level := range map[string]string{"file-damaged": "error", "file-mode": "warning", "file-directory": "info", "file-keys": "info"} {
		if got[id] != level {
			t.Errorf("Diagnose has %q at level %q, want %q", id, got[id], level)
		}
	}
	var keys []string
	for info, err := range b.(driver.Inspector).List(t.Context(), "") {
		if err != nil {
			refused(t, "List", err, path(dir, "bad"))
			keys = append(keys, "error")
			continue
		}
		keys = append(keys, info.Key)
	}
	if got, want := strings.Join(keys, " "), "k error"; got != want {
		t.Errorf("List yields %q, want %q: one file that cannot be read does not hide the others", got, want)
	}
}
