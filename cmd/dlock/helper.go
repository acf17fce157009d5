package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// helper is another process of this program, which runs beside a command.
type helper struct {
	cmd   *exec.Cmd
	pipe  *os.File // its stdin; it ends when this does
	ended chan struct{}
}

// startHelper starts a hidden subcommand. Of our stdout and stderr it has nothing: somebody may
// wait for their end.
func startHelper(n *nursery, attr *syscall.SysProcAttr, stdout *os.File, args ...string) (*helper, error) {
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
	defer stdin.Close() //nolint:errcheck // a copy of the helper's
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = "dlock"
	cmd.Stdin, cmd.Dir, cmd.SysProcAttr = stdin, string(os.PathSeparator), attr
	if stdout != nil {
		cmd.Stdout = stdout
	}
	// To the runs that we are in it is no part of the command: they must not pass their signals on
	// to it.
	cmd.Env = append(os.Environ(), "DLOCK_RUN="+os.Getenv("DLOCK_RUN")+".helper")
	if err := n.start(cmd); err != nil {
		_ = pipe.Close()
		return nil, err
	}
	h := &helper{cmd, pipe, make(chan struct{})}
	go func() {
		defer close(h.ended)
		_ = n.wait(cmd)
	}()
	return h, nil
}

// stop ends the helper, and waits: an orphan would stay a zombie where process 1 buries nobody, as
// in many containers.
func (h *helper) stop() {
	_ = h.cmd.Process.Kill()
	<-h.ended
	_ = h.pipe.Close()
}
