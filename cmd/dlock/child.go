package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
)

// killAfter is how long a child has to end after the lock was lost. Tests shorten it.
var killAfter = 5 * time.Second

// child is the command, ready to start.
func (r *runner) child(lease *dlock.Lease) *exec.Cmd {
	cmd := exec.Command(r.command[0], r.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Under another dlock run the fence of the outer lock is in the environment.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DLOCK_FENCE=") })
	cmd.Env = append(cmd.Env, "DLOCK_KEY="+lease.Key())
	if fence := lease.Fence(); fence > 0 {
		cmd.Env = append(cmd.Env, "DLOCK_FENCE="+strconv.FormatUint(fence, 10))
	}
	return cmd
}

// supervise runs cmd to its end, passing signals on and stopping it when the lease is lost. The error is nil if it exited with 0.
func supervise(cmd *exec.Cmd, lease *dlock.Lease, signals <-chan os.Signal) error {
	if err := lease.Err(); err != nil {
		return exit{exitLost, err}
	}
	if err := cmd.Start(); err != nil {
		return cannotStart(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	lost := lease.Done()
	var kill <-chan time.Time
	for {
		select {
		case err := <-ended:
			return status(err)
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have just ended
		case <-lost:
			complain(fmt.Errorf("stopping the command: %w", lease.Err()))
			lost = nil
			kill = time.After(killAfter)
			if cmd.Process.Signal(syscall.SIGTERM) != nil {
				_ = cmd.Process.Kill() // where there are no signals
			}
		case <-kill:
			_ = cmd.Process.Kill()
		}
	}
}

func cannotStart(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exit{exitNotFound, err}
	}
	return exit{exitCannotRun, err}
}

// status turns what Wait returned into our own exit.
func status(err error) error {
	var failed *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &failed):
		return exit{exitCannotRun, err}
	}
	if w, ok := failed.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exit{code: exitSignal + number(w.Signal())}
	}
	return exit{code: failed.ExitCode()}
}

func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}
