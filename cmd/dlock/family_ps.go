//go:build unix && !linux

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// endWithParent does nothing: only Linux kills a command when its parent is killed. The guard does it here.
func endWithParent(*syscall.SysProcAttr) {}

// relatives finds the family by asking ps who is whose child. One whose parent has ended is not found, unless it is in the process group, and
// what runs under another dlock run is not told from the rest.
func (f family) relatives(bool) []int {
	table, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for line := range strings.Lines(string(table)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return descendants(f.roots(), children)
}
