//go:build unix

package main

import (
	"os"
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

// procInfo is a line in the system's table of processes.
type procInfo struct {
	pid, parent, group int
	dead               bool // it has ended and was not waited for
}

// attributes are those that the command is started with.
//
// Without a terminal it gets a process group, so that all of it can be reached. On a terminal it
// stays in ours: a group of its own would have to be put into the foreground, where it keeps Ctrl-C
// from the script that dlock is part of and the keyboard from a pager that it writes to.
func (f family) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: f.group}
	endWithParent(a)
	return a
}

// apart are the attributes of a process that no signal from a terminal or to our group is to reach.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// stop asks all of them to end, as pass does, and wakes those that are stopped.
func (f family) stop() {
	f.signal(syscall.SIGTERM, audience{})
	f.signal(syscall.SIGCONT, audience{nested: true})
}

// kill ends all of them. It gives up after limit: some may be out of our reach.
func (f family) kill(limit time.Duration) {
	untilNone(limit, func() bool { return f.signal(syscall.SIGKILL, audience{nested: true}) })
}

// alive reports whether any of them is there.
func (f family) alive() bool { return f.signal(0, audience{nested: true}) }

// roots is the command itself, unless its id is not known, or it has ended and its id may be
// another's.
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

// living returns those of pids that have not ended. One that is not in the table is believed to
// live.
func living(pids []int, table map[int]procInfo) (found []procInfo) {
	for _, pid := range pids {
		p, ok := table[pid]
		if !ok {
			p.pid = pid
			p.group, _ = unix.Getpgid(pid)
		}
		if !p.dead {
			found = append(found, p)
		}
	}
	return found
}

// audience says which members of a family a signal goes to.
type audience struct {
	nested  bool // also to those that run under another dlock run
	without int  // but not to members of this process group; 0: to those of every one
}

// signal sends s to members of the family. It reports whether there were any that live.
func (f family) signal(s syscall.Signal, to audience) bool {
	wholeGroup := f.group && f.pid != 0 && syscall.Kill(-f.pid, s) == nil
	reached := false
	for _, p := range f.relatives(to.nested) {
		switch {
		case to.without != 0 && p.group == to.without:
		case wholeGroup && p.group == f.pid:
			reached = true
		default:
			reached = syscall.Kill(p.pid, s) == nil || reached
		}
	}
	return reached
}

// relay passes on what comes to us, when its pass is set. On a terminal the command is going to be
// in our process group, and so is a witness, until stop is called. If there can be none, the
// keyboard is all that is known to send to the group.
func (f family) relay(n *nursery) (r *relay, stop func()) {
	r = &relay{guess: func(s syscall.Signal) bool {
		return (s == syscall.SIGINT || s == syscall.SIGQUIT) && inForeground()
	}}
	if f.group {
		return r, func() {}
	}
	w, err := startWitness(n)
	if err != nil {
		r.ask = func() ([]syscall.Signal, bool) { return nil, false }
		return r, func() {}
	}
	r.ask = w.ask
	return r, w.stop
}

// pass hands a signal on. What runs under a dlock run of its own has it from that one. If it was
// sent to our process group, those of them that are in it have it already.
func (f family) pass(s syscall.Signal, toGroup bool) {
	var to audience
	if toGroup {
		to.without = unix.Getpgrp()
		// It may have been sent before the command was there. One that does not catch it and lives
		// has not had it, and cannot get it twice.
		if !catches(f.pid, s) {
			_ = f.child.Signal(s)
		}
	}
	switch {
	case s == syscall.SIGUSR1 || s == syscall.SIGUSR2:
		if group, err := unix.Getpgid(f.pid); err == nil && group != to.without {
			_ = f.child.Signal(s)
		}
	case toGroup && (s == syscall.SIGINT || s == syscall.SIGQUIT) && inForeground():
		// From the keyboard. It does not reach what has left the group without dlock either.
	default:
		f.signal(s, to)
	}
}
