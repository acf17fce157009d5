package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// endWithParent has the kernel kill the command when we are killed. What it has started in turn is left to the guard.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// relatives finds the family by the mark, wherever its members went: into another process group or session, or to another parent. One that cleared
// its environment is found below the others. What is nested, under another dlock run, has the mark of that one behind ours.
func (f family) relatives(nested bool) []int {
	roots, children := f.roots(), map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		dir := filepath.Dir(file)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(file)
		if !nested && bytes.Contains(env, []byte(f.mark+".")) {
			continue
		}
		if bytes.Contains(env, []byte(f.mark)) {
			roots = append(roots, pid)
		}
		parent := parentIn(dir)
		children[parent] = append(children[parent], pid)
	}
	return descendants(roots, children)
}

// parentIn is the id of the parent of the process that dir in /proc is about, or 0.
func parentIn(dir string) (parent int) {
	stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
	var state string
	name := bytes.LastIndexByte(stat, ')') // which may have blanks and brackets in it
	_, _ = fmt.Sscan(string(stat[name+1:]), &state, &parent)
	return parent
}
