package model

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// number returns what the environment says, or n.
func number(t *testing.T, name string, n uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return n
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// TestModel runs the protocol in many worlds, DLOCK_MODEL_SEEDS of them. A seed that fails is run again to tell how it came to that.
func TestModel(t *testing.T) {
	n := uint64(20_000)
	if testing.Short() {
		n = 4_000
	}
	n = number(t, "DLOCK_MODEL_SEEDS", n)
	var events atomic.Int64
	var seen [sights]atomic.Int64
	t.Run("worlds", func(t *testing.T) {
		for k, kind := range kinds {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				for seed := uint64(k); seed < n; seed += uint64(len(kinds)) {
					r := Run(Config{Seed: seed, Rules: AllRules()})
					if r.Violation != "" {
						t.Fatal(story(seed, AllRules()))
					}
					events.Add(int64(r.Events))
					for i, c := range r.Seen {
						seen[i].Add(int64(c))
					}
				}
			})
		}
	})
	t.Logf("%d seeds, %d events", n, events.Load())
	for i := range seen {
		c := seen[i].Load()
		t.Logf("%8d %v", c, sight(i))
		if c == 0 && !t.Failed() {
			t.Errorf("no world had %v: the worlds are too tame to prove anything", sight(i))
		}
	}
}

// without returns all rules but one.
func without(t *testing.T, rule string) Rules {
	t.Helper()
	rules := AllRules()
	f := reflect.ValueOf(&rules).Elem().FieldByName(rule)
	if !f.IsValid() {
		t.Fatalf("there is no rule %s", rule)
	}
	f.SetBool(false)
	return rules
}

func ruleNames() []string {
	var names []string
	for f := range reflect.TypeFor[Rules]().Fields() {
		names = append(names, f.Name)
	}
	return names
}

// class is the kind of a violation: the word that its text begins with.
func class(violation string) string {
	c, _, _ := strings.Cut(violation, ":")
	return c
}

// story is the trace of a seed.
func story(seed uint64, rules Rules) string {
	r := Run(Config{Seed: seed, Rules: rules, Trace: true})
	return fmt.Sprintf("seed %d: %s\n%s\n%s", seed, r.Violation, r.World, r.Trace)
}

// TestAllRulesAreOn: a rule that was forgotten in AllRules would be tested by nothing.
func TestAllRulesAreOn(t *testing.T) {
	v := reflect.ValueOf(AllRules())
	for i, name := range ruleNames() {
		if !v.Field(i).Bool() {
			t.Errorf("AllRules has %s off", name)
		}
	}
}

// TestSameSeedSameStory: a seed that fails must fail again.
func TestSameSeedSameStory(t *testing.T) {
	for seed := range uint64(200) {
		if a, b := story(seed, AllRules()), story(seed, AllRules()); a != b {
			t.Fatalf("seed %d told two different stories", seed)
		}
	}
}

// TestSeed tells the story of DLOCK_MODEL_SEED, without the rule DLOCK_MODEL_RULE if that is set. Run it with -v.
func TestSeed(t *testing.T) {
	if os.Getenv("DLOCK_MODEL_SEED") == "" {
		t.Skip("DLOCK_MODEL_SEED is not set")
	}
	rules := AllRules()
	if rule := os.Getenv("DLOCK_MODEL_RULE"); rule != "" {
		rules = without(t, rule)
	}
	t.Log(story(number(t, "DLOCK_MODEL_SEED", 0), rules))
}

// TestFindSeeds looks for the seeds of TestEachRuleIsNeeded among the first DLOCK_MODEL_FIND ones: to be used when the model has changed.
func TestFindSeeds(t *testing.T) {
	n := number(t, "DLOCK_MODEL_FIND", 0)
	if n == 0 {
		t.Skip("DLOCK_MODEL_FIND is not set")
	}
	for _, rule := range ruleNames() {
		if only := os.Getenv("DLOCK_MODEL_RULE"); only != "" && only != rule {
			continue
		}
		rules := without(t, rule)
		count, first := map[string]int{}, map[string]uint64{}
		for seed := range n {
			v := Run(Config{Seed: seed, Rules: rules, Outcome: true}).Violation
			if v == "" {
				continue
			}
			c := class(v)
			if count[c]++; count[c] == 1 {
				first[c] = seed
			}
		}
		t.Logf("%-22s %v first %v", rule, count, first)
	}
}
