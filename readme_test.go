package dlock_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The README's first program is Example, which go test runs, but for what makes it a program.
func TestReadmeShowsTheExample(t *testing.T) {
	_, rest, _ := strings.Cut(readFile(t, "README.md"), "```go\n")
	got, _, _ := strings.Cut(rest, "```\n")

	want := readFile(t, "example_test.go")
	_, want, _ = strings.Cut(want, "package dlock_test\n")
	want = "package main\n" + strings.Replace(want, "func Example() {", "func main() {", 1)
	want = regexp.MustCompile(`(?m)^\t// Output:.*\n`).ReplaceAllString(want, "")
	if got != want {
		t.Errorf("README.md's first Go block and example_test.go differ.\nREADME:\n%s\nexample:\n%s", got, want)
	}
}

func TestReadmeNamesEveryFieldAndError(t *testing.T) {
	readme := readFile(t, "README.md")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[dlock.Config]()) {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if row := "| `" + name + "` | `" + f.Name + "` |"; !strings.Contains(readme, row) {
			t.Errorf("README.md's table of the configuration has no row %s", row)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(Err\w+) += `).FindAllStringSubmatch(readFile(t, "errors.go"), -1) {
		if row := "| `" + m[1] + "` |"; !strings.Contains(readme, row) {
			t.Errorf("README.md's table of errors has no row %s", row)
		}
	}
}

func TestLinksInDocsLeadSomewhere(t *testing.T) {
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^):]+)\)`) // with a colon it is a URL
	for _, name := range append(docs, "README.md", "CONTRIBUTING.md") {
		for _, m := range link.FindAllStringSubmatch(readFile(t, name), -1) {
			path, section, _ := strings.Cut(m[1], "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if section != "" && !hasSection(readFile(t, target), section) {
				t.Errorf("%s links to %s, which has no such section", name, m[1])
			}
		}
	}
}

// hasSection reports whether text has a heading that section is the anchor of.
func hasSection(text, section string) bool {
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			anchor := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(heading)), " ", "-")
			if regexp.MustCompile(`[^\w-]`).ReplaceAllString(anchor, "") == section {
				return true
			}
		}
	}
	return false
}
