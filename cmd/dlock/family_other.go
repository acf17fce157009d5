//go:build !unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// family is the command. What it starts in turn is out of reach here.
type family struct {
	pid   int
	child *os.Process
	group bool
	mark  string
}

func (f family) attributes() *syscall.SysProcAttr { return nil }

func apart() *syscall.SysProcAttr { return nil }

func hasTerminal() bool { return false }

func catchSignals() chan os.Signal {
	c := make(chan os.Signal, 8)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	return c
}

func survivePipes() {}

func ignoreSignals() { signal.Ignore(os.Interrupt) }

func dieOfInterrupt() {}

func (f family) relay(*nursery) (r *relay, stop func()) { return &relay{}, func() {} }

// pass does nothing for an interrupt, which a console sends to all of its processes. There are no
// other signals that could be passed on.
func (f family) pass(s syscall.Signal, _ bool) {
	if s != syscall.SIGINT {
		f.stop()
	}
}

func (f family) stop() { f.kill(0) }

func (f family) kill(time.Duration) {
	p := f.child
	if p == nil && f.pid != 0 {
		p, _ = os.FindProcess(f.pid)
	}
	if p != nil {
		_ = p.Kill()
	}
}

func (f family) alive() bool { return false }

// onResize returns a channel on which nothing comes: the next look finds the new size.
func onResize() chan os.Signal { return make(chan os.Signal) }

// newWitness is for systems on which signals are sent to process groups.
func newWitness() *cobra.Command { return &cobra.Command{Use: "witness", Hidden: true} }
