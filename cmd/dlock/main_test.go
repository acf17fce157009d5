//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// asCommand in the environment makes the test binary be dlock itself, with more drivers.
const asCommand = "DLOCK_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		goleak.VerifyTestMain(m)
	}
	if len(os.Args) > 1 && os.Args[1] == countArg {
		countSignals()
	}
	for name, wrap := range testDrivers {
		driver.Register(name, wrap)
	}
	os.Exit(execute(os.Args[1:]))
}

// command is dlock with args, not started yet: without a terminal, on the memory driver unless args or a later variable say otherwise.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(environment(), "DLOCK_DRIVER=memory")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// environment is ours without what could configure dlock, for a test binary that is to be dlock.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DLOCK_") {
			env = append(env, v)
		}
	}
	// A binary with the race detector sleeps for a second before it exits unless told not to.
	return append(env, asCommand+"=1", "GORACE=atexit_sleep_ms=0")
}

// result is how a command came out.
type result struct {
	out, err string
	code     int
}

func finish(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// process is a command that runs.
type process struct {
	*exec.Cmd
	t    testing.TB
	out  *bufio.Reader
	errs buffer
}

// buffer can be read while it is written to.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// begin starts cmd.
func begin(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd, t: t}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out, cmd.Stderr = bufio.NewReader(out), &p.errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

// line returns the next line of its stdout.
func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("stdout ended with %q, %v; stderr: %s", line, err, p.errs.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// expect fails the test unless the next line of stdout is want.
func (p *process) expect(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("stdout has %q, want %q; stderr: %s", got, want, p.errs.String())
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for its end and returns the exit code.
func (p *process) end() int {
	_ = p.Wait()
	return p.ProcessState.ExitCode()
}

// loop is a shell script that says ready and runs until a trap ends it, or for a minute.
const (
	loop    = "echo ready; " + forever
	forever = "i=0; while [ $i -lt 3000 ]; do sleep 0.02; i=$((i+1)); done"
)

// stores are the ways in which two processes can share locks: for each, the variables that name it.
func stores(t *testing.T, f func(t *testing.T, env []string)) {
	for name, open := range map[string]func(*testing.T) []string{"file": fileStore, "redis": redisStore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			f(t, open(t))
		})
	}
}

func fileStore(t *testing.T) []string {
	return []string{"DLOCK_DRIVER=file", "DLOCK_DSN=file://" + t.TempDir() + "/locks"}
}

func redisStore(t *testing.T) []string {
	return []string{"DLOCK_DRIVER=redis", "DLOCK_DSN=redis://" + redistest.Start(t).Addr}
}

// with is cmd in a larger environment.
func with(cmd *exec.Cmd, env ...string) *exec.Cmd {
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	faulttest.Eventually(t, 20*time.Second, what, cond)
}
