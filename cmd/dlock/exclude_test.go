//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// inspected is what dlock inspect says about key.
func inspected(t *testing.T, key string, env []string) (lock lockJSON) {
	t.Helper()
	got := finish(t, with(command(t, "inspect", key, "--json"), env...))
	if err := json.Unmarshal([]byte(got.out), &lock); err != nil {
		t.Fatalf("inspect: %+v: %v", got, err)
	}
	return lock
}

// holder holds key in another process until the function that it returns is called.
func holder(t *testing.T, key string, env []string, flags ...string) (release func()) {
	t.Helper()
	args := append([]string{"run", key, "--owner", "somebody else"}, flags...)
	cmd := with(command(t, append(args, "--", "sh", "-c", "echo ready; cat")...), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := begin(t, cmd)
	p.expect("ready")
	return func() {
		_ = in.Close()
		if code := p.end(); code != 0 {
			t.Fatalf("the holder ended with %d: %s", code, p.errs.String())
		}
	}
}

func TestConcurrentRunsTakeTurns(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		file := filepath.Join(t.TempDir(), "log")
		// A lost update, or a second process in the directory, shows up as a wrong line.
		script := `mkdir "$0.in" || echo overlap >>"$0"; echo "in $DLOCK_FENCE" >>"$0"; sleep 0.02; rmdir "$0.in"; echo out >>"$0"`
		const runs = 12
		var all []*process
		for range runs {
			all = append(all, begin(t, with(command(t, "run", "demo", "--", "sh", "-c", script, file), env...)))
		}
		for _, p := range all {
			if code := p.end(); code != 0 {
				t.Errorf("exit code %d: %s", code, p.errs.String())
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Fields(strings.ReplaceAll(string(text), "in ", "in:"))
		if len(lines) != 2*runs {
			t.Fatalf("%d lines, want %d:\n%s", len(lines), 2*runs, text)
		}
		var last uint64
		for i := 0; i < len(lines); i += 2 {
			fence, err := strconv.ParseUint(strings.TrimPrefix(lines[i], "in:"), 10, 64)
			if err != nil || fence <= last || lines[i+1] != "out" {
				t.Fatalf("line %d: %q after fence %d, then %q; want turns with rising fences", i, lines[i], last, lines[i+1])
			}
			last = fence
		}
	})
}

func TestALongRunKeepsItsLock(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		release := holder(t, "demo", env, "--ttl", "3s")
		for began := time.Now(); time.Since(began) < 7*time.Second; {
			if got := finish(t, with(command(t, "run", "demo", "--no-wait", "--", "echo", "ran"), env...)); got.code != 75 || got.out != "" {
				t.Fatalf("a second run while the first holds: %+v, want 75", got)
			}
		}
		release()
	})
}

func TestNotAcquiredNamesTheHolderUnlessQuiet(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		p := begin(t, with(command(t, "run", "demo", "--owner", "alice on call", "--", "sh", "-c", loop), env...))
		p.expect("ready")
		got := finish(t, with(command(t, "run", "demo", "--wait", "2s", "-E", "3", "--", "true"), env...))
		if got.code != 3 || !strings.HasPrefix(got.err, `dlock: "demo" is held by alice on call for `) {
			t.Errorf("%+v, want the code of -E and the holder", got)
		}
		if got := finish(t, with(command(t, "run", "demo", "-nq", "--", "true"), env...)); got != (result{code: 75}) {
			t.Errorf("with --quiet: %+v, want the code alone", got)
		}
	})
}

func TestAStoreThatIsDownIsReportedAtOnce(t *testing.T) {
	began := time.Now()
	got := finish(t, command(t, "run", "demo", "--driver", "redis", "--dsn", "redis://127.0.0.1:1", "--", "echo", "ran"))
	if got.code != 69 || got.out != "" || !strings.Contains(got.err, "refused") {
		t.Errorf("%+v, want 69 and the reason", got)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestVerboseLogsWhatHappens(t *testing.T) {
	got := finish(t, command(t, "run", "demo", "-v", "--", "echo", "hello"))
	for _, want := range []string{"lock acquired", "lock released", "key=demo"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("stderr has no %q: %s", want, got.err)
		}
	}
	if got.out != "hello\n" {
		t.Errorf("stdout is %q, want the command's alone", got.out)
	}
}

func TestARunInARunHoldsBothLocks(t *testing.T) {
	stores(t, func(t *testing.T, env []string) {
		dlock := fmt.Sprintf("'%s'", os.Args[0])
		script := dlock + ` run b -- sh -c 'echo "$DLOCK_KEY"; ` + dlock + ` run a -n -q -- true; echo $?'`
		got := finish(t, with(command(t, "run", "a", "--", "sh", "-c", script), env...))
		if want := (result{out: "b\n75\n"}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
