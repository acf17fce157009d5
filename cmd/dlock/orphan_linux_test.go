package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/internal/faulttest"
)

// asSubreaper in the environment makes a test binary that is dlock get the orphans among its
// descendants.
const asSubreaper = "TEST_AS_SUBREAPER"

func init() {
	if os.Getenv(asSubreaper) != "" {
		_ = os.Unsetenv(asSubreaper)
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			panic(err)
		}
	}
}

// gettingOrphans are the ways in which dlock can be a process that orphans come to.
var gettingOrphans = map[string]func(*testing.T, *exec.Cmd){
	"process 1": func(t *testing.T, cmd *exec.Cmd) {
		container := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
		if out, err := exec.Command(container[0], append(container[1:], "true")...).CombinedOutput(); err != nil {
			t.Skipf("no namespace for processes can be made here: %v: %s", err, out)
		}
		cmd.Args = append(container, append([]string{cmd.Path}, cmd.Args[1:]...)...)
		cmd.Path, cmd.Err = exec.LookPath(container[0])
	},
	"a subreaper": func(_ *testing.T, cmd *exec.Cmd) { with(cmd, asSubreaper+"=1") },
}

func TestItBuriesTheOrphansThatItGets(t *testing.T) {
	// The orphan says who it is; the exit code is to be that of the command.
	script := `o=$(sh -c 'sleep 0.05 >/dev/null & echo $!'); i=0; ` +
		`while [ -d /proc/$o ] && [ $i -lt 100 ]; do sleep 0.05; i=$((i+1)); done; ` +
		`[ -d /proc/$o ] && echo "a zombie" || echo buried; exit 7`
	for name, become := range gettingOrphans {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, "run", "demo", "--", "sh", "-c", script)
			become(t, cmd)
			if got, want := finish(t, cmd), (result{out: "buried\n", code: 7}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

func TestBuryingTakesNoExitCodeFromTheCommand(t *testing.T) {
	for name, become := range gettingOrphans {
		t.Run(name, func(t *testing.T) {
			for code := 1; code <= 5; code++ {
				script := fmt.Sprintf("for i in 1 2 3 4 5 6 7 8; do (sleep 0.00$i &); done; sleep 0.00%d; exit %[1]d", code)
				cmd := command(t, "run", "demo", "--", "sh", "-c", script)
				become(t, cmd)
				if got, want := finish(t, cmd), (result{code: code}); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
		})
	}
}

func TestZombiesAreNotWaitedForAfterALoss(t *testing.T) {
	// Orphans come to us, and we bury nobody, as process 1 of many containers.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) //nolint:errcheck // what could be set can be reset
	const killAfter = 20 * time.Second
	// One of them is in the command's process group, one is not.
	script := `trap 'exit 0' TERM; sh -c 'sleep 60 & setsid sleep 60 & echo ids $! $! $!'; ` + lose + forever
	p := begin(t, losing(t, killAfter.String(), script))
	orphans := idsIn(t, p.line())
	late := faulttest.Lateness(t)
	began := time.Now()
	if code := p.end(); code != 76 {
		t.Errorf("exit code %d, want 76", code)
	}
	if took, busy := time.Since(began), late(); took > killAfter/2+busy {
		t.Errorf("it took %v to end a command of which nothing was left but zombies", took)
	}
	if s := state(orphans[0]); s != 'Z' {
		t.Errorf("the orphan is in state %q, want a zombie: the test proves nothing", s)
	}
	for _, p := range processes() {
		if p.dead && p.parent == os.Getpid() {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	}
}

func TestProcessesOfAnotherNamespaceAreLeftAlone(t *testing.T) {
	unshare := []string{"unshare", "--pid", "--fork", "--kill-child"}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespace for processes can be made here: %v: %s", err, out)
	}
	// The ids in /proc are those of the outer namespace. There a process must not be taken for one
	// of the same id in the inner one.
	cmd := losing(t, "300ms", `trap "" TERM; echo ready; `+lose+"exec sleep 60")
	cmd.Args = append(unshare, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path, cmd.Err = exec.LookPath(unshare[0])
	if got := finish(t, cmd); got.code != 76 || got.out != "ready\n" {
		t.Errorf("%+v, want the command ended and code 76", got)
	}
}

func TestAFirstThreadThatHasEndedIsNoDeadProcess(t *testing.T) {
	dir := t.TempDir()
	for line, dead := range map[string]bool{
		"7 (a) b) Z 1 2 3 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 9": true,
		"7 (a) b) Z 1 2 3 0 -1 4 0 0 0 0 0 0 0 0 20 0 2 0 9": false,
		"7 (a) b) S 1 2 3 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 9": false,
	} {
		if err := os.WriteFile(dir+"/stat", []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, ok := processIn(dir); !ok || p.dead != dead || p.parent != 1 || p.group != 2 {
			t.Errorf("%s: %+v, want dead=%v", line, p, dead)
		}
	}
}

func TestOneEmptyLookIsNotEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The second to last look finds one that the others have missed.
		looks, began := 0, time.Now()
		untilNone(time.Minute, func() bool { looks++; return looks == calm-1 })
		if looks != 2*calm-1 || time.Since(began) > time.Second {
			t.Errorf("%d looks in %v, want %d: as many again", looks, time.Since(began), 2*calm-1)
		}
		looks, began = 0, time.Now()
		untilNone(time.Minute, func() bool { looks++; return true })
		if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("it looked for %v for what cannot be ended, want a minute", took)
		}
	})
}

func TestAKillRightAfterTheStartLeavesNobody(t *testing.T) {
	token := rand.Text()
	script := `for i in 1 2 3; do (setsid sleep 60 & sleep 60 &) & done; exec sleep 60`
	for range 40 {
		p := begin(t, with(command(t, "run", "demo", "--", "sh", "-c", script), "TEST_TOKEN="+token))
		time.Sleep(4*time.Millisecond + mathrand.N(30*time.Millisecond))
		p.signal(syscall.SIGKILL)
		_ = p.Wait()
	}
	eventually(t, "all that the commands started has ended", func() bool {
		left := 0
		for _, p := range processes() {
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
			if !p.dead && bytes.Contains(env, []byte(token)) {
				left++
			}
		}
		return left == 0
	})
}
