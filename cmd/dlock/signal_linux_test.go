package main

import (
	cryptorand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// sender sends a signal to a dlock run, or has it sent, and says how often the program must see
// which.
type sender struct {
	name string
	line string // in front of the command line
	sent syscall.Signal
	send func(t *testing.T, keyboard io.Writer, outer int)
}

func toProcess(s syscall.Signal) func(*testing.T, io.Writer, int) {
	return func(t *testing.T, _ io.Writer, outer int) { sendTo(t, outer, s) }
}

func toGroup(s syscall.Signal) func(*testing.T, io.Writer, int) {
	return func(t *testing.T, _ io.Writer, outer int) {
		group, err := unix.Getpgid(outer)
		if err != nil {
			t.Fatal(err)
		}
		sendTo(t, -group, s)
	}
}

// toTimeout makes timeout(1), which outer runs under, believe that its time has come. It sends to
// its child and then to its whole group.
func toTimeout(t *testing.T, _ io.Writer, outer int) {
	p, ok := processIn("/proc/" + strconv.Itoa(outer))
	if !ok {
		t.Fatal("dlock is gone")
	}
	sendTo(t, p.parent, syscall.SIGALRM)
}

func sendTo(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

func pressCtrlC(t *testing.T, keyboard io.Writer, _ int) {
	if _, err := keyboard.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
}

var senders = []sender{
	{"kill", "", syscall.SIGTERM, toProcess(syscall.SIGTERM)},
	{"kill -INT", "", syscall.SIGINT, toProcess(syscall.SIGINT)},
	{"kill of the group", "", syscall.SIGTERM, toGroup(syscall.SIGTERM)},
	{"kill -HUP of the group", "", syscall.SIGHUP, toGroup(syscall.SIGHUP)},
	{"timeout", "timeout 1m ", syscall.SIGTERM, toTimeout},
	{"timeout -s INT", "timeout -s INT 1m ", syscall.SIGINT, toTimeout},
}

// under are the commands that the program runs under.
var under = map[string]string{
	"one lock":  "$dlock run a -- ",
	"two locks": "$dlock run a -- $dlock run b -- ",
}

func TestOnATerminalASignalReachesTheProgramOnce(t *testing.T) {
	for locks, runs := range under {
		for _, s := range append(senders, sender{"Ctrl-C", "", syscall.SIGINT, pressCtrlC}) {
			t.Run(s.name+" under "+locks, func(t *testing.T) {
				t.Parallel() // they mostly wait
				unlessIgnored(t, s.sent)
				x := shell(t, fileStore(t))
				x.press(s.line + runs + "$dlock " + countArg + "\n")
				program := idIn(t, x.sees(`counting \d+\r\n`))
				s.send(t, x.side, outermost(t, program))
				x.sees(fmt.Sprintf(`got %d\r\n`, s.sent))
				// These are behind whatever else is under way.
				sendTo(t, outermost(t, program), syscall.SIGUSR1)
				x.sees(fmt.Sprintf(`got %d\r\n`, syscall.SIGUSR1))
				sendTo(t, outermost(t, program), syscall.SIGUSR2)
				onceEach(t, x.sees(`total .*\]\r\n`), s.sent)
			})
		}
	}
}

func TestWithoutATerminalASignalReachesTheProgramOnce(t *testing.T) {
	for locks, runs := range under {
		for _, s := range senders {
			t.Run(s.name+" under "+locks, func(t *testing.T) {
				t.Parallel() // they mostly wait
				unlessIgnored(t, s.sent)
				cmd := with(command(t), append(fileStore(t), "dlock="+os.Args[0])...)
				cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "exec " + s.line + runs + "$dlock " + countArg}
				p := begin(t, cmd)
				program := idIn(t, p.line())
				s.send(t, nil, outermost(t, program))
				p.expect(fmt.Sprintf("got %d", s.sent))
				sendTo(t, outermost(t, program), syscall.SIGUSR1)
				p.expect(fmt.Sprintf("got %d", syscall.SIGUSR1))
				sendTo(t, outermost(t, program), syscall.SIGUSR2)
				p.expect(fmt.Sprintf("got %d", syscall.SIGUSR2))
				onceEach(t, p.line(), s.sent)
			})
		}
	}
}

func unlessIgnored(t *testing.T, s syscall.Signal) {
	t.Helper()
	if signal.Ignored(s) {
		t.Skip("the test was started to ignore it, as by nohup, and so are its children")
	}
}

func idIn(t *testing.T, line string) (pid int) {
	t.Helper()
	if _, err := fmt.Sscanf(line, "counting %d", &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return pid
}

// outermost is the highest dlock run above program.
func outermost(t *testing.T, program int) int {
	t.Helper()
	found := 0
	for pid := program; pid > 1; {
		p, ok := processIn("/proc/" + strconv.Itoa(pid))
		if !ok {
			break
		}
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(p.parent) + "/cmdline")
		if args := strings.Split(string(line), "\x00"); args[0] == os.Args[0] && len(args) > 1 && args[1] == "run" {
			found = p.parent
		}
		pid = p.parent
	}
	if found == 0 {
		t.Fatal("the program is not below a dlock run")
	}
	return found
}

// onceEach checks what the program says about the signal and those that the test sent behind it.
func onceEach(t *testing.T, line string, sent syscall.Signal) {
	t.Helper()
	want := "total " + fmt.Sprint(map[int]int{int(sent): 1, int(syscall.SIGUSR1): 1, int(syscall.SIGUSR2): 1})
	if got := strings.TrimSpace(line); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAGroupsSignalReachesWhatHasLeftTheGroup(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("$dlock run a -- sh -c 'trap : HUP; setsid $dlock " + countArg + " & wait; wait'\n")
	program := idIn(t, x.sees(`counting \d+\r\n`))
	toGroup(syscall.SIGHUP)(t, nil, outermost(t, program))
	x.sees(fmt.Sprintf(`got %d\r\n`, syscall.SIGHUP))
	sendTo(t, program, syscall.SIGUSR2)
	x.sees(fmt.Sprintf(`total map\[%d:1 %d:1\]`, syscall.SIGHUP, syscall.SIGUSR2))
}

func TestWithoutItsWitnessASignalStillReachesTheProgram(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("$dlock run a -- $dlock " + countArg + "\n")
	program := idIn(t, x.sees(`counting \d+\r\n`))
	dlock := outermost(t, program)
	sendTo(t, witnessOf(t, dlock), syscall.SIGKILL)
	sendTo(t, dlock, syscall.SIGTERM)
	x.sees(fmt.Sprintf(`got %d\r\n`, syscall.SIGTERM))
	x.press("\x03")
	x.sees(fmt.Sprintf(`got %d\r\n`, syscall.SIGINT))
	sendTo(t, dlock, syscall.SIGUSR2)
	x.sees(fmt.Sprintf(`total map\[%d:1 %d:1 %d:1\]`, syscall.SIGINT, syscall.SIGUSR2, syscall.SIGTERM))
}

// A program that was not there yet when the group was sent a signal has to get it, too.
func TestAGroupsSignalIsPassedToAProgramThatDoesNotCatchIt(t *testing.T) {
	for _, c := range []struct {
		script string
		want   string
	}{
		{"exec sleep 60", "signal: terminated"},
		{"trap 'echo twice' TERM; echo ready; cat", "exit status 0"},
	} {
		cmd := command(t)
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", c.script}
		cmd.SysProcAttr = nil // in our group
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p := begin(t, cmd)
		if strings.Contains(c.script, "ready") {
			p.expect("ready")
		}
		family{pid: p.Process.Pid, child: p.Process, mark: "." + cryptorand.Text()}.pass(syscall.SIGTERM, true)
		_ = in.Close()
		if rest, _ := io.ReadAll(p.out); len(rest) != 0 {
			t.Errorf("%s: it said %s", c.script, rest)
		}
		_ = p.Wait()
		if got := p.ProcessState.String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.script, got, c.want)
		}
	}
}

