package dlocktest

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var waitLoadCases = []testCase{
	{"wait-release-race", "a release while it queues", "Wait gets the key also when it is released while Wait is about to queue.", []need{needWaiter}, waitReleaseRace},
	{"wait-dozens", "dozens of waits", "However many calls of one client wait, they all wait their turn, and the client's other calls are made in time.", []need{needWaiter}, waitDozens},
	{"wait-any-key", "keys of all kinds", "Wait wakes up for every key, however long it is and whatever bytes it contains.", []need{needWaiter}, waitAnyKey},
	{"wait-no-leak", "nothing stays behind", "A Wait that has returned leaves no goroutine behind.", []need{needWaiter}, waitNoLeak},
	{"wait-pushed", "the time of a hand-over", "A store that says it is pushed hands a key over in a few round trips, and no heart-beat has to come first.", []need{needWaiter}, waitPushed},
}

func waitAnyKey(t *caseT) {
	soon := t.soon()
	keys := []string{long("x"), long("y"), "a\x00b", "a\xff\xfe", "a\r\nb", " ", "*", "{a}", `a'b"`, "日本語", "%2F"}
	a, b := t.open(), t.open()
	var claims []driver.Claim
	var queue []*pending
	for _, key := range keys {
		c := t.claim(key, ample)
		t.acquire(a, c)
		claims, queue = append(claims, c), append(queue, t.enqueue(b, t.claim(key, ample)))
	}
	for i, p := range queue {
		t.release(a, claims[i])
		t.granted(p, soon)
		t.release(b, p.Claim)
	}
}

// waitReleaseRace holds hundreds of races, in which the release comes a little later each time.
func waitReleaseRace(t *caseT) {
	const rounds, steps = 40, 16
	workers := 8
	if t.store.Advance != nil {
		workers = 1
	}
	a, b := t.open(), t.open()
	soon, window := t.soon(), time.Millisecond+3*t.roundTrip()
	t.each(workers, func(worker int) {
		key := fmt.Sprintf("k%d", worker)
		for i := range t.rounds(rounds) {
			first := t.claim(key, ample)
			t.acquire(a, first)
			p := t.wait(b, t.claim(key, ample))
			t.pause(window * time.Duration((i*workers+worker)%steps) / steps)
			t.release(a, first)
			t.granted(p, soon)
			t.release(b, p.Claim)
		}
	})
}

func waitDozens(t *caseT) {
	const n = 30
	a, b := t.open(), t.open()
	ttl := t.steady() + n*t.roundTrip()
	soon := t.soon() + n*t.roundTrip()
	mine, first := t.claim("mine", ttl), t.claim("k", ample)
	t.acquire(a, first)
	t.acquire(b, mine)
	var queue []*pending
	for range n {
		queue = append(queue, t.wait(b, t.claim("k", ample)))
	}
	for range 4 {
		t.sleep(ttl / 3)
		t.renew(b, mine)
		for _, p := range queue {
			t.waits(p)
		}
	}
	t.taken(a, "mine")
	t.release(a, first)
	for len(queue) > 0 {
		next := -1
		t.until(soon, func() bool {
			next = slices.IndexFunc(queue, func(p *pending) bool { return isClosed(p.done) })
			return next >= 0
		})
		if next < 0 {
			t.Fatalf("%d of %d calls that wait for one key have not returned, and it was free for %v", len(queue), n, soon)
		}
		t.granted(queue[next], soon)
		t.release(b, queue[next].Claim)
		queue = slices.Delete(queue, next, next+1)
	}
}

// waitNoLeak counts the goroutines that a number of Waits started, be it by way of others: a goroutine has the labels of
// the one that started it. What the first Wait starts for all that follow is not counted.
func waitNoLeak(t *caseT) {
	const n, label = 30, "dlocktest-wait"
	a, b := t.open(), t.open()
	soon := t.soon()
	t.acquire(a, t.claim("k", ample))
	id := newToken()
	wait := func() {
		p := t.enqueue(b, t.claim("k", ample))
		p.cancel()
		if !t.await(p.done, soon) {
			t.Fatalf("Wait has not returned %v after its context ended", soon)
		}
		t.release(b, p.Claim)
	}
	wait()
	pprof.Do(t.ctx, pprof.Labels(label, id), func(context.Context) {
		for range t.rounds(n) {
			wait()
		}
	})
	left := 0
	if !t.until(soon, func() bool { left = labelled(id); return left < n/2 }) {
		t.Errorf("%d goroutines are left of %d Waits, which have all returned %v ago", left, n, soon)
	}
}

// labelled is how many goroutines have the given text in their labels.
func labelled(text string) int {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
	total := 0
	n := 0 // of the stack that is being read
	for line := range strings.Lines(profile.String()) {
		if strings.HasPrefix(line, "# labels: ") && strings.Contains(line, text) {
			total += n
		}
		_, _ = fmt.Sscanf(line, "%d @", &n)
	}
	return total
}

// waitPushed measures hand-overs and, beside each of them, a round trip. The time between queuing and release differs, so
// that no heart-beat can fall in with it.
func waitPushed(t *caseT) {
	const n = 31
	a, b := t.open(), t.open()
	soon := t.soon()
	var trips, handOvers []time.Duration
	for i := range t.rounds(n) {
		first := t.claim("k", ample)
		began := time.Now()
		t.acquire(a, first)
		trips = append(trips, time.Since(began))
		p := t.enqueue(b, t.claim("k", ample))
		t.pause(time.Duration(i%4) * time.Millisecond)
		began = time.Now()
		t.release(a, first)
		h := t.granted(p, soon)
		handOvers = append(handOvers, h.back.Sub(began))
		t.release(b, p.Claim)
	}
	handOver, trip := median(handOvers), median(trips)
	t.tb.Logf("dlocktest: the median hand-over took %v, and a round trip %v", handOver, trip)
	limit := 5*trip + time.Millisecond
	if t.real {
		limit += 9 * time.Millisecond // this machine may have much to do
	}
	if t.pushed && handOver > limit {
		t.Errorf("the median of %d hand-overs took %v, want at most %v with a round trip of %v", len(handOvers), handOver, limit, trip)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
