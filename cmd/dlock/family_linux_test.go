package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/internal/faulttest"
)

// stubborn is a script whose process, child without an environment and child in a session of its own ignore SIGTERM. It prints their three ids.
const stubborn = `trap "" TERM; env -i sleep 60 & a=$!; setsid sleep 60 & echo ids $$ $a $!; exec sleep 60`

// idsIn reads what stubborn prints.
func idsIn(t *testing.T, line string) []int {
	t.Helper()
	pids := make([]int, 3)
	if _, err := fmt.Sscanf(line, "ids %d %d %d", &pids[0], &pids[1], &pids[2]); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	t.Cleanup(func() {
		for _, pid := range running(pids) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pids
}

// running reports which of the processes run. One that ended and was not waited for, as in a container without an init, does not.
func running(pids []int) (left []int) {
	for _, pid := range pids {
		if s := state(pid); s != 'Z' && s != 'X' && (s != 0 || syscall.Kill(pid, 0) == nil) {
			left = append(left, pid)
		}
	}
	return left
}

// state is the letter that the system has for what a process does; 0: it is not there.
func state(pid int) byte {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, after, ok := strings.Cut(string(stat), ") "); ok {
		return after[0]
	}
	return 0
}

// losing runs a script under a lock that is lost soon after the script has done what lose says.
func losing(t *testing.T, killAfter, script string) *exec.Cmd {
	t.Helper()
	cmd := command(t, "run", "demo", "--driver", "lossy", "--ttl", "3s", "--kill-after", killAfter, "--", "sh", "-c", script)
	return with(cmd, loseWhen+"="+t.TempDir()+"/now")
}

const lose = `: >"$` + loseWhen + `"; `

func TestLossStopsTheChildAndIs76(t *testing.T) {
	for name, trap := range map[string]string{
		"a child that ends at SIGTERM": "trap 'echo term; exit 0' TERM; ",
		"a child that ignores SIGTERM": "trap 'echo term' TERM; ",
	} {
		got := finish(t, losing(t, "2s", trap+"echo ready; "+lose+forever))
		if got.code != 76 || !strings.HasPrefix(got.out, "ready\nterm\n") || !strings.Contains(got.err, "ownership lost") {
			t.Errorf("%s: %+v, want code 76 after SIGTERM", name, got)
		}
	}
}

// A loss ends the command although nobody reads what dlock says about it, or can.
func TestALossDoesNotWaitForStderr(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, read, write *os.File){
		"full": func(t *testing.T, _, write *os.File) {
			if err := write.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := write.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		},
		"closed": func(_ *testing.T, read, _ *os.File) { _ = read.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close() //nolint:errcheck // nothing was written that matters
			cmd := losing(t, "20s", "exec 2>/dev/null; trap 'echo term; exit 0' TERM; echo ready; "+lose+forever)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			prepare(t, read, write)
			cmd.Stderr = write
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = write.Close()
			lines := bufio.NewScanner(out)
			for _, want := range []string{"ready", "term"} {
				if !lines.Scan() || lines.Text() != want {
					t.Errorf("stdout has %q, want %q", lines.Text(), want)
				}
			}
			if name == "full" {
				go func() { _, _ = io.Copy(io.Discard, read) }() // what it says at its end it says to somebody
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 76 {
				t.Errorf("exit code %d, want 76", code)
			}
		})
	}
}

func TestABreakFromOutsideEndsEverythingThatTheChildStarted(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		p := begin(t, with(command(t, "run", "demo", "--ttl", "3s", "--kill-after", "200ms", "--", "sh", "-c", stubborn), env...))
		pids := idsIn(t, p.line())
		if got := finish(t, with(command(t, "break", "demo", "--yes"), env...)); got.code != 0 {
			t.Fatalf("break: %+v", got)
		}
		if got := p.end(); got != 76 {
			t.Errorf("exit code %d, want 76", got)
		}
		if left := running(pids); left != nil {
			t.Errorf("of the processes %v there still run %v when dlock has ended", pids, left)
		}
	})
}

func TestWhatOutlivesTheCommandAfterALossIsKilled(t *testing.T) {
	script := `trap "exit 0" TERM; (trap "" TERM; exec sleep 60) & echo ids $! $! $!; ` + lose + `wait`
	p := begin(t, losing(t, "300ms", script))
	pids := idsIn(t, p.line())
	if code := p.end(); code != 76 || running(pids) != nil {
		t.Errorf("exit code %d, want 76; what the command left runs on: %v", code, running(pids))
	}
}

func TestWhatACommandLeavesRunningMayFinishItsWorkAfterALoss(t *testing.T) {
	// The command ends at SIGTERM; its child takes a moment to clean up.
	script := `trap 'exit 0' TERM; sh -c 'trap "sleep 0.3; echo cleaned; exit" TERM; echo ready; ` + lose + forever + `' & wait`
	got := finish(t, losing(t, "20s", script))
	if got.code != 76 || got.out != "ready\ncleaned\n" {
		t.Errorf("%+v, want code 76 after the clean-up", got)
	}
}

func TestAKilledDlockTakesEverythingWithIt(t *testing.T) {
	p := begin(t, command(t, "run", "demo", "--", "sh", "-c", `trap told=1 USR1; echo ready; while [ -z "$told" ]; do sleep 0.05; done; `+stubborn))
	p.expect("ready")
	p.signal(syscall.SIGUSR1) // who passes it on has told the guard about the command
	pids := idsIn(t, p.line())
	p.signal(syscall.SIGKILL)
	eventually(t, "all that the command started has ended", func() bool { return running(pids) == nil })
}

