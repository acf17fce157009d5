package dlocktest

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

var mutantRuns = flag.Int("mutant.runs", 2, "how often each mutant must be killed by each case that is named for it")

// mutant is a driver that is broken in one way, and the cases that must find it out.
type mutant struct {
	bug string   // as the toy store knows it
	by  []string // ids of cases, each of which must fail
	odd oddities // what else the store is like

	realTime bool // virtual time does not show it
}

var mutants = []mutant{
	{bug: "client-has-its-own-locks", by: []string{"excl-two-clients", "lock-excludes", "lock-meets-spi"}},
	{bug: "client-is-the-owner", by: []string{"excl-one-client"}},
	{bug: "acquire-checks-then-acts", by: []string{"excl-race", "excl-counter", "lock-counter"}},
	{bug: "free-key-refused-now-and-then", by: []string{"excl-handover", "lock-cycles"}},
	{bug: "release-does-nothing", by: []string{"excl-handover", "lock-leases-queue", "unlock-cancelled", "lock-close-releases"}},
	{bug: "expired-hold-is-free-for-all", by: []string{"excl-after-expiry"}},
	{bug: "key-hashed-to-few", by: []string{"excl-many-keys"}},
	{bug: "breaks-from-the-10th-client", by: []string{"excl-many-clients", "wait-fifo"}},
	{bug: "takeover-checks-then-acts", by: []string{"excl-expiry-race"}},
	{bug: "takeover-ignores-a-renewal", by: []string{"excl-expiry-race"}},

	{bug: "release-by-any-token", by: []string{"token-release-wrong"}},
	{bug: "renewal-by-any-token", by: []string{"token-renew-wrong", "loss-taken"}},
	{bug: "renewal-refused-but-made", by: []string{"token-renew-wrong"}},
	{bug: "token-compared-by-prefix", by: []string{"token-near-miss"}},
	{bug: "token-may-be-cut", by: []string{"token-near-miss"}},
	{bug: "token-compared-without-case", by: []string{"token-near-miss"}},
	{bug: "token-found-in-the-owner", by: []string{"token-owner-text"}},
	{bug: "owner-text-is-the-token", by: []string{"token-same-owner"}},
	{bug: "renewal-by-token-alone", by: []string{"token-other-key"}},
	{bug: "release-by-token-alone", by: []string{"token-other-key"}},
	{bug: "released-token-still-releases", by: []string{"token-stale"}},
	{bug: "expired-token-still-releases", by: []string{"token-stale-expired"}},
	{bug: "release-checks-then-acts", by: []string{"token-atomic-release"}},
	{bug: "renew-checks-then-acts", by: []string{"token-atomic-renew"}},
	{bug: "same-token-refused", by: []string{"token-again"}},
	{bug: "same-token-keeps-its-ttl", by: []string{"token-again-ttl"}},
	{bug: "same-token-shortens", by: []string{"token-again-never-shortens"}},
	{bug: "same-token-gets-another-fence", by: []string{"token-again-fence"}},
	{bug: "refused-attempt-refreshes", by: []string{"token-refused-changes-nothing"}},
	{bug: "release-unchecked-near-the-end", by: []string{"token-last-moments"}},
	{bug: "late-release-unchecked", by: []string{"token-last-moments"}},
	{bug: "release-of-the-expired-is-nil", by: []string{"token-release-expired"}},
	{bug: "same-token-gets-another-fence-after-a-renewal", by: []string{"token-again-fence"}},
	{bug: "release-always-nil", by: []string{"token-release-once", "loss-unlock"}},

	{bug: "ttl-ignored", by: []string{"ttl-expires", "lease-runs-out"}},
	{bug: "client-renews-by-itself", by: []string{"ttl-expires"}},
	{bug: "ttl-floored-in-silence", by: []string{"ttl-never-early"}},
	{bug: "ttl-in-whole-seconds", by: []string{"ttl-never-early"}},
	{bug: "ttl-halved", by: []string{"ttl-never-early"}},
	{bug: "ttl-floored-to-milliseconds", by: []string{"ttl-granted"}},
	{bug: "ttl-overflows", by: []string{"ttl-long"}},
	{bug: "start-at-the-reply", by: []string{"ttl-start", "lease-deadline"}},
	{bug: "start-in-the-future", by: []string{"ttl-start"}},
	{bug: "start-by-the-wall-clock", by: []string{"ttl-start-monotonic"}, realTime: true},
	{bug: "grant-ttl-doubled", by: []string{"lease-deadline"}},

	{bug: "renewal-does-nothing", by: []string{"renew-keeps", "lease-renewed"}},
	{bug: "renewal-halves", by: []string{"renew-full-ttl"}},
	{bug: "renewal-adds", by: []string{"renew-sets"}},
	{bug: "renewal-by-the-first-ttl", by: []string{"renew-longer", "lease-extend"}},
	{bug: "renewal-shortens", by: []string{"renew-never-shortens"}},
	{bug: "renewal-tells-what-is-left", by: []string{"renew-granted"}},
	{bug: "renewal-tells-the-first-ttl", by: []string{"renew-granted"}},
	{bug: "batch-tells-what-is-left", by: []string{"renew-granted"}},
	{bug: "same-token-told-what-is-left", by: []string{"renew-granted"}},
	{bug: "renewal-creates", by: []string{"renew-never-creates", "loss-deleted"}},
	{bug: "renewal-revives-the-expired", by: []string{"renew-after-expiry"}},
	{bug: "renewal-answered-from-a-cache", by: []string{"renew-fresh"}},

	{bug: "batch-answers-in-another-order", by: []string{"batch-equals-single"}},
	{bug: "batch-fails-as-a-whole", by: []string{"batch-equals-single"}},
	{bug: "batch-goes-by-the-first-ttl", by: []string{"batch-renews"}},
	{bug: "batch-does-nothing", by: []string{"batch-renews", "lease-many-renewed"}},
	{bug: "batch-ends-at-100", by: []string{"batch-large"}},
	{bug: "batch-fails-above-2000", by: []string{"batch-thousands"}},
	{bug: "batch-chunks-come-as-they-will", by: []string{"batch-large"}},
	{bug: "batch-chunk-fails-as-a-whole", by: []string{"batch-large"}},
	{bug: "batch-shortens", by: []string{"batch-never-shortens"}},
	{bug: "batch-answers-nothing-with-one", by: []string{"batch-empty"}},

	{bug: "fence-repeats", by: []string{"fence-rises", "lease-fence"}},
	{bug: "fence-by-the-clock-in-ms", by: []string{"fence-rises"}},
	{bug: "fence-per-client", by: []string{"fence-rises"}},
	{bug: "fence-runs-overlap", by: []string{"fence-rises"}, odd: oddities{runs: 8}},
	{bug: "fence-reset-on-expiry", by: []string{"fence-rises-expiry"}},
	{bug: "fence-reset-on-break", by: []string{"fence-rises-break"}},
	{bug: "fence-reset-on-delete", by: []string{"fence-rises-delete"}},
	{bug: "fence-reset-on-close", by: []string{"fence-rises-reopen"}},
	{bug: "token-remembers-its-fence", by: []string{"fence-rises-token"}},
	{bug: "fence-forgotten-after-5s", by: []string{"fence-rises-idle"}},
	{bug: "fence-changes-on-renewal", by: []string{"fence-same"}},
	{bug: "fence-taken-by-losers", by: []string{"fence-same"}},
	{bug: "fence-taken-before-the-lock", by: []string{"fence-contended"}},
	{bug: "fence-wraps", by: []string{"fence-thousand"}},
	{bug: "fence-in-a-float", by: []string{"fence-thousand"}},

	{bug: "wait-start-missing", by: []string{"wait-free"}},
	{bug: "wait-answers-held", by: []string{"wait-blocks"}},
	{bug: "wake-up-lost", by: []string{"wait-wakes", "lock-waits"}},
	{bug: "expiry-unnoticed-by-waiters", by: []string{"wait-expiry", "lock-holder-expires"}},
	{bug: "queue-is-lifo", by: []string{"wait-fifo", "lock-fifo"}},
	{bug: "wait-polls", by: []string{"wait-fifo", "lock-fifo"}},
	{bug: "second-wait-goes-to-the-back", by: []string{"wait-again"}},
	{bug: "acquire-overtakes", by: []string{"wait-no-overtaking"}},
	{bug: "handed-over-stays-queued", by: []string{"wait-acquire-leaves"}},
	{bug: "queued-is-never-said", by: []string{"wait-queued", "lock-gives-up"}},
	{bug: "queued-is-said-too-soon", by: []string{"wait-queued"}},
	{bug: "wait-ignores-its-context", by: []string{"wait-cancel"}},
	{bug: "cancelled-wait-says-held", by: []string{"wait-cancel"}},
	{bug: "release-leaves-the-queue-entry", by: []string{"wait-release-queued"}},
	{bug: "release-leaves-the-queue-in-words-only", by: []string{"wait-release-queued", "lock-cancelled-waiter"}},
	{bug: "given-cannot-be-released", by: []string{"wait-release-given"}},
	{bug: "wait-start-at-the-call", by: []string{"wait-start"}},
	{bug: "wait-start-at-the-reply", by: []string{"wait-start", "lease-deadline-wait"}},
	{bug: "vanished-stays-queued", by: []string{"wait-vanished"}},
	{bug: "no-liveness-of-waiters", by: []string{"wait-vanished-silently"}},
	{bug: "release-of-a-waiter-pops-the-head", by: []string{"wait-release-middle"}},
	{bug: "renewal-of-a-waiter", by: []string{"wait-renew"}},
	{bug: "acquire-overtakes-at-expiry", by: []string{"wait-no-overtaking-expiry"}},
	{bug: "acquire-overtakes-after-a-delete", by: []string{"wait-no-overtaking-delete"}},
	{bug: "wake-up-lost-while-queuing", by: []string{"wait-release-race"}},
	{bug: "waits-use-up-a-pool", by: []string{"wait-dozens"}},
	{bug: "queue-is-full-at-10", by: []string{"wait-dozens", "wait-fifo"}},
	{bug: "no-wake-up-for-long-keys", by: []string{"wait-any-key"}},
	{bug: "no-wake-up-for-binary-keys", by: []string{"wait-any-key"}},
	{bug: "goroutine-per-wait", by: []string{"wait-no-leak"}},
	{bug: "push-is-a-heartbeat", by: []string{"wait-pushed"}},
	{bug: "one-wait-at-a-time", by: []string{"wait-many-keys"}},

	{bug: "context-error-is-held", by: []string{"ctx-done"}},
	{bug: "context-error-is-not-owner", by: []string{"ctx-done"}},
	{bug: "context-ignored-in-an-outage", by: []string{"ctx-in-flight"}},
	{bug: "timeout-in-flight-is-held", by: []string{"hang-in-flight"}},
	{bug: "timeout-in-flight-is-not-owner", by: []string{"hang-in-flight"}},
	{bug: "cancelled-in-flight-is-held", by: []string{"ctx-in-flight", "hang-in-flight"}, odd: oddities{hang: true}},
	{bug: "batch-ignores-its-context-in-an-outage", by: []string{"ctx-in-flight", "hang-in-flight"}, odd: oddities{hang: true}},
	{bug: "wait-ignores-its-context-in-an-outage", by: []string{"ctx-in-flight", "hang-in-flight"}, odd: oddities{hang: true}},
	{bug: "wait-has-no-limit", by: []string{"hang-wait"}},
	{bug: "release-forgets-what-was-sent", by: []string{"hang-release"}, odd: oddities{stragglers: true}},
	{bug: "client-stuck-after-a-hang", by: []string{"hang-ends"}},
	{bug: "interruptible-but-slow", by: []string{"ctx-interruptible"}},
	{bug: "hold-ends-with-its-context", by: []string{"ctx-after", "lease-context"}},
	{bug: "acquire-blocks", by: []string{"ctx-acquire-returns", "trylock-never-waits"}},

	{bug: "key-cut-at-nul", by: []string{"key-nul", "lock-hostile-keys"}},
	{bug: "key-loses-line-ends", by: []string{"key-crlf"}},
	{bug: "key-trimmed", by: []string{"key-blank"}},
	{bug: "key-made-valid-utf8", by: []string{"key-utf8"}},
	{bug: "key-normalized", by: []string{"key-unicode"}},
	{bug: "key-lower-cased", by: []string{"key-case"}},
	{bug: "key-is-its-hash-tag", by: []string{"key-braces"}},
	{bug: "key-unescaped", by: []string{"key-percent"}},
	{bug: "key-loses-slashes", by: []string{"key-slashes"}},
	{bug: "key-is-a-clean-path", by: []string{"key-dots"}},
	{bug: "key-made-a-file-name", by: []string{"key-wildcards"}},
	{bug: "key-loses-its-prefix", by: []string{"key-separators", "lock-prefixes"}},
	{bug: "key-loses-its-suffix", by: []string{"key-companions"}},
	{bug: "key-has-a-companion", by: []string{"key-companions"}},
	{bug: "key-cut-at-255-bytes", by: []string{"key-long"}},
	{bug: "key-cut-at-1000-bytes", by: []string{"key-long", "lock-hostile-keys"}},
	{bug: "key-cut-at-1100-bytes", by: []string{"key-long"}},
	{bug: "key-loses-astral-characters", by: []string{"key-emoji"}},
	{bug: "key-read-as-a-number", by: []string{"key-numbers"}},
	{bug: "key-hashed-to-16-bits", by: []string{"key-thousands"}},

	{bug: "outage-is-held", by: []string{"outage-not-held", "trylock-unknown"}},
	{bug: "outage-is-not-owner", by: []string{"outage-not-owner", "loss-not-by-one-failure"}},
	{bug: "renew-nil-in-an-outage", by: []string{"outage-not-owner", "loss-outage"}},
	{bug: "outage-is-permanent", by: []string{"outage-not-permanent", "lock-outage"}},
	{bug: "outage-is-held-for-wait", by: []string{"outage-wait"}},
	{bug: "outage-is-not-owner-for-batches", by: []string{"outage-batch"}},
	{bug: "client-broken-by-an-outage", by: []string{"outage-ends"}},
	{bug: "error-shows-a-token", by: []string{"error-no-token"}},
	{bug: "wait-error-shows-a-token", by: []string{"error-no-token"}},

	{bug: "inspect-shows-the-first-ttl", by: []string{"inspect-holder"}},
	{bug: "inspect-shows-another-fence", by: []string{"inspect-holder"}},
	{bug: "inspect-shows-the-last-fence", by: []string{"inspect-free"}},
	{bug: "inspect-shows-the-expired", by: []string{"inspect-expired"}},
	{bug: "inspect-shows-the-queue-backwards", by: []string{"inspect-waiters"}},
	{bug: "inspect-shows-the-token", by: []string{"inspect-no-token"}},
	{bug: "inspect-shows-the-tokens-of-waiters", by: []string{"inspect-no-token"}},
	{bug: "list-ignores-the-prefix", by: []string{"list-prefix"}},
	{bug: "list-takes-patterns", by: []string{"list-prefix"}},
	{bug: "list-by-like", by: []string{"list-prefix"}},
	{bug: "list-is-one-page", by: []string{"list-many"}},
	{bug: "list-yields-twice", by: []string{"list-many"}},
	{bug: "list-does-not-stop", by: []string{"list-stop"}},
	{bug: "break-does-nothing", by: []string{"break-frees", "loss-broken"}},
	{bug: "break-ignores-the-fence", by: []string{"break-by-fence"}},
	{bug: "break-forgets-the-queue", by: []string{"break-passes-on"}},

	{bug: "close-does-nothing", by: []string{"close-refuses"}},
	{bug: "close-leaves-renewals", by: []string{"close-no-renewal"}},
	{bug: "close-lets-calls-finish", by: []string{"close-in-flight"}},
	{bug: "close-leaves-waits", by: []string{"close-ends-wait"}},
	{bug: "close-removes-every-lock", by: []string{"close-others", "lock-close-others"}},
	{bug: "close-ends-the-waits-of-all", by: []string{"close-others-wait"}},

	{bug: "ping-nil-after-close", by: []string{"ping-answers"}},
	{bug: "ping-always-nil", by: []string{"ping-outage", "lock-ping"}},
	{bug: "ping-writes", by: []string{"ping-changes-nothing"}},
	{bug: "doctor-tells-the-best-first", by: []string{"doctor-findings"}},
	{bug: "doctor-has-levels-of-its-own", by: []string{"doctor-findings"}},
	{bug: "inline-but-slow", by: []string{"inline"}, odd: oddities{latency: 20e6}},

	{bug: "dsn-opens-another-store", by: []string{"dsn-opens-store"}},
	{bug: "dsn-connects-at-once", by: []string{"dsn-no-network"}},
	{bug: "dsn-of-any-kind-accepted", by: []string{"dsn-invalid"}},
}

