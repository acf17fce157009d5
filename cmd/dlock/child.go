package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
)

// start starts the command. As in a shell, a file that is executable and no program is one of the
// shell's.
func (r *runner) start(lease *dlock.Lease, fam family) (*exec.Cmd, error) {
	cmd := r.child(lease, fam, r.command)
	err := r.nursery.start(cmd)
	if errors.Is(err, syscall.ENOEXEC) {
		cmd = r.child(lease, fam, append([]string{"/bin/sh", cmd.Path}, r.command[1:]...))
		err = r.nursery.start(cmd)
	}
	return cmd, err
}

// child is a command line, ready to start, with the mark of fam in its environment.
func (r *runner) child(lease *dlock.Lease, fam family, line []string) *exec.Cmd {
	cmd := exec.Command(line[0], line[1:]...)
	if errors.Is(cmd.Err, exec.ErrDot) { // whoever has the current directory in PATH wants that
		cmd.Err = nil
	}
	cmd.SysProcAttr = fam.attributes()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Under another dlock run the fence of the outer lock is in the environment.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DLOCK_FENCE=") })
	// The marks of the runs that we are in are kept: what we start belongs to them, too.
	cmd.Env = append(cmd.Env, "DLOCK_KEY="+lease.Key(), "DLOCK_RUN="+os.Getenv("DLOCK_RUN")+fam.mark)
	if fence := lease.Fence(); fence > 0 {
		cmd.Env = append(cmd.Env, "DLOCK_FENCE="+strconv.FormatUint(fence, 10))
	}
	return cmd
}

// supervise runs the command to its end, passing signals on and stopping it when the lease is lost.
// The error is nil if it exited with 0.
func (r *runner) supervise(lease *dlock.Lease, signals <-chan os.Signal) error {
	if err := lease.Err(); err != nil {
		return exit{code: exitLost, err: err}
	}
	// Linux ends the command when the thread that started it ends, so that thread has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fam := family{mark: "." + rand.Text(), group: !hasTerminal()}
	guard, err := startGuard(&r.nursery, fam)
	if err != nil {
		return exit{code: exitCannotRun, err: fmt.Errorf("cannot start what guards the command: %w", err)}
	}
	defer guard.stop()
	rel, stop := fam.relay(&r.nursery)
	defer stop()
	select {
	case s := <-signals: // it was not sent to the command, which is not there yet
		return r.interrupted(s)
	default:
	}
	cmd, err := r.start(lease, fam)
	if err != nil {
		return cannotStart(err)
	}
	fam.pid, fam.child = cmd.Process.Pid, cmd.Process
	guard.watch(fam.pid)
	ended := make(chan error, 1)
	go func() { ended <- r.nursery.wait(cmd) }()
	return r.attend(fam, ended, lease, signals, rel)
}

// attend does what has to be done until the command has ended.
func (r *runner) attend(
	fam family, ended <-chan error, lease *dlock.Lease, signals <-chan os.Signal, rel *relay,
) error {
	var kill <-chan time.Time
	lost := lease.Done()
	rel.pass = fam.pass
	for {
		select {
		case err := <-ended:
			if kill != nil {
				fam.outlive(kill)
			}
			return status(err, !fam.group)
		case s := <-signals:
			rel.take(syscall.Signal(number(s)))
		case <-rel.due:
			rel.flush()
		case <-lost:
			fam.stop()
			lost, kill = nil, time.After(r.killAfter)
			briefly(func() { complain(fmt.Errorf("stopping the command: %w", lease.Err())) })
		case <-kill:
			kill = time.After(0) // still to be killed, if the command itself is already gone
			fam.kill(killLimit)
		}
	}
}

// killLimit is how long to look for what cannot be killed.
const killLimit = time.Second

// outlive waits for what a command that has ended left running, and kills it when its time is up.
func (f family) outlive(kill <-chan time.Time) {
	for none := 0; none < calm; {
		if none++; f.alive() {
			none = 0
		}
		select {
		case <-kill:
			f.kill(killLimit)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func cannotStart(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exit{code: exitNotFound, err: err}
	}
	return exit{code: exitCannotRun, err: err}
}

// status turns what Wait returned into our own exit.
func status(err error, onTerminal bool) error {
	var failed *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &failed):
		return exit{code: exitCannotRun, err: err}
	}
	if w, ok := failed.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exit{code: exitSignal + number(w.Signal()), interrupted: onTerminal && w.Signal() == syscall.SIGINT}
	}
	return exit{code: failed.ExitCode()}
}

func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}
