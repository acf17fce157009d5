// Package examples keeps the programs below it running.
package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	// What the programs are made of: a change there makes the cached result of this test worthless.
	_ "github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/drivers/memory"
)

func TestProgramsRunAndEndByThemselves(t *testing.T) {
	programs := map[string][]string{ // and what each prints, in this order, among other lines
		"leader":       {"leads", "an operator takes the lead", "leads", "resigned"},
		"cron":         {"tick 1", "tick 2", "tick 3", "runs: 3"},
		"fenced-store": {"first:  <nil>", "second: <nil>", "lock: false", "refused", "the file says: final"},
		"container":    {"driver injected", "driver memory", `unknown driver "nowhere"`},
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./...")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	sources, err := filepath.Glob("*/main.go")
	if err != nil || len(sources) != len(programs) {
		t.Errorf("there are %d programs, and this test knows %d: %v, %v", len(sources), len(programs), sources, err)
	}
	for _, source := range sources {
		name := filepath.Dir(source)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if text, err := os.ReadFile(source); err != nil || !strings.HasPrefix(string(text), "// ") {
				t.Errorf("%s does not begin with a comment (%v)", source, err)
			}
			expect(t, run(t, filepath.Join(dir, name)), programs[name])
		})
	}
}

func run(t *testing.T, program string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func expect(t *testing.T, out string, parts []string) {
	rest, found := out, false
	for _, want := range parts {
		if _, rest, found = strings.Cut(rest, want); !found {
			t.Fatalf("%q is missing, or not in its place, in:\n%s", want, out)
		}
	}
}
