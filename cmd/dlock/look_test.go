//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlock-go/dlock/internal/redistest"
)

// hold runs a command that holds key until the test ends.
func hold(t *testing.T, key string, env []string, flags ...string) *process {
	t.Helper()
	p := begin(t, with(command(t, append(append([]string{"run", key}, flags...), "--", "sh", "-c", loop)...), env...))
	p.expect("ready")
	return p
}

// listed is what dlock ls --json prints.
func listed(t *testing.T, env []string, args ...string) (locks []lockJSON) {
	t.Helper()
	got := finish(t, with(command(t, append([]string{"ls", "--json"}, args...)...), env...))
	if err := json.Unmarshal([]byte(got.out), &locks); err != nil || got.code != 0 {
		t.Fatalf("ls: %+v: %v", got, err)
	}
	return locks
}

func keysOf(locks []lockJSON) (keys []string) {
	for _, l := range locks {
		keys = append(keys, l.Key)
	}
	return keys
}

func TestListShowsTheUsersKeys(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		app := append(slices.Clone(env), "DLOCK_PREFIX=app:")
		hold(t, "b/1", app, "--owner", "alice", "--ttl", "30s")
		hold(t, "a", app)
		hold(t, "elsewhere", env)
		if got, want := keysOf(listed(t, app)), []string{"a", "b/1"}; !slices.Equal(got, want) {
			t.Errorf("with the prefix: %q, want %q", got, want)
		}
		if got, want := keysOf(listed(t, env)), []string{"app:a", "app:b/1", "elsewhere"}; !slices.Equal(got, want) {
			t.Errorf("without a prefix: %q, want %q", got, want)
		}
		locks := listed(t, app, "b")
		if len(locks) != 1 {
			t.Fatalf("ls b: %+v, want one lock", locks)
		}
		l := locks[0]
		if !l.Held || l.Owner != "alice" || l.Fence == 0 || l.TTL < 15 || l.TTL > 30 || time.Since(l.Since) > time.Minute || len(l.Waiters) != 0 {
			t.Errorf("ls b: %+v", l)
		}
		table := finish(t, with(command(t, "ls"), app...))
		lines := strings.Split(table.out, "\n")
		if len(lines) != 4 || !strings.HasPrefix(lines[0], "KEY") || !strings.HasPrefix(lines[2], "b/1") || !strings.Contains(lines[2], "alice") {
			t.Errorf("the table is\n%s", table.out)
		}
	})
}

func TestWhatCannotBeReadHidesNothingElse(t *testing.T) {
	dir := t.TempDir() + "/locks"
	env := []string{"DLOCK_DRIVER=file", "DLOCK_DSN=file://" + dir}
	hold(t, "demo", env)
	if err := os.WriteFile(dir+"/other.dlock", []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"ls", "ls --json", "top --json -c 1"} {
		got := finish(t, with(command(t, strings.Fields(args)...), env...))
		if got.code != 69 || !strings.Contains(got.out, "demo") || !strings.Contains(got.err, "other.dlock") {
			t.Errorf("%s: %+v, want the lock that can be read, and code 69 for the other one", args, got)
		}
	}
}

func TestAForeignHolderWithoutATTLIsSeen(t *testing.T) {
	server := redistest.Start(t)
	env := []string{"DLOCK_DRIVER=redis", "DLOCK_DSN=redis://" + server.Addr}
	if _, err := server.Do("set demo somebody"); err != nil {
		t.Fatal(err)
	}
	if l := inspected(t, "demo", env); !l.Held || l.Owner == "" || l.Fence != 0 {
		t.Errorf("inspect: %+v, want a holder", l)
	}
	if got := finish(t, with(command(t, "break", "demo", "--yes"), env...)); got.code != 69 || !strings.Contains(got.err, "has no fence") {
		t.Errorf("break: %+v, want code 69 and the reason", got)
	}
}

func TestListOfNothing(t *testing.T) {
	env := fileStore(t)
	if got := finish(t, with(command(t, "ls"), env...)); got != (result{}) {
		t.Errorf("ls: %+v, want nothing", got)
	}
	if got := finish(t, with(command(t, "ls", "--json"), env...)); got != (result{out: "[]\n"}) {
		t.Errorf("ls --json: %+v, want an empty array", got)
	}
}

