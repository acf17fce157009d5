//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// asCommand in the environment makes the test binary be dlock itself, with more drivers.
const asCommand = "DLOCK_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		os.Exit(m.Run())
	}
	killAfter = 200 * time.Millisecond
	for name, wrap := range testDrivers {
		driver.Register(name, wrap)
	}
	os.Exit(execute(os.Args[1:]))
}

type opener func(*memory.Backend) driver.Backend

func (o opener) Open(string) (driver.Backend, error) { return o(memory.New()), nil }

// testDrivers are memory with a difference.
var testDrivers = map[string]opener{
	"busy": func(b *memory.Backend) driver.Backend { // somebody else has "taken" and keeps it
		if _, err := b.Acquire(context.Background(), driver.Claim{Key: "taken", Token: "other", TTL: time.Hour}); err != nil {
			panic(err)
		}
		return b
	},
	"down":  func(b *memory.Backend) driver.Backend { return down{b} },
	"lossy": func(b *memory.Backend) driver.Backend { return lossy{b} },
	"audit": func(b *memory.Backend) driver.Backend { return audit{b} },
	"plain": func(b *memory.Backend) driver.Backend { return plain{b} },
	"never": func(b *memory.Backend) driver.Backend { return never{b} },
}

// down refuses everything.
type down struct{ driver.Backend }

func (down) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, driver.Permanent(errors.New("no permission"))
}

// lossy loses every lock at its first renewal.
type lossy struct{ driver.Backend }

func (lossy) Renew(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, driver.ErrNotOwner
}

// audit says what it is asked for.
type audit struct{ driver.Backend }

func (a audit) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	fmt.Println("acquire", c.Key, c.TTL)
	return a.Backend.Acquire(ctx, c)
}

func (a audit) Release(ctx context.Context, c driver.Claim) error {
	fmt.Println("release", c.Key)
	return a.Backend.Release(ctx, c)
}

// plain has no fences.
type plain struct{ driver.Backend }

func (p plain) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := p.Backend.Acquire(ctx, c)
	g.Fence = 0
	return g, err
}

// never grants anything, and says when somebody waits for it.
type never struct{ driver.Backend }

func (never) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, driver.ErrHeld
}

func (never) Wait(ctx context.Context, _ driver.Claim) (driver.Grant, error) {
	fmt.Println("waiting")
	<-ctx.Done()
	return driver.Grant{}, errors.Join(ctx.Err(), driver.ErrHeld)
}

// command is dlock with args, not started yet.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// A binary with the race detector sleeps for a second before it exits unless told not to.
	cmd.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0", "DLOCK_DRIVER=", "DLOCK_DSN=", "DLOCK_PREFIX=")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// result is how a command came out.
type result struct {
	out, err string
	code     int
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func TestRunPrintsNothingOfItsOwn(t *testing.T) {
	got := finish(t, command(t, "run", "demo", "--", "echo", "hello"))
	if want := (result{out: "hello\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestChildInheritsStdin(t *testing.T) {
	cmd := command(t, "run", "demo", "--", "cat")
	cmd.Stdin = strings.NewReader("from stdin")
	if got := finish(t, cmd); got.out != "from stdin" {
		t.Errorf("cat under dlock run printed %q", got.out)
	}
}

func TestExitCodeIsTheChilds(t *testing.T) {
	for _, c := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"exit 75", 75},
		{"kill -KILL $$", 128 + 9},
	} {
		got := finish(t, command(t, "run", "demo", "--", "sh", "-c", c.script))
		if want := (result{code: c.want}); got != want {
			t.Errorf("%s: got %+v, want %+v", c.script, got, want)
		}
	}
}

func TestCommandThatCannotRun(t *testing.T) {
	got := finish(t, command(t, "run", "demo", "--", "dlock-no-such-command"))
	if got.code != 127 || !strings.Contains(got.err, "dlock-no-such-command") {
		t.Errorf("a command that does not exist: %+v, want code 127 and its name", got)
	}
	file := t.TempDir() + "/plain-file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := finish(t, command(t, "run", "demo", "--", file)); got.code != 126 {
		t.Errorf("a file that is no program: %+v, want code 126", got)
	}
}

func TestChildFindsKeyAndFence(t *testing.T) {
	show := []string{"sh", "-c", `echo "$DLOCK_KEY ${DLOCK_FENCE-unset}"`}
	got := finish(t, command(t, append([]string{"run", "demo", "--"}, show...)...))
	var key string
	var fence uint64
	if _, err := fmt.Sscan(got.out, &key, &fence); err != nil || key != "demo" || fence == 0 {
		t.Errorf("the child saw %q, want demo and a fence", got.out)
	}

	cmd := command(t, append([]string{"run", "demo", "--driver", "plain", "--"}, show...)...)
	cmd.Env = append(cmd.Env, "DLOCK_FENCE=12345")
	if got := finish(t, cmd); got.out != "demo unset\n" {
		t.Errorf("without fences the child saw %q, want demo unset", got.out)
	}
}

