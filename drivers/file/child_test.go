//go:build linux || darwin

package file_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
	"github.com/dlock-go/dlock/internal/proc"
)

const (
	childTTL = 400 * time.Millisecond
	cycleTTL = 100 * time.Millisecond
	longTTL  = 2 * time.Minute
)

// children are what a process of a test can do with the key "k" in a directory. Each writes what happens, word by word, to its standard output.
var children = map[string]func(dir string){
	"hold":       func(dir string) { childHold(dir, childTTL) },
	"hold lease": childHoldLease,
	"wait":       func(dir string) { childWait(dir, childTTL) },
	"wait long":  func(dir string) { childWait(dir, longTTL) },
	"cycle":      childCycle,
	"attack":     childAttack,
	"use":        childUse,

	"stop within":     func(dir string) { childStop(dir, false) },
	"stop in renewal": func(dir string) { childStop(dir, true) },
}

func childBackend(dir string) driver.Waiter {
	b, err := filedriver.New(dir)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	return b.(driver.Waiter)
}

// childHold gets the key and does nothing more. It tells by the machine's clock when its TTL began to count.
func childHold(dir string, ttl time.Duration) {
	g, err := childBackend(dir).Wait(context.Background(), claim("k", "child", ttl), func() {})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("granted", filedriver.Monotonic()-int64(time.Since(g.Start)), g.Fence)
	select {}
}

// childHoldLease notices that it was stopped for longer than the TTL, and tells what it then sees first.
func childHoldLease(dir string) {
	l, err := dlock.New(childBackend(dir), &dlock.Config{DefaultTTL: childTTL})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	x, err := dlock.Acquire(context.Background(), l, "k")
	if err != nil {
		fmt.Println("error", err)
		return
	}
	last := time.Now()
	fmt.Println("granted", x.Fence()) // from here on the process may be stopped
	for {
		now := time.Now()
		held := x.Held()
		if now.Sub(last) > childTTL {
			fmt.Println("held", held)
			select {}
		}
		last = now
	}
}

func childWait(dir string, ttl time.Duration) {
	queued := sync.OnceFunc(func() { fmt.Println("queued") })
	g, err := childBackend(dir).Wait(context.Background(), claim("k", "child", ttl), queued)
	fmt.Println("granted", g.Fence, err)
	select {}
}

// childStop stops itself within its first Acquire, or within a renewal.
func childStop(dir string, holds bool) {
	b, c := childBackend(dir), claim("k", "child", longTTL)
	if holds {
		if _, err := b.Acquire(context.Background(), c); err != nil {
			fmt.Println("error", err)
			return
		}
	}
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	filedriver.BeforeWrite(sync.OnceFunc(func() {
		fmt.Println("about to stop")
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-goesOn // another thread may be stopped first
	}))
	_, err := b.Acquire(context.Background(), c)
	fmt.Println("granted", err)
	select {}
}

// childUse does what a process does that knows nothing of the other files in the directory.
func childUse(dir string) {
	b, c := childBackend(dir), claim("mine", "child", longTTL)
	_, err := b.Acquire(context.Background(), c)
	err = errors.Join(err, filedriver.Sweep(b), b.Release(context.Background(), c))
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("done")
}

// childCycle locks and unlocks without end, and notes every hold in a log that all processes share: "got" with its fence and until when it lasts, and "end".
func childCycle(dir string) {
	log, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	b := childBackend(dir)
	fmt.Println("ready")
	for i := 0; ; i++ {
		c := claim("k", "child", cycleTTL)
		g, err := b.Wait(context.Background(), c, func() {})
		if err != nil {
			_, _ = fmt.Fprintln(log, "error", os.Getpid(), err)
			return
		}
		now := filedriver.Monotonic()
		until := now + int64(time.Until(g.Start.Add(g.TTL)))
		_, _ = fmt.Fprintln(log, "got", os.Getpid(), g.Fence, now, until)
		time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
		_, _ = fmt.Fprintln(log, "end", os.Getpid(), g.Fence, filedriver.Monotonic(), 0)
		if err := b.Release(context.Background(), c); err != nil && filedriver.Monotonic() < until {
			_, _ = fmt.Fprintln(log, "error", os.Getpid(), err)
			return
		}
	}
}

// child is a process of its own that runs this test binary in a role.
type child struct {
	cmd   *exec.Cmd
	lines chan string
}

func startChild(t *testing.T, role, dir string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0], dir), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), asChild+"="+role, "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { c.kill(); <-ended })
	return c
}

// awaitStop waits until a process that stops itself is stopped.
func (c *child) awaitStop(t *testing.T) {
	t.Helper()
	for {
		if _, err := syscall.Wait4(c.cmd.Process.Pid, nil, syscall.WUNTRACED, nil); err == nil {
			return
		} else if !errors.Is(err, syscall.EINTR) {
			t.Fatal(err)
		}
	}
}

func (c *child) stop(t *testing.T) {
	t.Helper()
	if err := proc.Stop(c.cmd.Process); err != nil {
		t.Fatal(err)
	}
}

// stopOutside stops the process, though not while it works on the file of the key, which it would keep locked.
func (c *child) stopOutside(t *testing.T, b driver.Backend) {
	t.Helper()
	for range 20 {
		c.stop(t)
		// Break needs the file, and breaks nothing: no hold has this fence.
		if err := b.(driver.Breaker).Break(soon(t, time.Second), "k", 1); errors.Is(err, driver.ErrNotOwner) {
			return
		}
		c.goOn(t)
	}
	t.Fatal("the process keeps the file of the key locked")
}

func (c *child) goOn(t *testing.T) {
	t.Helper()
	if err := proc.Continue(c.cmd.Process); err != nil {
		t.Fatal(err)
	}
}

// kill returns when the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// says returns what the child writes next, which must begin with word.
func (c *child) says(t *testing.T, word string, rest ...any) {
	t.Helper()
	select {
	case line := <-c.lines:
		after, ok := strings.CutPrefix(line, word)
		if _, err := fmt.Sscan(after, rest...); !ok || len(rest) > 0 && err != nil {
			t.Fatalf("the child wrote %q, want %q", line, word)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("the child did not write %q", word)
	}
}