func TestInspectIsZeroForHeldAndOneForFree(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		env = append(env, "DLOCK_PREFIX=app:")
		got := finish(t, with(command(t, "inspect", "demo"), env...))
		if want := (result{out: "key        demo\nheld by    nobody\n", code: 1}); got != want {
			t.Errorf("a free key: %+v, want %+v", got, want)
		}
		if l := inspected(t, "demo", env); l.Held || l.Key != "demo" {
			t.Errorf("a free key as JSON: %+v", l)
		}
		hold(t, "demo", env, "--owner", "alice")
		begin(t, with(command(t, "run", "demo", "--owner", "bob", "--", "true"), env...))
		eventually(t, "bob waits", func() bool { return slices.Equal(inspected(t, "demo", env).Waiters, []string{"bob"}) })
		got = finish(t, with(command(t, "inspect", "demo"), env...))
		for _, want := range []string{"key        demo\n", "held by    alice\n", "waiting 1  bob\n", "\nfence ", "\nttl left ", "\nheld for "} {
			if got.code != 0 || !strings.Contains(got.out, want) {
				t.Errorf("inspect: %+v has no %q", got, want)
			}
		}
	})
}

func TestBreakTakesExactlyTheHolderThatWasShown(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		p := hold(t, "demo", env, "--ttl", "3s")
		fence := inspected(t, "demo", env).Fence
		got := finish(t, with(command(t, "break", "demo", "--yes", "--fence", fmt.Sprint(fence-1)), env...))
		if got.code != 1 || !strings.Contains(got.err, "nothing was broken") || !inspected(t, "demo", env).Held {
			t.Errorf("another fence: %+v, want code 1 and the holder untouched", got)
		}
		got = finish(t, with(command(t, "break", "demo", "--yes", "--json"), env...))
		var broken lockJSON
		if err := json.Unmarshal([]byte(got.out), &broken); err != nil || got.code != 0 || broken.Fence != fence {
			t.Errorf("break: %+v: %v; want fence %d", got, err, fence)
		}
		if code := p.end(); code != 76 {
			t.Errorf("the holder's exit code is %d, want 76", code)
		}
		if got := finish(t, with(command(t, "break", "demo", "--yes"), env...)); got.code != 1 || !strings.Contains(got.err, "nobody holds") {
			t.Errorf("a free key: %+v, want code 1", got)
		}
	})
}

func TestBreakDoesNotAskWhereNobodyCanAnswer(t *testing.T) {
	env := fileStore(t)
	hold(t, "demo", env)
	got := finish(t, with(command(t, "break", "demo"), env...))
	if got.code != 64 || !strings.Contains(got.err, "--yes") || !inspected(t, "demo", env).Held {
		t.Errorf("%+v, want code 64, a hint at --yes and the lock still held", got)
	}
}

func TestDoctorMeasuresAndJudges(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		got := finish(t, with(command(t, "doctor", "--json"), env...))
		var report findings
		if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != 0 || !report.Healthy {
			t.Fatalf("doctor: %+v: %v; want a healthy store", got, err)
		}
		for _, id := range []string{"dlock-round-trip", "dlock-cycle"} {
			if !slices.ContainsFunc(report.Findings, func(f findingJSON) bool { return f.ID == id && f.Level == "info" }) {
				t.Errorf("no %s among the findings: %s", id, got.out)
			}
		}
		if locks := listed(t, env); len(locks) != 0 {
			t.Errorf("the doctor left %+v", locks)
		}
		text := finish(t, with(command(t, "doctor"), env...))
		if text.code != 0 || !strings.HasPrefix(text.out, "driver "+report.Driver) || !strings.Contains(text.out, "info     dlock-cycle: a lock was taken") {
			t.Errorf("doctor: %+v", text)
		}
	})
}

func TestDoctorFails(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  []string
		code int
		want string
	}{
		{"a store that is down", nil, []string{"DLOCK_DRIVER=redis", "DLOCK_DSN=redis://127.0.0.1:1"}, 69, "refused"},
		{"an error among the findings", nil, []string{"DLOCK_DRIVER=ill"}, 1, ""},
		{"a warning", nil, []string{"DLOCK_DRIVER=unwell"}, 0, ""},
		{"a warning with --strict", []string{"--strict"}, []string{"DLOCK_DRIVER=unwell"}, 1, ""},
	} {
		got := finish(t, with(command(t, append([]string{"doctor"}, c.args...)...), c.env...))
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: %+v, want code %d and %q", c.name, got, c.code, c.want)
		}
		if c.code != 69 && (!strings.Contains(got.out, "it hurts") || !strings.Contains(got.out, "advice: rest")) {
			t.Errorf("%s: %q, want the finding and its advice", c.name, got.out)
		}
	}
}

