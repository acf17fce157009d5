package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a program on it.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	side *os.File // the keyboard and the screen

	mu     sync.Mutex
	screen strings.Builder // everything that was written
}

// onTerminal starts cmd on a terminal of its own.
func onTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	side, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	other := openOther(t, side)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = other, other, other
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = append(cmd.Env, "TERM=xterm")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = other.Close()
	x := &terminal{t: t, cmd: cmd, side: side}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := side.Read(buf)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.screen.Write(buf[:n])
			x.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = side.Close()
		<-read
	})
	return x
}

// openOther opens the end of the terminal that programs are on.
func openOther(t *testing.T, side *os.File) *os.File {
	t.Helper()
	raw, err := side.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number uint32
	var failed [3]error
	_ = raw.Control(func(fd uintptr) {
		number, failed[0] = unix.IoctlGetUint32(int(fd), unix.TIOCGPTN)
		failed[1] = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		failed[2] = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 100})
	})
	for _, err := range failed {
		if err != nil {
			t.Fatal(err)
		}
	}
	other, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.screen.String()
}

// forget empties the record of the screen.
func (x *terminal) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.screen.Reset()
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := x.side.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// sees waits until something that matches pattern was written, and returns the match.
func (x *terminal) sees(pattern string) string {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if found := re.FindString(x.text()); found != "" {
			return found
		}
		if time.Now().After(end) {
			x.t.Fatalf("%q was never on the screen, which has had %q", pattern, x.text())
		}
	}
}

