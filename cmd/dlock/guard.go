package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"
)

// guard starts a process that ends the family if we are killed, which nothing that we do ourselves can see to: it notices because its stdin
// ends. The function that guard returns ends it, and waits: an orphan would stay a zombie where process 1 buries nobody, as in many containers.
func (f family) guard() (stop func()) {
	exe, err := os.Executable()
	if runtime.GOOS == "linux" {
		exe = "/proc/self/exe" // also when an upgrade has replaced the file
	}
	if err != nil {
		complain(err)
		return func() {}
	}
	stdin, pipe, err := os.Pipe()
	if err != nil {
		complain(err)
		return func() {}
	}
	defer stdin.Close() //nolint:errcheck // a copy of the guard's
	cmd := exec.Command(exe, "guard", strconv.Itoa(f.pid), strconv.FormatBool(f.group), f.mark)
	cmd.Args[0] = "dlock"
	// Stdout and stderr are not ours to keep open: somebody may wait for their end.
	cmd.Stdin, cmd.Dir, cmd.SysProcAttr = stdin, string(os.PathSeparator), apart()
	if err := cmd.Start(); err != nil {
		complain(err)
	}
	return func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		_ = pipe.Close()
	}
}

// newGuard is the other process.
func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard PID GROUP MARK",
		Short:  "End what a killed dlock run left behind",
		Hidden: true,
		Args:   cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			ignoreSignals()
			pid, err := strconv.Atoi(args[0])
			if err != nil || pid <= 1 || args[2] == "" {
				return exit{code: exitUsage}
			}
			_, _ = io.Copy(io.Discard, os.Stdin)
			family{pid: pid, group: args[1] == "true", mark: args[2]}.kill()
			return nil
		},
	}
}
