package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keepArg makes the test binary be a process that is stopped while it keeps a lock's file.
const keepArg = "keep-file"

func init() {
	if len(os.Args) != 3 || os.Args[1] != keepArg {
		return
	}
	f, err := os.OpenFile(os.Args[2], os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		panic(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	os.Exit(0)
}

func TestRunNamesAProcessThatIsStoppedWithinACall(t *testing.T) {
	env := fileStore(t)
	if got := finish(t, with(command(t, "run", "demo", "--", "true"), env...)); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	_, dir, _ := strings.Cut(env[1], "file://")
	keeper := exec.CommandContext(t.Context(), os.Args[0], keepArg, filepath.Join(dir, "demo.dlock"))
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
	})
	eventually(t, "the keeper is stopped", func() bool { return state(keeper.Process.Pid) == 'T' })
	want := fmt.Sprintf("is it stopped? Process %d is", keeper.Process.Pid)
	for _, flag := range []string{"--no-wait", "--wait=5s"} {
		began := time.Now()
		got := finish(t, with(command(t, "run", flag, "demo", "--", "true"), env...))
		if got.code != 69 || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v after %v, want 69 and %q", flag, got, time.Since(began), want)
		}
	}
}
