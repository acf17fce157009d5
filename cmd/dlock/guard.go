package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"
)

// guard is a process that ends a family if we are killed, which nothing that we do ourselves can see to: it notices because its stdin ends. It
// is started before the command, so that there is no moment without it.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File // its stdin
}

// startGuard starts the guard of a family whose command is still to be started.
func startGuard(f family) (*guard, error) {
	exe := "/proc/self/exe" // also when an upgrade has replaced the file
	if runtime.GOOS != "linux" {
		path, err := os.Executable()
		if err != nil {
			return nil, err
		}
		exe = path
	}
	stdin, pipe, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close() //nolint:errcheck // a copy of the guard's
	cmd := exec.Command(exe, "guard", strconv.FormatBool(f.group), f.mark)
	cmd.Args[0] = "dlock"
	// Stdout and stderr are not ours to keep open: somebody may wait for their end.
	cmd.Stdin, cmd.Dir, cmd.SysProcAttr = stdin, string(os.PathSeparator), apart()
	if err := cmd.Start(); err != nil {
		_ = pipe.Close()
		return nil, err
	}
	return &guard{cmd, pipe}, nil
}

// watch tells the guard who the command is.
func (g *guard) watch(pid int) { _, _ = fmt.Fprint(g.pipe, pid) }

// stop ends the guard, and waits: an orphan would stay a zombie where process 1 buries nobody, as in many containers.
func (g *guard) stop() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	_ = g.pipe.Close()
}

// newGuard is the other process.
func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard GROUP MARK",
		Short:  "End what a killed dlock run left behind",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			ignoreSignals()
			said, _ := io.ReadAll(os.Stdin)
			f := family{mark: args[1]}
			if pid, err := strconv.Atoi(string(said)); err == nil {
				f.pid, f.group = pid, args[0] == "true"
			}
			f.kill()
			return nil
		},
	}
}