// witnessOf is the process that sees what the group of a dlock run is sent.
func witnessOf(t *testing.T, dlock int) int {
	t.Helper()
	for _, p := range processes() {
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/cmdline")
		if p.parent == dlock && strings.HasSuffix(string(line), "\x00witness\x00") {
			return p.pid
		}
	}
	t.Fatal("there is no witness")
	return 0
}

// Whatever dlock is about to do: it has not run the program yet, or the program gets the signal.
func TestASignalDuringTheStartIsNotLost(t *testing.T) {
	unlessIgnored(t, syscall.SIGINT)
	for range 20 {
		delay := rand.N(30 * time.Millisecond)
		x := onTerminal(t, command(t, "run", "demo", "--", "sleep", "60"))
		time.Sleep(delay)
		x.press("\x03")
		_ = x.cmd.Wait()
		if s, ok := x.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGINT {
			t.Fatalf("Ctrl-C after %v: %v, want it ended by that", delay, x.cmd.ProcessState)
		}
		p := begin(t, command(t, "run", "demo", "--", "sleep", "60"))
		time.Sleep(delay)
		p.signal(syscall.SIGTERM)
		if code := p.end(); code != 128+15 && !strings.HasPrefix(p.ProcessState.String(), "signal: terminated") {
			t.Fatalf("SIGTERM after %v: %v, want it ended by that", delay, p.ProcessState)
		}
	}
}