func TestADriverThatCannotSaysSo(t *testing.T) {
	for _, args := range []string{"ls", "ls --json", "inspect demo", "break demo --yes", "top --json"} {
		got := finish(t, with(command(t, strings.Fields(args)...), "DLOCK_DRIVER=down"))
		if got.code != 69 || got.out != "" || !strings.Contains(got.err, "the down driver cannot ") {
			t.Errorf("%s: %+v, want 69 and what the driver cannot do", args, got)
		}
	}
	if got := finish(t, command(t, "doctor", "--driver", "plain")); got.code != 0 || !strings.Contains(got.out, "no way to measure") {
		t.Errorf("doctor without a Pinger: %+v", got)
	}
}

func TestWhatCouldUpsetATerminalIsQuoted(t *testing.T) {
	env := fileStore(t)
	key := "a\x1b[2Jb\n"
	hold(t, key, env)
	for _, args := range [][]string{{"ls"}, {"inspect", key}, {"run", key, "-n", "--", "true"}} {
		got := finish(t, with(command(t, args...), env...))
		if all := got.out + got.err; strings.Contains(all, "\x1b") || !strings.Contains(all, `"a\x1b[2Jb\n"`) {
			t.Errorf("%q: %+v, want the key in quotes", args, got)
		}
	}
	if got := keysOf(listed(t, env)); !slices.Equal(got, []string{key}) {
		t.Errorf("as JSON: %q, want the key as it is", got)
	}
}

func TestJSONHasNoRawControlsAndEveryKeyCanBeAddressedByIt(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		for _, key := range []string{
			"plain", "bell\a del\x7f csi\u009b turn\u202e tag\U000e0001", "broken \xff\x9b utf-8 \xc3", "line\nend",
		} {
			p := hold(t, key, env, "--ttl", "3s")
			got := finish(t, with(command(t, "ls", "--json"), env...))
			for _, r := range got.out {
				if r != '\n' && (r < ' ' || r > '~') {
					t.Errorf("%q: ls --json has %q in it: %q", key, r, got.out)
				}
			}
			var locks []struct {
				Key     string
				Encoded string `json:"key_base64"`
				Fence   uint64
			}
			if err := json.Unmarshal([]byte(got.out), &locks); err != nil || len(locks) != 1 {
				t.Fatalf("%q: ls --json: %+v: %v", key, got, err)
			}
			if utf8.ValidString(key) && locks[0].Key != key {
				t.Errorf("ls --json: %q, want %q", locks[0].Key, key)
			}
			if got := finish(t, with(command(t, "inspect", "--base64", locks[0].Encoded), env...)); got.code != 0 {
				t.Errorf("%q: inspect: %+v, want it held", key, got)
			}
			cmd := command(t, "break", "--base64", locks[0].Encoded, "--fence", fmt.Sprint(locks[0].Fence), "--yes")
			if got := finish(t, with(cmd, env...)); got.code != 0 {
				t.Errorf("%q: break: %+v, want it broken", key, got)
			}
			if code := p.end(); code != 76 {
				t.Errorf("%q: the holder's exit code is %d, want 76", key, code)
			}
		}
		got := finish(t, with(command(t, "inspect", "--base64", "not base64"), env...))
		if got.code != 64 || !strings.Contains(got.err, "not in base64") {
			t.Errorf("inspect of what is no base64: %+v, want 64", got)
		}
	})
}

func TestNoMessageUpsetsATerminal(t *testing.T) {
	const bad = "a\x1b[2J\u009b\x7f\xff\u202e"
	for _, args := range [][]string{
		{"run", "demo", "--driver", bad, "--", "true"}, {"run", "demo", "--", bad}, {bad}, {"ls", "--" + bad},
		{"ls", "--config", "/nowhere/" + bad}, {"inspect", bad}, {"run", bad, "--driver", "down", "--", "true"},
		{"break", bad, "--yes"}, {"doctor", "--dsn", "memory://" + bad},
	} {
		got := finish(t, command(t, args...))
		for _, r := range got.out + got.err {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == utf8.RuneError {
				t.Errorf("%q: %q in %+q", args, r, got.out+got.err)
				break
			}
		}
	}
}

func TestDriversAndVersion(t *testing.T) {
	got := finish(t, command(t, "drivers"))
	for _, name := range []string{"etcd", "file", "memory", "redis"} {
		if got.code != 0 || !strings.Contains(got.out, name+"\n") {
			t.Errorf("drivers: %+v, want %s among them", got, name)
		}
	}
	var names []string
	if err := json.Unmarshal([]byte(finish(t, command(t, "drivers", "--json")).out), &names); err != nil || !slices.Contains(names, "memory") {
		t.Errorf("drivers --json: %q, %v", names, err)
	}
	if got := finish(t, command(t, "version")); got.code != 0 || !strings.HasPrefix(got.out, "dlock ") {
		t.Errorf("version: %+v, want dlock and a version", got)
	}
}
