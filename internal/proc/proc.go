// Package proc is what tests do with processes that they start.
package proc

import (
	"os"
	"os/exec"
	"syscall"
)

// Tie has the kernel kill cmd, which is yet to be started, when the test process ends, where the kernel can do that.
func Tie(cmd *exec.Cmd) { tie(cmd) }

// Stop suspends a child process, and returns when the last of its threads is suspended: the signal alone may find some of them busy for a while longer.
func Stop(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		if _, err := syscall.Wait4(p.Pid, nil, syscall.WUNTRACED, nil); err != syscall.EINTR {
			return os.NewSyscallError("wait4", err)
		}
	}
}

// Continue lets a suspended process go on.
func Continue(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