// recorder takes what a case reports instead of the test.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// why returns the last line of the first failure, which tells what was seen.
func (r *recorder) why() string {
	lines := strings.Split(r.failures[0], "\n\t")
	why, _, _ := strings.Cut(lines[min(1, len(lines)-1)], "\n")
	return why[:min(len(why), 120)]
}

// attack runs c on a mutant.
func (m mutant) attack(t *testing.T, c *testCase) (rec *recorder, skip string) {
	around := synctest.Test
	if m.realTime {
		around = func(t *testing.T, f func(t *testing.T)) { f(t) }
	}
	around(t, func(t *testing.T) {
		rec = &recorder{TB: t}
		skip, _ = runCase(rec, c, newToy(m.bug, m.odd).store(rec), pace{ttl: defaultMinTTL, limit: 2 * caseLimit, pushed: true})
	})
	return rec, skip
}

func caseByID(id string) *testCase {
	if i := slices.IndexFunc(cases, func(c testCase) bool { return c.id == id }); i >= 0 {
		return &cases[i]
	}
	return nil
}

// TestMutants proves that the suite finds what it is there to find.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.bug, func(t *testing.T) {
			var whys []string
			for _, id := range m.by {
				c := caseByID(id)
				if c == nil {
					t.Fatalf("there is no case %q", id)
				}
				for i := range *mutantRuns {
					rec, skip := m.attack(t, c)
					if len(rec.failures) == 0 {
						t.Fatalf("%s survived %s in run %d (skipped: %q)", m.bug, id, i+1, skip)
					}
					if i == 0 {
						whys = append(whys, id+" ("+rec.why()+")")
					}
				}
			}
			t.Logf("killed %s by %s", m.bug, strings.Join(whys, ", "))
		})
	}
}

func TestEveryCaseKillsAMutant(t *testing.T) {
	kills := map[string]int{}
	for _, m := range mutants {
		for _, id := range m.by {
			kills[id]++
		}
	}
	for _, c := range cases {
		if kills[c.id] == 0 {
			t.Errorf("no mutant shows that %s can fail", c.id)
		}
	}
}

func TestCaseIDsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases {
		if seen[c.id] || c.id == "" || c.name == "" || c.rule == "" || c.run == nil {
			t.Errorf("the case %+v lacks something, or has another one's id", c.id)
		}
		seen[c.id] = true
	}
}