func TestWhileItWaitsATerminalShowsTheHolder(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		release := holder(t, "demo", env)
		x := onTerminal(t, with(command(t, "run", "demo", "--", "echo", "mine"), env...))
		x.sees(`\r\x1b\[Kdlock: waiting for demo since 0s: held by somebody else for [0-9.]+m?s`)
		x.sees(`\r\x1b\[Kdlock: waiting for demo since [12](\.\d)?s: held by somebody else for [0-9.]+s, 1 waiting`)
		release()
		x.sees(`mine\r\n`)
		x.sees(`, 1 waiting(mine\r\n)?\r\x1b\[K(mine\r\n)?$`) // the line goes; for that the command does not wait long
		if err := x.cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestATerminalThatIsHeldWithCtrlSDoesNotKeepTheCommandFromRunning(t *testing.T) {
	env := fileStore(t)
	release := holder(t, "demo", env)
	ran := t.TempDir() + "/ran"
	x := onTerminal(t, with(command(t, "run", "demo", "--", "touch", ran), env...))
	x.sees(`waiting for demo since 0s`)
	x.press("\x13")
	time.Sleep(1200 * time.Millisecond) // so that the line is to be written again, which takes a second
	release()
	eventually(t, "the command has run", func() bool { _, err := os.Stat(ran); return err == nil })
	x.press("\x11")
	if err := x.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWithoutATerminalNothingIsSaidWhileItWaits(t *testing.T) {
	env := fileStore(t)
	release := holder(t, "demo", env)
	p := begin(t, with(command(t, "run", "demo", "--", "echo", "mine"), append(env, "TERM=xterm")...))
	eventually(t, "it waits", func() bool { return len(inspected(t, "demo", env).Waiters) == 1 })
	release()
	p.expect("mine")
	if code := p.end(); code != 0 || p.errs.String() != "" {
		t.Errorf("exit code %d, stderr %q; want 0 and nothing", code, p.errs.String())
	}
}

// shell is an interactive shell on a terminal in which dlock is a function.
func shell(t *testing.T, env []string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	cmd := command(t)
	cmd.Path, cmd.Args = "/bin/bash", []string{"bash", "--norc", "--noprofile", "-i"}
	x := onTerminal(t, with(cmd, append(env, "PS1=$ ", "HISTFILE=", "dlock="+os.Args[0])...))
	x.sees(`\$ $`)
	return x
}

func TestTheCommandReadsTheTerminal(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("$dlock run demo -- sh -c 'read a; echo got:$a'; echo code:$?\n")
	x.press("hello\n")
	x.sees(`got:hello\r\ncode:0`)
}

func TestCtrlCEndsTheCommandAndTheLoopAroundIt(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("for i in 1 2; do $dlock run demo -- sh -c 'echo run:$0; exec sleep 60' $i; done; echo loop ended\n")
	x.sees("run:1\r\n")
	x.press("\x03")
	x.sees(`\^C(?s:.*)\$ $`)
	x.press("echo code:$?\n")
	x.sees(`code:130\r\n`)
	if strings.Contains(x.text(), "run:2\r\n") || strings.Contains(x.text(), "\nloop ended") {
		t.Errorf("the loop went on: %q", x.text())
	}
}

func TestCtrlCReachesTheCommandOnce(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press(`$dlock run demo -- sh -c 'trap "n=x\$n; echo int:\$n" INT; trap "echo usr" USR1; sleep 60 & echo ready:$PPID; ` +
		`while [ "$n" != xx ]; do wait; done; kill $!; exit 3'; echo code:$?` + "\n")
	var dlock int
	if _, err := fmt.Sscanf(x.sees(`ready:\d+\r\n`), "ready:%d", &dlock); err != nil {
		t.Fatal(err)
	}
	x.press("\x03")
	x.sees("int:x\r\n")
	if err := syscall.Kill(dlock, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	x.sees("usr\r\n") // so what dlock does about the first signal is done
	if strings.Contains(x.text(), "int:xx\r\n") {
		t.Errorf("one Ctrl-C came twice: %q", x.text())
	}
	x.press("\x03")
	x.sees("int:xx\r\n")
	x.sees(`code:3\r\n`)
}

func TestCtrlCEndsTheWait(t *testing.T) {
	env := fileStore(t)
	release := holder(t, "demo", env)
	x := shell(t, env)
	x.press("$dlock run demo -- echo ran; echo code:$?\n")
	x.sees("waiting for demo")
	x.press("\x03")
	x.sees(`\^C(?s:.*)\$ $`)
	x.press("echo code:$?\n")
	x.sees(`code:130\r\n`)
	release()
}

func TestCtrlZStopsTheJobAndFgGoesOn(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("$dlock run demo --ttl 1m -- sh -c 'echo ready:$$; read a; echo got:$a'; echo code:$?\n")
	var child int
	if _, err := fmt.Sscanf(x.sees(`ready:\d+\r\n`), "ready:%d", &child); err != nil {
		t.Fatal(err)
	}
	x.press("\x1a")
	x.sees(`Stopped(?s:.*)\$ $`)
	eventually(t, "the command is stopped", func() bool { return state(child) == 'T' }) // until then it would read what is typed
	x.forget()
	x.press("jobs\n")
	x.sees(`\[1\]\+\s+Stopped(?s:.*)\$ $`)
	x.forget()
	x.press("fg\n")
	x.sees(`run demo`)
	x.press("hello\n")
	x.sees("got:hello\r\n")
}

func TestAPagerAfterTheCommandHasTheKeyboard(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("$dlock run demo -- sh -c 'echo page; sleep 0.5' | sh -c 'cat; read a </dev/tty; echo got:$a'\n")
	x.sees("page\r\n")
	x.press("hello\n")
	x.sees("got:hello\r\n")
}

func TestOnATerminalALossEndsEverythingButTheNeighbours(t *testing.T) {
	env := fileStore(t)
	x := shell(t, env)
	x.press("$dlock run demo --ttl 3s --kill-after 200ms -- sh -c '" + stubborn + "' | (trap '' TERM; cat; echo the neighbour lives)\n")
	pids := idsIn(t, x.sees(`ids \d+ \d+ \d+`))
	if got := finish(t, with(command(t, "break", "demo", "--yes"), env...)); got.code != 0 {
		t.Fatalf("break: %+v", got)
	}
	x.sees("\nthe neighbour lives\r\n")
	eventually(t, "all that the command started has ended", func() bool { return running(pids) == nil })
}

func TestALossEndsACommandWithoutAnEnvironment(t *testing.T) {
	x := onTerminal(t, command(t, "run", "demo", "--driver", "lossy", "--ttl", "3s", "--kill-after", "200ms", "--", "env", "-i", "sleep", "600"))
	if err := x.cmd.Wait(); x.cmd.ProcessState.ExitCode() != 76 {
		t.Errorf("%v, want 76", err)
	}
}

func TestOnATerminalAKilledDlockTakesEverythingWithIt(t *testing.T) {
	env := fileStore(t)
	x := shell(t, env)
	// Without its parent, which the kernel kills, and in a group with others nothing tells whose a process without an environment is.
	x.press("$dlock run demo -- sh -c '" + strings.ReplaceAll(stubborn, "env -i ", "") + "' &\n")
	pids := idsIn(t, x.sees(`ids \d+ \d+ \d+`))
	x.press("kill -9 $!\n")
	eventually(t, "all that the command started has ended", func() bool { return running(pids) == nil })
}