func TestNoMomentIsWithoutAGuard(t *testing.T) {
	for range 5 {
		p := begin(t, command(t, "run", "demo", "--", "sh", "-c", strings.ReplaceAll(stubborn, "env -i ", "")))
		pids := idsIn(t, p.line())
		p.signal(syscall.SIGKILL)
		eventually(t, "all that the command started has ended", func() bool { return running(pids) == nil })
	}
}

func TestTheCommandIsKilledWithDlockEvenWithoutItsGuard(t *testing.T) {
	p := begin(t, command(t, "run", "demo", "--", "sh", "-c", `echo "$DLOCK_RUN $$"; exec sleep 60`))
	mark, id, _ := strings.Cut(p.line(), " ")
	child, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is a guard", func() bool { return withArgument(mark) != 0 })
	if err := syscall.Kill(withArgument(mark), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	eventually(t, "the command has ended", func() bool { return running([]int{child}) == nil })
}

func TestTheNextRunStartsSoonAfterItsHolderWasKilled(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		const ttl = 5 * time.Second
		p := begin(t, with(command(t, "run", "demo", "--ttl", ttl.String(), "--", "sh", "-c", loop), env...))
		p.expect("ready")
		next := begin(t, with(command(t, "run", "demo", "--", "echo", "mine"), env...))
		eventually(t, "the next one waits", func() bool {
			return len(inspected(t, "demo", env).Waiters) == 1
		})
		late := faulttest.Lateness(t)
		p.signal(syscall.SIGKILL)
		killed := time.Now()
		next.expect("mine")
		if took, busy := time.Since(killed), late(); took > ttl+time.Second+busy {
			t.Errorf("the next run began %v after its holder was killed, want at most the TTL of %v and a second, and %v for a busy machine", took, ttl, busy)
		}
	})
}

func TestSignalsGoToTheChild(t *testing.T) {
	for s, want := range map[syscall.Signal]int{
		syscall.SIGINT: 5, syscall.SIGTERM: 6, syscall.SIGHUP: 7, syscall.SIGQUIT: 8, syscall.SIGUSR1: 9, syscall.SIGUSR2: 10,
	} {
		t.Run(s.String(), func(t *testing.T) {
			if signal.Ignored(s) {
				t.Skip("the test was started to ignore it, as by nohup, and so are its children")
			}
			p := begin(t, command(t, "run", "demo", "--", "sh", "-c",
				"trap 'exit 5' INT; trap 'exit 6' TERM; trap 'exit 7' HUP; trap 'exit 8' QUIT; trap 'exit 9' USR1; trap 'exit 10' USR2; "+loop))
			p.expect("ready")
			p.signal(s)
			if got := p.end(); got != want {
				t.Errorf("exit code %d, want the child's %d", got, want)
			}
		})
	}
}

func TestASignalReachesACommandUnderTwoLocksOnce(t *testing.T) {
	script := `trap 'echo got' TERM; echo ready; i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i+1)); done; echo over`
	p := begin(t, command(t, "run", "outer", "--", os.Args[0], "run", "inner", "--", "sh", "-c", script))
	p.expect("ready")
	p.signal(syscall.SIGTERM)
	p.expect("got")
	p.expect("over")
	if got := p.end(); got != 0 {
		t.Errorf("exit code %d, want 0", got)
	}
}

func TestSIGTERMReachesWhatTheChildStarted(t *testing.T) {
	// A shell that waits for a command does not hand SIGTERM on.
	p := begin(t, command(t, "run", "demo", "--", "sh", "-c", `sh -c 'trap "echo inner; exit" TERM; `+loop+`'; echo not reached`))
	p.expect("ready")
	p.signal(syscall.SIGTERM)
	p.expect("inner")
	if got := p.end(); got != 128+15 {
		t.Errorf("exit code %d, want 143", got)
	}
}

func TestWhatDlockIsToldToIgnoreItsChildIgnores(t *testing.T) {
	cmd := command(t)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `trap '' HUP; exec "$0" "$@"`, cmd.Path, "run", "demo", "--", "sh", "-c", "kill -HUP $$ $PPID; echo here"}
	if got := finish(t, cmd); got.code != 0 || got.out != "here\n" {
		t.Errorf("under nohup: %+v, want SIGHUP to do nothing", got)
	}
}

func TestSignalEndsTheWait(t *testing.T) {
	p := begin(t, command(t, "run", "demo", "--driver", "never", "--", "echo", "ran"))
	p.expect("waiting")
	p.signal(syscall.SIGTERM)
	rest, _ := p.out.ReadString('\n')
	if got, want := p.end(), 128+15; got != want || rest != "" {
		t.Errorf("exit code %d after %q, want %d and nothing run", got, rest, want)
	}
}

func TestNothingIsLeftOfARunThatIsOver(t *testing.T) {
	cmd := command(t, "run", "demo", "--", "sh", "-c", `echo "$DLOCK_RUN"; cat`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := begin(t, cmd)
	// Orphans come to us, as they come to process 1.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) //nolint:errcheck // what could be set can be reset
	mark := p.line()
	eventually(t, "there is a guard", func() bool { return withArgument(mark) != 0 })
	guard := withArgument(mark)
	_ = in.Close()
	if code := p.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if err := syscall.Kill(guard, 0); err != syscall.ESRCH {
		t.Errorf("the guard is there when dlock has ended, if only as a zombie: %v", err)
	}
}

// withArgument returns the id of a process that has arg on its command line, or 0.
func withArgument(arg string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), arg+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	return 0
}
