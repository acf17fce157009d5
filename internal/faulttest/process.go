package faulttest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/proc"
)

// role is the variable that makes a process of the test binary one that wants a lock. Its other settings are in variables that begin alike.
const role = "DLOCK_FAULTTEST"

// Main is called first in TestMain. In a process that is meant to want a lock it does so, and never returns.
func Main() {
	if r := os.Getenv(role); r != "" {
		if err := play(r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Process is another process of the test binary.
type Process struct {
	cmd   *exec.Cmd
	lines chan string
}

// StartHolder starts a process that acquires a lock and writes "fence" and its fence. When it was stopped for longer than the TTL it writes what it then sees
// first: "held", "done" with the µs after which Done was closed, and "write" with the fence that it would write with.
func StartHolder(t *testing.T, driver, dsn, key string, ttl time.Duration) *Process {
	t.Helper()
	return start(t, "hold", driver, dsn, key, ttl)
}

// StartWaiter starts a process that writes "waiting" and its number, acquires a lock, writes "fence" and its fence, and keeps the lock.
func StartWaiter(t *testing.T, driver, dsn, key string, ttl time.Duration) *Process {
	t.Helper()
	return start(t, "wait", driver, dsn, key, ttl)
}

func start(t *testing.T, what, driver, dsn, key string, ttl time.Duration) *Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{cmd: exec.Command(exe), lines: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), role+"="+what, role+"_DRIVER="+driver, role+"_DSN="+dsn, role+"_KEY="+key, role+"_TTL="+ttl.String())
	var complaints bytes.Buffer
	p.cmd.Stderr = &complaints
	proc.Tie(p.cmd)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		p.Kill()
		if complaints.Len() > 0 {
			t.Logf("the process: %s", complaints.String())
		}
	})
	return p
}

// Stop suspends the process. Continue lets it go on.
func (p *Process) Stop() { _ = proc.Stop(p.cmd.Process) }

// Continue lets a suspended process go on.
func (p *Process) Continue() { _ = proc.Continue(p.cmd.Process) }

// Kill ends the process, and waits for that.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Line returns the next line that the process writes, without the word that it must begin with.
func (p *Process) Line(t *testing.T, word string) string {
	t.Helper()
	line := Receive(t, fmt.Sprintf("%q from the process", word), p.lines)
	rest, found := strings.CutPrefix(line, word+" ")
	if !found {
		t.Fatalf("the process wrote %q, want %q", line, word)
	}
	return rest
}

// play is what the process does.
func play(what string) error {
	ttl, err := time.ParseDuration(os.Getenv(role + "_TTL"))
	if err != nil {
		return err
	}
	l, err := dlock.Open(os.Getenv(role+"_DRIVER"), os.Getenv(role+"_DSN"), &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		return err
	}
	if what == "wait" {
		fmt.Println("waiting", os.Getpid())
	}
	x, err := dlock.Acquire(context.Background(), l, os.Getenv(role+"_KEY"))
	if err != nil {
		return err
	}
	if what == "wait" {
		fmt.Println("fence", x.Fence())
		select {}
	}
	wakeUp(x, ttl)
	return nil
}

// wakeUp notices that the process was stopped. It does not sleep: whoever sleeps when the process is stopped wakes together with the timers.
func wakeUp(x *dlock.Lease, ttl time.Duration) {
	last := time.Now()
	fmt.Println("fence", x.Fence()) // from here on the process may be stopped
	for {
		now := time.Now()
		held := x.Held()
		if now.Sub(last) > ttl {
			fmt.Println("held", held)
			<-x.Done()
			fmt.Println("done", time.Since(now).Microseconds())
			fmt.Println("write", x.Fence())
			return
		}
		last = now
	}
}