func TestNoWitnessOutlivesAKilledDlock(t *testing.T) {
	x := shell(t, fileStore(t))
	x.press("$dlock run a -- $dlock " + countArg + "\n")
	dlock := outermost(t, idIn(t, x.sees(`counting \d+\r\n`)))
	witness := witnessOf(t, dlock)
	sendTo(t, dlock, syscall.SIGKILL)
	eventually(t, "the witness has ended", func() bool { return running([]int{witness}) == nil })
}

// wiretap records what a relay passes on, and plays its witness.
type wiretap struct {
	relay
	sent []syscall.Signal // to the group, not yet told
	got  []string
}

func newWiretap() *wiretap {
	w := &wiretap{}
	w.pass = func(s syscall.Signal, toGroup bool) {
		if !toGroup {
			w.got = append(w.got, s.String())
		}
	}
	w.ask = func() (came []syscall.Signal, ok bool) {
		came, w.sent = w.sent, nil
		return came, true
	}
	return w
}

// run does what dlock's loop does for d.
func (w *wiretap) run(d time.Duration) {
	for end := time.After(d); ; {
		select {
		case <-w.due:
			w.flush()
		case <-end:
			return
		}
	}
}

func TestARelayTellsSignalsApart(t *testing.T) {
	const term, hup = syscall.SIGTERM, syscall.SIGHUP
	for name, c := range map[string]struct {
		happens func(w *wiretap)
		want    string
	}{
		"to us":    {func(w *wiretap) { w.take(term) }, "[terminated]"},
		"to group": {func(w *wiretap) { w.sent = []syscall.Signal{term}; w.take(term) }, "[]"},
		"to us, then to the group": {func(w *wiretap) {
			w.take(term)
			w.run(grace * turn / 2)
			w.sent = []syscall.Signal{term}
			w.take(term)
		}, "[]"},
		"to us, then to the group, both before we look": {func(w *wiretap) {
			w.sent = []syscall.Signal{term}
			w.take(term)
			w.take(term)
		}, "[]"},
		"to us, then to the group, where we have not taken ours yet": {func(w *wiretap) {
			w.take(term)
			w.sent = []syscall.Signal{term}
			w.run(2 * grace * turn)
			w.take(term)
		}, "[]"},
		"to us, and to the group much later": {func(w *wiretap) {
			w.take(term)
			w.run(2 * grace * turn)
			w.sent = []syscall.Signal{term}
			w.take(term)
		}, "[terminated]"},
		"to us twice": {func(w *wiretap) {
			w.take(term)
			w.run(grace * turn / 2)
			w.take(term)
		}, "[terminated terminated]"},
		"two kinds, in order": {func(w *wiretap) {
			w.take(hup)
			w.take(term)
		}, "[hangup terminated]"},
		"nobody can tell": {func(w *wiretap) {
			w.ask = func() ([]syscall.Signal, bool) { return nil, false }
			w.guess = func(s syscall.Signal) bool { return s == hup }
			w.take(hup)
			w.take(term)
		}, "[terminated]"},
		"not in our group, twice while the first is passed on": {func(w *wiretap) {
			w.ask = nil
			w.pass = func(s syscall.Signal, _ bool) {
				w.got = append(w.got, s.String())
				time.Sleep(time.Second)
			}
			w.take(term)
			w.take(term)
		}, "[terminated]"},
		"not in our group": {func(w *wiretap) {
			w.ask = nil
			w.take(term)
			w.take(term)
			w.run(2 * twin * turn)
			w.take(term)
		}, "[terminated terminated]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWiretap()
				c.happens(w)
				w.run(time.Second)
				if got := fmt.Sprint(w.got); got != c.want {
					t.Errorf("the command got %s, want %s", got, c.want)
				}
			})
		})
	}
}
