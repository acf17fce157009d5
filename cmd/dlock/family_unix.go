//go:build unix

package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// family is the command and everything that it started.
type family struct {
	pid   int         // the command's
	child *os.Process // the command, to its parent; nil to the guard
	group bool        // they have a process group of their own, named by pid
	mark  string      // in the environment of all of them
}

// attributes are those that the command is started with.
//
// Without a terminal it gets a process group, so that all of it can be reached. On a terminal it stays in ours: a group of its own would have to
// be put into the foreground, where it keeps Ctrl-C from the script that dlock is part of and the keyboard from a pager that it writes to.
func (f family) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: f.group}
	endWithParent(a)
	return a
}

// apart are the attributes of a process that no signal from a terminal or to our group is to reach.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// hasTerminal reports whether we have a controlling terminal.
func hasTerminal() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = tty.Close()
	return true
}

// inForeground reports whether the keyboard's signals go to our process group.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer tty.Close() //nolint:errcheck // nothing was written
	front, err1 := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	ours, err2 := unix.Getpgid(0)
	return err1 == nil && err2 == nil && front == ours
}

// catchSignals returns the signals that are passed on. What we were started to ignore, as by nohup, stays ignored.
func catchSignals() chan os.Signal {
	c := make(chan os.Signal, 8)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	return c
}

// survivePipes has what we write fail where nobody reads it, instead of ending us: the command would end with us, and not in its own time. The command gets the
// signal as ever.
func survivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func ignoreSignals() { signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT) }

// dieOfInterrupt ends this process as Ctrl-C would have. A shell that sees an exit code instead goes on with its script.
func dieOfInterrupt() {
	signal.Reset(syscall.SIGINT)
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	time.Sleep(time.Second)
}

// pass hands a signal on. What runs under a dlock run of its own has it from that one.
func (f family) pass(s os.Signal) {
	n, _ := s.(syscall.Signal)
	switch n {
	case syscall.SIGUSR1, syscall.SIGUSR2:
		_ = syscall.Kill(f.pid, n)
	case syscall.SIGINT, syscall.SIGQUIT:
		if f.group || !inForeground() { // otherwise they had it from the terminal, and twice means something else to many programs
			f.signal(n, false)
		}
	default:
		f.signal(n, false)
	}
}

// stop asks all of them to end, as pass does, and wakes those that are stopped.
func (f family) stop() {
	f.signal(syscall.SIGTERM, false)
	f.signal(syscall.SIGCONT, true)
}

// kill ends all of them. Some may have been started while it looked, so it looks until there are none, but not for ever: nobody may be
// there to bury them, or they may be out of our reach.
func (f family) kill() {
	for end := time.Now().Add(time.Second); f.signal(syscall.SIGKILL, true) && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

// alive reports whether any of them is there.
func (f family) alive() bool { return f.signal(0, true) }

// roots is the command itself, unless its id is not known, or it has ended and its id may be another's.
func (f family) roots() []int {
	if f.pid == 0 || f.child != nil && f.child.Signal(syscall.Signal(0)) != nil {
		return nil
	}
	return []int{f.pid}
}

// descendants returns roots and everything below them, each once.
func descendants(roots []int, children map[int][]int) []int {
	var found []int
	seen := map[int]bool{}
	for len(roots) > 0 {
		pid := roots[0]
		roots = roots[1:]
		if !seen[pid] {
			seen[pid] = true
			found = append(found, pid)
			roots = append(roots, children[pid]...)
		}
	}
	return found
}

// signal sends s to all of them, or leaves out what runs under another dlock run among them. It reports whether there were any.
func (f family) signal(s syscall.Signal, nested bool) bool {
	reached := f.group && syscall.Kill(-f.pid, s) == nil
	strays := slices.DeleteFunc(f.relatives(nested), func(pid int) bool {
		group, err := unix.Getpgid(pid)
		return err != nil || f.group && group == f.pid
	})
	for _, pid := range strays {
		reached = syscall.Kill(pid, s) == nil || reached
	}
	return reached
}

// onResize returns a channel that tells when the terminal's size has changed.
func onResize() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c
}
