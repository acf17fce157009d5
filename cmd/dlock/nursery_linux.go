package main

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buryOrphans waits for the ends of children that others started, until the function that it
// returns is called.
func (n *nursery) buryOrphans() (stop func()) {
	if !getsOrphans() {
		return func() {}
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGCHLD)
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			n.bury()
			select {
			case <-ends:
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(ends)
		close(done)
		<-stopped
	}
}

// getsOrphans reports whether orphans become our children.
func getsOrphans() bool {
	var subreaper int32
	_ = unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	return os.Getpid() == 1 || subreaper != 0
}

// bury waits for the orphans that have ended. Asking for any child that has would take the exit
// status of our own from whoever waits for it.
func (n *nursery) bury() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range processes() {
		if p.dead && p.parent == os.Getpid() && !n.own[p.pid] {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	}
}
