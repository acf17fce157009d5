package main

import (
	"os/exec"
	"sync"
)

// nursery knows the children that we have started, and so which ones we have been given: as process
// 1 of a container, or as a subreaper, we get every orphan, and have to wait for it when it ends.
type nursery struct {
	mu  sync.Mutex
	own map[int]bool
}

// start starts cmd, whose end somebody has to wait for with wait.
func (n *nursery) start(cmd *exec.Cmd) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if n.own == nil {
		n.own = map[int]bool{}
	}
	n.own[cmd.Process.Pid] = true
	return nil
}

func (n *nursery) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.own, cmd.Process.Pid)
	return err
}
