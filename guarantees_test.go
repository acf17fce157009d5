package dlock_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each section of the table of faults is about one package, and each row names tests of that
// package.
func TestTheGuaranteesNameTestsThatExist(t *testing.T) {
	_, table, found := strings.Cut(readFile(t, "docs/guarantees.md"), "\n## Fault by fault\n")
	if !found {
		t.Fatal("docs/guarantees.md has no section Fault by fault")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	packages := map[string]string{
		"Every driver": ".", "Redis": "drivers/redis", "etcd": "drivers/etcd", "Files": "drivers/file",
		"The command": "cmd/dlock",
	}
	sections := strings.Split(table, "\n### ")[1:]
	for _, section := range sections {
		title, rows, _ := strings.Cut(section, "\n")
		dir, ok := packages[title]
		if !ok {
			t.Errorf("section %q is about no package that this test knows", title)
			continue
		}
		tests := testsIn(t, dir)
		for row := range strings.Lines(rows) {
			if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| fault |") {
				continue
			}
			names := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(row, -1)
			if len(names) == 0 {
				t.Errorf("%s: no test is named for %s", title, row)
			}
			for _, name := range names {
				if !tests[name[1]] {
					t.Errorf("%s: package %s has no test %s", title, dir, name[1])
				}
			}
		}
	}
	if len(sections) != len(packages) {
		t.Errorf("got %d sections, want one for each of %d packages", len(sections), len(packages))
	}
}

// testsIn returns the names of the tests in dir.
func testsIn(t *testing.T, dir string) map[string]bool {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, file := range files {
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(readFile(t, file), -1) {
			tests[m[1]] = true
		}
	}
	return tests
}
