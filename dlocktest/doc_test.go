package dlocktest

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/conformance.md")

const conformanceDoc = "../docs/conformance.md"

const conformanceIntro = `# What a driver has to pass

Package [dlocktest](../dlocktest) runs these cases on any driver; [writing a driver](writing-a-driver.md) shows how. Each case is a subtest named by its id, which stays
the same, so that ` + "`go test -run 'TestConformance/wait-fifo'`" + ` and ` + "`Harness.Skip`" + ` go on working. A case that fails prints its rule. A case whose needs
the store does not meet is skipped, and the last line of the run tells which, and which optional interfaces were proven.

Each case is itself tested: at least one driver that breaks its rule is known to fail it, and stores that are slow, coarse or poor but
keep the rules are known to pass all of them.

This page is written by ` + "`go test ./dlocktest -run TestConformanceDoc -update`" + `.
`

// topics are the headings, by the first word of the ids under them.
var topics = map[string]string{
	"excl": "Exclusion", "token": "Tokens", "ttl": "Time to live", "renew": "Renewal", "batch": "Renewal in batches", "fence": "Fences",
	"wait": "Waiting in the store", "ctx": "Contexts", "key": "Keys", "outage": "Trouble", "inspect": "Inspection and breaking", "close": "Close",
	"ping": "Health", "dsn": "Opening by DSN", "lock": "Through a Locker: locking", "lease": "Through a Locker: leases", "loss": "Through a Locker: losses",
}

func TestConformanceDoc(t *testing.T) {
	want := conformance()
	if *update {
		if err := os.WriteFile(conformanceDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(conformanceDoc)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/conformance.md is out of step with the table of cases; run: go test ./dlocktest -run TestConformanceDoc -update")
	}
}

// The guide shows code that is built and tested.
func TestGuideShowsTheThirdPartyDriver(t *testing.T) {
	guide, err := os.ReadFile("../docs/writing-a-driver.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	err = fs.WalkDir(os.DirFS("../testdata/thirdparty"), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile("../testdata/thirdparty/" + path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(guide), "```go\n")[1:]
	for _, block := range blocks {
		if block, _, _ = strings.Cut(block, "```\n"); !strings.Contains(code.String(), block) {
			t.Errorf("testdata/thirdparty has no such code:\n%s", block)
		}
	}
	if len(blocks) < 5 {
		t.Errorf("the guide shows %d pieces of code, want it to walk through the driver", len(blocks))
	}
}

// conformance is the table of cases for people.
func conformance() string {
	var b strings.Builder
	b.WriteString(conformanceIntro)
	seen := map[string]bool{}
	for _, c := range cases {
		word, _, _ := strings.Cut(c.id, "-")
		if title := topics[word]; title != "" && !seen[word] {
			seen[word] = true
			fmt.Fprintf(&b, "\n## %s\n\n| case | about | rule | needs |\n|---|---|---|---|\n", title)
		}
		var needs []string
		for _, n := range c.needs {
			needs = append(needs, string(n))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.id, c.name, strings.TrimPrefix(c.rule, "Through a Locker: "), strings.Join(needs, ", "))
	}
	fmt.Fprintf(&b, "\n%d cases.\n", len(cases))
	return b.String()
}