func TestLockIsHeldWhileTheChildRuns(t *testing.T) {
	cmd := command(t, "run", "demo", "--ttl", "30s", "--", "sh", "-c", "echo child; exit 3")
	cmd.Env = append(cmd.Env, "DLOCK_DRIVER=audit", "DLOCK_PREFIX=app:")
	got := finish(t, cmd)
	if want := (result{out: "acquire app:demo 30s\nchild\nrelease app:demo\n", code: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWrongUsageIs64AndSaysWhatIsWanted(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"run", "run wants a key, then --, then a command"},
		{"run demo echo hello", "run wants a key, then --, then a command"},
		{"run -- echo hello", "one key before --, not 0"},
		{"run a b -- echo", "one key before --, not 2"},
		{"run demo --", "a command after --"},
		{"run demo --ttl 0s -- echo", "--ttl is 0s; it must be more than 0"},
		{"run demo --ttl 1ms -- echo", `dlock: lock "demo" (memory): invalid TTL: 1ms; accepted is 10ms to 24h0m0s`},
		{"run demo --ttl soon -- echo", `invalid argument "soon"`},
		{"run demo --wait -1s -- echo", "--wait is -1s"},
		{"run demo --wait 1s --no-wait -- echo", "exclude each other"},
		{"run demo --colour -- echo", "unknown flag: --colour"},
		{"run demo --driver nowhere -- echo", `unknown driver "nowhere"`},
		{"run demo --dsn memory://a?b=c -- echo", `unknown parameter "b"`},
		{"lock demo", `unknown command "lock"`},
		{"drivers all", `unknown command "all"`},
	} {
		got := finish(t, command(t, strings.Fields(c.args)...))
		if got.code != 64 || got.out != "" || !strings.Contains(got.err, c.want) || strings.Contains(got.err, "dlock: dlock:") {
			t.Errorf("dlock %s: %+v, want code 64 and %q on stderr", c.args, got, c.want)
		}
	}
}

func TestEnvironmentNamesTheBackend(t *testing.T) {
	cmd := command(t, "run", "demo", "--", "echo", "hello")
	cmd.Env = append(cmd.Env, "DLOCK_DSN=redis://app:s3cret@host")
	got := finish(t, cmd)
	if got.code != 64 || !strings.Contains(got.err, "memory://") || strings.Contains(got.err, "s3cret") {
		t.Errorf("a DSN from the environment that memory cannot use: %+v, want code 64 and no secret", got)
	}
	cmd = command(t, "run", "demo", "--dsn", "memory://x", "--", "echo", "hello")
	cmd.Env = append(cmd.Env, "DLOCK_DSN=redis://host")
	if got := finish(t, cmd); got.code != 0 {
		t.Errorf("--dsn does not win over DLOCK_DSN: %+v", got)
	}
}

func TestNotAcquiredIs75(t *testing.T) {
	for _, flags := range []string{"--no-wait", "--wait 50ms"} {
		args := strings.Fields("run taken --driver busy " + flags + " -- echo ran")
		got := finish(t, command(t, args...))
		if got.code != 75 || got.out != "" || !strings.Contains(got.err, "taken") {
			t.Errorf("%s: %+v, want code 75, the key on stderr, and nothing run", flags, got)
		}
		args[1] = "free"
		if got := finish(t, command(t, args...)); got.code != 0 || got.out != "ran\n" {
			t.Errorf("%s on a key that is free: %+v, want it to run", flags, got)
		}
	}
}

func TestBackendTroubleIs69(t *testing.T) {
	got := finish(t, command(t, "run", "demo", "--driver", "down", "--", "echo", "ran"))
	if got.code != 69 || got.out != "" || !strings.Contains(got.err, "no permission") {
		t.Errorf("got %+v, want code 69 and the reason", got)
	}
}

// loop is a shell script that runs until a trap ends it, or for ten seconds.
const loop = "echo ready; i=0; while [ $i -lt 500 ]; do sleep 0.02; i=$((i+1)); done"

func TestLossStopsTheChildAndIs76(t *testing.T) {
	for name, trap := range map[string]string{
		"a child that ends at SIGTERM": "trap 'echo term; exit 0' TERM; ",
		"a child that ignores SIGTERM": "trap 'echo term' TERM; ",
	} {
		got := finish(t, command(t, "run", "demo", "--driver", "lossy", "--ttl", "300ms", "--", "sh", "-c", trap+loop))
		if got.code != 76 || !strings.HasPrefix(got.out, "ready\nterm\n") || !strings.Contains(got.err, "ownership lost") {
			t.Errorf("%s: %+v, want code 76 after SIGTERM", name, got)
		}
	}
}

func TestSignalsGoToTheChild(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := command(t, "run", "demo", "--", "sh", "-c", "trap 'exit 5' INT; trap 'exit 6' TERM; "+loop)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		want := map[syscall.Signal]int{syscall.SIGINT: 5, syscall.SIGTERM: 6}[s]
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%v: exit code %d, want the child's %d", s, got, want)
		}
	}
}

func TestSignalEndsTheWait(t *testing.T) {
	cmd := command(t, "run", "demo", "--driver", "never", "--", "echo", "ran")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "waiting\n" {
		t.Fatal(line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, _ := r.ReadString('\n')
	_ = cmd.Wait()
	if got, want := cmd.ProcessState.ExitCode(), 128+15; got != want || rest != "" {
		t.Errorf("exit code %d after %q, want %d and nothing run", got, rest, want)
	}
}

func TestDriversAndVersion(t *testing.T) {
	if got := finish(t, command(t, "drivers")); got.code != 0 || !strings.Contains(got.out, "memory\n") {
		t.Errorf("drivers: %+v, want memory among them", got)
	}
	if got := finish(t, command(t, "version")); got.code != 0 || !strings.HasPrefix(got.out, "dlock ") {
		t.Errorf("version: %+v, want dlock and a version", got)
	}
}
