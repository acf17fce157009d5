package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var hangCases = []testCase{
	{"hang-in-flight", "cancelled while the store hangs", "A call returns soon after its context ends, also on a connection that is open and silent, and does not claim to know what the store holds.", []need{needHang}, hanging(ctxInFlight)},
	{"hang-wait", "a wait that is not answered", "Wait has a limit of its own for each of its requests: one that the store does not answer becomes an error within seconds, although no context ends.", []need{needHang, needWaiter}, hangWait},
	{"hang-release", "release behind an unanswered acquire", "Release answers nil or ErrNotOwner only when no earlier Acquire or Wait of the token by the same client can still be applied.", []need{needHang}, hangRelease},
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

// hangRelease gives up on acquisitions that the store has not answered, releases them at the moment
// at which it answers again, and looks whether any of them comes late. An error of unknown outcome
// is asked again, as the engine does.
func hangRelease(t *caseT) {
	t.hangs = true
	a, b := t.open(), t.open()
	patience := 100*time.Millisecond + 5*t.roundTrip()
	acquire := []backendCall{calls[0], calls[0]}
	if t.supports(a, needWaiter) {
		acquire[1] = t.waitCall()
	}
	claims, errs := make([]driver.Claim, 40), make([]error, 40)
	for i := range claims {
		claims[i] = t.claim(fmt.Sprint("k", i), ample)
	}
	t.outage(true)
	t.each(len(claims), func(i int) {
		ctx, cancel := t.limited(patience)
		defer cancel()
		_ = acquire[i%2].make(ctx, a, claims[i])
	})
	released := t.beside(len(claims), func(i int) {
		for look, end := 0, time.Now().Add(t.soon()); time.Now().Before(end); look++ {
			ctx, cancel := context.WithTimeout(t.ctx, time.Second+5*t.trip)
			errs[i] = a.Release(ctx, claims[i])
			cancel()
			if errs[i] == nil || errors.Is(errs[i], driver.ErrNotOwner) {
				return
			}
			t.pause(tick(look))
		}
	})
	t.pause(20 * time.Millisecond)
	t.outage(false)
	t.join(released)
	t.pause(patience)
	for i, c := range claims {
		settled := errs[i] == nil || errors.Is(errs[i], driver.ErrNotOwner)
		if settled && !t.got(b, t.claim(c.Key, ample)) {
			t.Fatalf("Release returned %v, and then %s by the same token that had not been answered got the key", errs[i], acquire[i%2].op)
		}
	}
}
