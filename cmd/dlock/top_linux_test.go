package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestTopShowsAndBreaks(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		env = append(env, "DLOCK_PREFIX=app:")
		hold(t, "alpha", env, "--owner", "alice")
		p := hold(t, "beta", env, "--owner", "bob", "--ttl", "3s")
		x := onTerminal(t, with(command(t, "top", "-i", "100ms"), env...))
		x.sees(`\x1b\[7malpha +alice +`)
		x.sees(`locks: 2  waiting: 0`)
		x.press("j")
		x.sees(`\x1b\[7mbeta +bob +`)
		x.press("/gamma\r")
		x.sees(`locks: 0`)
		x.press("\x1b")
		x.press("b")
		x.sees(`Break beta, held by bob with fence \d+\? y/n`)
		x.press("y")
		x.sees("broken: beta")
		if code := p.end(); code != 76 {
			t.Errorf("the holder's exit code is %d, want 76", code)
		}
		x.forget()
		x.sees(`locks: 1`)
		x.press("q")
		if err := x.cmd.Wait(); err != nil {
			t.Error(err)
		}
		x.sees(`\x1b\[\?1049l`)
	})
}

func TestTopLeavesTheTerminalAsItWas(t *testing.T) {
	env := fileStore(t)
	x := shell(t, env)
	for _, leave := range []string{"q", "\x03"} {
		x.forget()
		x.press("$dlock top\n")
		x.sees("locks: 0")
		x.press(leave)
		x.sees(`\[\?1049l(?s:.*)\$ $`)
		x.press("stty -a | grep -o ' icanon'; echo code:$?\n")
		x.sees(` icanon\r\n(?s:.*)code:0`)
	}
}

func TestTopAsJSONIsALineForEveryLook(t *testing.T) {
	env := fileStore(t)
	hold(t, "demo", env)
	got := finish(t, with(command(t, "top", "--json", "-i", "20ms", "-c", "3"), env...))
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.code != 0 || len(lines) != 3 {
		t.Fatalf("%+v, want three lines", got)
	}
	for _, line := range lines {
		var l struct {
			Time  time.Time
			Locks []lockJSON
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || len(l.Locks) != 1 || l.Locks[0].Key != "demo" || l.Time.IsZero() {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestTopWantsATerminal(t *testing.T) {
	if got := finish(t, command(t, "top")); got.code != 64 || !strings.Contains(got.err, "--json") {
		t.Errorf("%+v, want 64 and a hint at --json", got)
	}
}

func TestBreakAsksOnATerminal(t *testing.T) {
	env := fileStore(t)
	hold(t, "demo", env, "--owner", "alice")
	for _, answer := range []string{"n", "", "ye"} {
		x := onTerminal(t, with(command(t, "break", "demo"), env...))
		x.sees(`held by    alice(?s:.*)Break it\? \[y/N\] `)
		x.press(answer + "\n")
		x.sees("nothing was broken")
		if err := x.cmd.Wait(); err == nil || x.cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%q: %v, want code 1", answer, err)
		}
	}
	x := onTerminal(t, with(command(t, "break", "demo"), env...))
	x.sees(`Break it\? \[y/N\] `)
	x.press("y\n")
	x.sees(`\nbroken\r\n`)
	if inspected(t, "demo", env).Held {
		t.Error("the lock is still held")
	}
}

func TestBreakLeavesTheNextHolderAlone(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		release := holder(t, "demo", env)
		x := onTerminal(t, with(command(t, "break", "demo"), env...))
		x.sees(`Break it\? \[y/N\] `)
		release()
		hold(t, "demo", env, "--owner", "the next one")
		x.press("y\n")
		x.sees("nothing was broken: the holder of \"demo\" with fence \\d+ does not have it any more")
		if l := inspected(t, "demo", env); l.Owner != "the next one" {
			t.Errorf("%+v, want the next holder untouched", l)
		}
	})
}
