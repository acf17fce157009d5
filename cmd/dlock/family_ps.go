//go:build unix && !linux

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// endWithParent does nothing: only Linux kills a command when its parent is killed. The guard does
// it here.
func endWithParent(*syscall.SysProcAttr) {}

// relatives finds the family by the process group and by asking ps who is whose child. One whose
// parent has ended is not found, unless it is in the process group, and what runs under another
// dlock run is not told from the rest.
func (f family) relatives(bool) []procInfo {
	all := map[int]procInfo{}
	children := map[int][]int{}
	roots := f.roots()
	for _, p := range processes() {
		if f.group && p.group == f.pid {
			roots = append(roots, p.pid)
		}
		all[p.pid] = p
		children[p.parent] = append(children[p.parent], p.pid)
	}
	return living(descendants(roots, children), all)
}

func processes() (all []procInfo) {
	table, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,pgid=,stat=").Output()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(table)) {
		var p procInfo
		var state string
		if _, err := fmt.Sscan(line, &p.pid, &p.parent, &p.group, &state); err == nil {
			p.dead = strings.HasPrefix(state, "Z")
			all = append(all, p)
		}
	}
	return all
}

// catches is believed of every program: what it does about a signal cannot be seen here.
func catches(int, syscall.Signal) bool { return true }
