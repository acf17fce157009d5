package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// endWithParent has the kernel kill the command when we are killed. What it has started in turn is
// left to the guard.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// relatives finds the family by the process group and by the mark, wherever its members went: into
// another process group or session, or to another parent. One that cleared its environment is found
// below the others. What is nested, under another dlock run, has the mark of that one behind ours.
func (f family) relatives(nested bool) []procInfo {
	if f.mark == "" {
		return nil // it would be found everywhere
	}
	all := map[int]procInfo{}
	children := map[int][]int{}
	roots := f.roots()
	for _, p := range processes() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if !nested && bytes.Contains(env, []byte(f.mark+".")) {
			continue
		}
		if bytes.Contains(env, []byte(f.mark)) || f.group && p.group == f.pid {
			roots = append(roots, p.pid)
		}
		all[p.pid] = p
		children[p.parent] = append(children[p.parent], p.pid)
	}
	return living(descendants(roots, children), all)
}

// processes returns all of them, or none where /proc is that of other processes than ours, as in a
// namespace for processes without one for mounts: there its ids are not those that kill takes.
func processes() (all []procInfo) {
	if self, _ := os.Readlink("/proc/self"); self != strconv.Itoa(os.Getpid()) {
		return nil
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if p, ok := processIn(dir); ok {
			all = append(all, p)
		}
	}
	return all
}

// processIn reads what dir in /proc is about.
func processIn(dir string) (p procInfo, ok bool) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, false
	}
	name := bytes.LastIndexByte(stat, ')') // which may have blanks and brackets in it
	fields := bytes.Fields(stat[name+1:])
	const state, parent, group, threads = 0, 1, 2, 17
	if len(fields) <= threads {
		return p, false
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(string(fields[i]))
		return n
	}
	p.pid, _ = strconv.Atoi(filepath.Base(dir))
	p.parent, p.group = number(parent), number(group)
	// A first thread that has ended is shown as a zombie while others run.
	p.dead = bytes.ContainsAny(fields[state], "ZX") && number(threads) <= 1
	return p, true
}

// catches reports whether the process has a handler for s, as far as can be seen.
func catches(pid int, s syscall.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := bytes.Cut(status, []byte("\nSigCgt:"))
	var handlers uint64
	if _, err := fmt.Sscanf(string(rest), "%x", &handlers); err != nil {
		return true
	}
	return handlers>>(s-1)&1 != 0
}
