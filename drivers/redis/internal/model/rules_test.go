package model

import (
	"slices"
	"testing"
)

// needed has, for each rule, a seed that goes wrong without it, and how. When a change of the model makes a seed useless, TestFindSeeds finds others.
var needed = []struct {
	rule string
	seed uint64
	want string // how the violation begins; "queue": the keys are out of order, and what would come of that other rules mend
}{
	{"StartAtSend", 78, "exclusion"},
	{"Margin", 90, "exclusion"},
	{"StartNotLastSent", 647, "exclusion"},
	{"StartNotLastAcked", 24936, "exclusion"},
	{"DropStale", 25986, "exclusion"},
	{"FreshReplyWins", 1725, "stranded"},
	{"CancelPastD", 628, "orphan"},
	{"RefreshOnSameToken", 18, "exclusion"},
	{"ReassertRefreshes", 153, "exclusion"},
	{"NeverShorten", 164, "exclusion"},
	{"DeadlineFromAsked", 3, "deadline"},
	{"NewTokenAfterRelease", 74, "exclusion"},
	{"ReassertNeverAdds", 12, "orphan"},
	{"RenewNeverCreates", 28, "orphan"},
	{"CancelUnknown", 17155, "orphan"},
	{"CancelSparesHeld", 7, "exclusion"},
	{"CancelSparesRetry", 324, "exclusion"},
	{"CleanupRepeats", 609, "orphan"},
	{"CleanupCountsAll", 22949, "orphan"},
	{"DirectHandover", 1, "requests"},
	{"MarkAfterHandover", 16, "stranded"},
	{"QueueNotOvertaken", 9200, "order"},
	{"EnqueueOnce", 24, "orphan"},
	{"TakerLeavesQueue", 1286, "queue"},
	{"PromoteWhenFree", 16, "stranded"},
	{"LivenessSkip", 4724, "stranded"},
	{"ReceiverSkip", 114, "liveness"},
	{"KeysExpire", 0, "orphan"},
	{"PassOnUntilAlive", 107, "told"},
	{"SubscribeFirst", 8000, "order"},
	{"ReassertPeriodic", 186, "stranded"},
	{"AskWhenUnsure", 109, "notice"},
	{"ReassertOnReconnect", 83, "notice"},
	{"ReconnectOnMissing", 37, "notice"},
	{"TakenNeedsNoMessage", 16, "churn"},
	{"BlameTheRightOne", 83, "churn"},
	{"PTTLTimer", 40, "stranded"},
	{"HeadPolls", 66, "stranded"},
	{"AskWhenFree", 10617, "told"},
	{"FenceFromTime", 35, "fence"},
	{"FenceFromStored", 227, "fence"},
	{"FenceRunEnd", 227, "fence"},
	{"KeepFenceWhileHeld", 10, "fence"},
	{"KeepFenceAhead", 395, "fence"},
	{"RenewChecksFence", 4348, "fence"},
}

// TestEachRuleIsNeeded runs the seed of every rule with all rules and without the one.
func TestEachRuleIsNeeded(t *testing.T) {
	var covered []string
	for _, n := range needed {
		covered = append(covered, n.rule)
		t.Run(n.rule, func(t *testing.T) {
			t.Parallel()
			if r := Run(Config{Seed: n.seed, Rules: AllRules()}); r.Violation != "" {
				t.Errorf("with all rules seed %d goes wrong: %s", n.seed, r.Violation)
			}
			r := Run(Config{Seed: n.seed, Rules: without(t, n.rule), Outcome: n.want != "queue"})
			if got := class(r.Violation); got != n.want {
				t.Errorf("without the rule seed %d has the violation %q, want one of the kind %q; find another seed with DLOCK_MODEL_FIND=30000 DLOCK_MODEL_RULE=%s go test -v -run TestFindSeeds",
					n.seed, r.Violation, n.want, n.rule)
			}
			t.Log(r.Violation)
		})
	}
	for _, rule := range ruleNames() {
		if !slices.Contains(covered, rule) {
			t.Errorf("no seed shows that the rule %s is needed", rule)
		}
	}
}
