package dlocktest

import "time"

var hangCases = []testCase{
	{"hang-in-flight", "cancelled while the store hangs", "A call returns soon after its context ends, also on a connection that is open and silent, and does not claim to know what the store holds.", []need{needHang}, hanging(ctxInFlight)},
	{"hang-wait", "a wait that is not answered", "Wait has a limit of its own for each of its requests: one that the store does not answer becomes an error within seconds, although no context ends.", []need{needHang, needWaiter}, hangWait},
	{"hang-ends", "afterwards", "When a store that hung answers again the same client works again, and holds that have not expired are still there.", []need{needHang}, hanging(outageEnds)},
}

// hanging is the case for an outage in which the store is silent.
func hanging(run func(t *caseT)) func(t *caseT) {
	return func(t *caseT) {
		t.hangs = true
		run(t)
	}
}

func hangWait(t *caseT) {
	t.hangs = true
	b := t.open()
	t.free(b, "k")
	t.outage(true)
	p := t.wait(b, t.claim("k", ample))
	began := time.Now()
	if !t.await(p.done, callLimit) {
		t.Fatalf("Wait has not returned after %v, and the store did not answer", time.Since(began))
	}
	t.trouble("Wait that was not answered", p.err)
}
