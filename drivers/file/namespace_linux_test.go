package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
)

// A container may share a directory with the machine it runs on, and yet have another boot id or
// another clock. Either would let it hold a lock that is held outside.

func init() { children["thief"] = childThief }

// childThief tries to get the key that the test holds.
func childThief(dir string) {
	_, err := childBackend(dir).Acquire(context.Background(), claim("k", "thief", longTTL))
	switch {
	case err == nil:
		fmt.Println("granted")
	case errors.Is(err, driver.ErrHeld):
		fmt.Println("held")
	case errors.Is(err, driver.ErrPermanent):
		fmt.Println("refused", err)
	default:
		fmt.Println("error", err)
	}
}

// inNamespace runs a child in namespaces of its own, which setup changes, and returns its answer.
func inNamespace(t *testing.T, role, dir, setup string, flags ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make namespaces like those of a container")
	}
	if out, err := exec.Command("unshare", append(flags, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine makes no such namespace: unshare %v: %v: %s", flags, err, out)
	}
	args := append(flags, "sh", "-ec", setup+`; exec "$0" "$1"`, os.Args[0], dir)
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), asChild+"="+role, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("unshare %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestAContainerWithABootIDOfItsOwnIsRefused(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	id := filepath.Join(t.TempDir(), "boot_id")
	restore(t, id, []byte("00000000-1111-2222-3333-444444444444\n"))
	got := inNamespace(t, "thief", dir, "mount --bind "+id+" /proc/sys/kernel/random/boot_id", "--mount")
	if !strings.HasPrefix(got, "refused") || !strings.Contains(got, "/proc/sys/kernel/random/boot_id") {
		t.Errorf("a process with another boot id: %s; want it refused, and the file named", got)
	}
	if got := inNamespace(t, "thief", dir, ":", "--mount"); got != "held" {
		t.Errorf("a process with the same boot id: %s; want held", got)
	}
}

func TestABootIDThatIsNotTheKernelsIsRefused(t *testing.T) {
	id := filepath.Join(t.TempDir(), "boot_id")
	restore(t, id, []byte("00000000-1111-2222-3333-444444444444\n"))
	got, err := filedriver.BootIDIn(id)
	refused(t, "the boot id "+got+" of another file", err, id, "not the kernel's")
}

func TestAProcessInATimeNamespaceIsRefused(t *testing.T) {
	dir := newDir(t)
	b := open(t, dir)
	acquire(t, b, claim("k", "holder", ample))
	if got := inNamespace(t, "thief", dir, ":", "--time", "--monotonic", "1000000", "--fork"); !strings.HasPrefix(got, "refused") || !strings.Contains(got, "time namespace") {
		t.Errorf("a process whose clock is ahead: %s; want it refused, and told why", got)
	}
	if got := inNamespace(t, "thief", dir, ":", "--time", "--fork"); got != "held" {
		t.Errorf("a process in a time namespace whose clock is the machine's: %s; want held", got)
	}
}

func TestOffsetsOfTheMonotonicClockAreSeen(t *testing.T) {
	for offsets, want := range map[string]bool{
		"monotonic           0         0\nboottime            0         0\n": false,
		"monotonic          10         0\nboottime            0         0\n": true,
		"monotonic           0         5\nboottime            0         0\n": true,
		"monotonic          -1 999999999\nboottime            0         0\n": true,
		"monotonic           0         0\nboottime          700         0\n": false, // nobody goes by that clock
	} {
		if got := filedriver.Shifted(offsets); got != want {
			t.Errorf("offsets %q: shifted = %v, want %v", offsets, got, want)
		}
	}
}
