//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passed are the signals that are passed on.
var passed = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// catchSignals returns the signals that are passed on. What we were started to ignore, as by nohup,
// stays ignored.
func catchSignals() chan os.Signal {
	c := make(chan os.Signal, 64)
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	return c
}

// survivePipes has what we write fail where nobody reads it, instead of ending us: the command
// would end with us, and not in its own time. The command gets the signal as ever.
func survivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func ignoreSignals() { signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT) }

// dieOfInterrupt ends this process as Ctrl-C would have. A shell that sees an exit code instead
// goes on with its script. Process 1 of a container cannot die of a signal of its own.
func dieOfInterrupt() {
	if os.Getpid() == 1 {
		return
	}
	signal.Reset(syscall.SIGINT)
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	time.Sleep(time.Second)
}

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
	front, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && front == unix.Getpgrp()
}

// onResize returns a channel that tells when the terminal's size has changed.
func onResize() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c
}
