package bench

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

var (
	rounds = flag.Int("rounds", 0, "how many rounds TestCompare makes; 0: none")
	only   = flag.String("only", "", "a pattern for the benchmarks that TestCompare runs, such as ^(A|B)$")
	among  = flag.String("among", "", "a pattern for the contenders that TestCompare runs")
)

// TestCompare runs every benchmark of every contender once per round, so that what else the machine does falls on all of them, and prints medians. It fails only
// if a contender does, never because one is slow.
func TestCompare(t *testing.T) {
	if *rounds == 0 {
		t.Skip("-args -rounds 5 makes the comparison, which takes long")
	}
	compare(t, newTarget(t), scenarios)
}

func compare(t *testing.T, server *target, scenarios []scenario) {
	wanted, who := regexp.MustCompile(*only), regexp.MustCompile(*among)
	results := map[string]map[string][]float64{} // of scenario/contender: metric to values
	for round := range *rounds {
		for _, s := range scenarios {
			for _, c := range s.contenders {
				if !wanted.MatchString(s.name) || !who.MatchString(c.name) {
					continue
				}
				r := testing.Benchmark(func(b *testing.B) { s.run(b, server, c) })
				if r.N == 0 {
					t.Errorf("round %d: %s of %s failed", round+1, s.name, c.name)
				}
				into := results[s.name+"/"+c.name]
				if into == nil {
					into = map[string][]float64{}
					results[s.name+"/"+c.name] = into
				}
				for metric, value := range r.Extra {
					into[metric] = append(into[metric], value)
				}
			}
		}
	}
	for _, s := range scenarios {
		printTable(s, results)
	}
}

// printTable prints a scenario's medians, and each main figure as a multiple of the first contender's.
func printTable(s scenario, results map[string]map[string][]float64) {
	var names []string // of the metrics, the main one first
	for _, c := range s.contenders {
		for metric := range results[s.name+"/"+c.name] {
			if metric != s.main && !slices.Contains(names, metric) {
				names = append(names, metric)
			}
		}
	}
	slices.Sort(names)
	names = append([]string{s.main}, names...)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	first := 0.0
	for _, c := range s.contenders {
		metrics := results[s.name+"/"+c.name]
		if len(metrics[s.main]) == 0 {
			continue
		}
		figure := median(metrics[s.main])
		if first == 0 {
			_, _ = fmt.Fprintf(w, "\n%s\t%s\tratio\t%s\t\n", s.name, s.main, strings.Join(names[1:], "\t"))
			first = figure
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%.2f\t", c.name, short(figure), figure/first)
		for _, metric := range names[1:] {
			text := ""
			if values := metrics[metric]; len(values) > 0 {
				text = short(median(values))
			}
			_, _ = fmt.Fprintf(w, "%s\t", text)
		}
		_, _ = fmt.Fprintln(w)
	}
	_ = w.Flush()
}

// short writes a figure with three digits or more.
func short(v float64) string {
	switch {
	case v >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func TestEveryScenarioHasDlockAndSomethingToCompareItWith(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range scenarios {
		if seen[s.name] {
			t.Errorf("there are two scenarios %s", s.name)
		}
		seen[s.name] = true
		if n := len(s.contenders); n < 2 || s.contenders[n-1].name != ours.name {
			t.Errorf("scenario %s has %d contenders, want two or more, and dlock as the last", s.name, n)
		}
	}
	if got := len(slices.Collect(maps.Keys(seen))); got != 9 {
		t.Errorf("%d scenarios, want 9", got)
	}
}
