//go:build unix

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

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

	cmd := with(command(t, append([]string{"run", "demo", "--driver", "plain", "--"}, show...)...), "DLOCK_FENCE=12345")
	if got := finish(t, cmd); got.out != "demo unset\n" {
		t.Errorf("without fences the child saw %q, want demo unset", got.out)
	}
}

func TestLockIsHeldWhileTheChildRuns(t *testing.T) {
	cmd := command(t, "run", "demo", "--ttl", "30s", "--", "sh", "-c", "echo child; exit 3")
	got := finish(t, with(cmd, "DLOCK_DRIVER=audit", "DLOCK_PREFIX=app:"))
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
		{"run demo --ttl 0s -- echo", "--ttl is 0s; accepted is 10ms to 24h0m0s"},
		{"run demo --ttl 1ms -- echo", "--ttl is 1ms; accepted is 10ms to 24h0m0s"},
		{"run demo --ttl soon -- echo", `invalid argument "soon"`},
		{"run demo --wait -1s -- echo", "--wait is -1s"},
		{"run demo --wait 1s --no-wait -- echo", "exclude each other"},
		{"run demo --colour -- echo", "unknown flag: --colour"},
		{"run demo --driver nowhere -- echo", `unknown driver "nowhere"`},
		{"run demo --dsn memory://a?b=c -- echo", `unknown parameter "b"`},
		{"break demo --yes --fence 0", "--fence is 0"},
		{"lock demo", `unknown command "lock"`},
		{"drivers all", `unknown command "all"`},
	} {
		got := finish(t, command(t, strings.Fields(c.args)...))
		if got.code != 64 || got.out != "" || !strings.Contains(got.err, c.want) || strings.Contains(got.err, "dlock: dlock:") {
			t.Errorf("dlock %s: %+v, want code 64 and %q on stderr", c.args, got, c.want)
		}
	}
}

func TestNotAcquiredIs75(t *testing.T) {
	for _, flags := range []string{"--no-wait", "--wait 2s"} {
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

func TestAStoreThatDoesNotAnswerIsReportedWhenTheWaitIsOver(t *testing.T) {
	for _, flags := range []string{"--wait 1s", "--no-wait"} {
		began := time.Now()
		args := strings.Fields("run demo --driver mute " + flags + " -- echo ran")
		got := finish(t, command(t, args...))
		if flags == "--no-wait" && !strings.Contains(got.err, "the store has not answered within 5s") {
			t.Errorf("%s: %q, want it to say that there was no answer", flags, got.err)
		}
		if took := time.Since(began); got.code != 69 || got.out != "" || took > 10*time.Second || flags == "--wait 1s" && took > 4*time.Second {
			t.Errorf("%s: %+v after %v, want code 69 when the time is up", flags, got, took)
		}
	}
}

func TestAScriptWithoutAFirstLineForItIsRunByTheShell(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/script", []byte("echo \"$0 with $1 under $DLOCK_KEY\"\n"), 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	got := finish(t, command(t, "run", "demo", "--", dir+"/script", "an argument"))
	if want := dir + "/script with an argument under demo\n"; got.code != 0 || got.out != want {
		t.Errorf("%+v, want %q", got, want)
	}
	cmd := with(command(t, "run", "demo", "--", "script", "an argument"), "PATH=.:/bin:/usr/bin")
	cmd.Dir = dir
	if got := finish(t, cmd); got.code != 0 || !strings.HasSuffix(got.out, "script with an argument under demo\n") {
		t.Errorf("found in the current directory: %+v", got)
	}
}

func TestBackendTroubleIs69(t *testing.T) {
	got := finish(t, command(t, "run", "demo", "--driver", "down", "--", "echo", "ran"))
	if got.code != 69 || got.out != "" || !strings.Contains(got.err, "no permission") {
		t.Errorf("got %+v, want code 69 and the reason", got)
	}
}
