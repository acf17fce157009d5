package dlocktest

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var waitLeaveCases = []testCase{
	{"wait-release-middle", "leaving from the middle", "Release takes a token that only waits out of the queue wherever it stands, and no other.", []need{needWaiter}, waitReleaseMiddle},
	{"wait-renew", "renewal by one who waits", "Renew by a token that only waits answers ErrNotOwner and changes nothing.", []need{needWaiter}, waitRenew},
	{"wait-no-overtaking-expiry", "no overtaking when a hold expires", "Acquire does not overtake the queue when the holder's TTL has passed.", []need{needWaiter}, waitNoOvertakingExpiry},
	{"wait-no-overtaking-delete", "no overtaking when a hold is deleted", "Acquire does not overtake the queue when the hold was deleted from outside.", []need{needWaiter, needDelete}, waitNoOvertakingDelete},
	{"wait-vanished-silently", "clients that are killed", "A waiter whose client vanished without Close is passed over, once its TTL has passed at the latest.", []need{needWaiter, needVanish}, waitVanishedSilently},
}

func waitReleaseMiddle(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	soon := t.soon()
	queue := t.queue(first, b, 5)
	for _, gone := range []*pending{queue[2], queue[4]} {
		gone.cancel()
		t.await(gone.done, soon)
		t.release(gone.b, gone.Claim)
		t.notOwner("a second Release of a token that waited", t.tryRelease(gone.b, gone.Claim))
	}
	t.inTurn(b, first, []*pending{queue[0], queue[1], queue[3]})
	t.free(b, "k")
}

func waitRenew(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	first := t.claim("k", ample)
	t.acquire(a, first)
	p := t.enqueue(b, t.claim("k", ample))
	t.notOwner("Renew by a token that waits", t.tryRenew(b, p.Claim))
	if _, ok := b.(driver.BatchRenewer); ok {
		t.notOwner("RenewBatch by a token that waits", t.renewBatch(b, []driver.Claim{p.Claim})[0].Err)
	}
	t.waits(p)
	t.renew(a, first)
	t.release(a, first)
	t.granted(p, soon)
	t.release(b, p.Claim)
}

func waitNoOvertakingExpiry(t *caseT) {
	thief, b := t.open(), t.open()
	for range t.rounds(5) {
		h := t.acquire(t.open(), t.claim("k", t.ttl))
		t.notOvertaken(thief, t.enqueue(b, t.claim("k", t.steady())), h.start().Add(h.ttl()))
	}
}

func waitNoOvertakingDelete(t *caseT) {
	thief, b := t.open(), t.open()
	for range t.rounds(5) {
		t.acquire(t.open(), t.claim("k", ample))
		p := t.enqueue(b, t.claim("k", t.steady()))
		t.store.Delete("k")
		t.notOvertaken(thief, p, time.Now())
	}
}

// notOvertaken asserts that thief does not get the key before p does, who is the first in line. The key becomes free at
// the given time, and p may need its TTL to notice it.
func (t *caseT) notOvertaken(thief driver.Backend, p *pending, free time.Time) {
	t.tb.Helper()
	limit := time.Until(free) + p.TTL + late + t.soon()
	t.sleep(time.Until(free) - 5*time.Millisecond - 2*t.roundTrip())
	for look, end := 0, time.Now().Add(limit); !isClosed(p.done) && time.Now().Before(end); look++ {
		if c := t.claim("k", ample); t.got(thief, c) {
			// The waiter may have got the key meanwhile and lost it again by its TTL; its Wait then returned before.
			if !isClosed(p.done) {
				t.Fatalf("Acquire got the key %v after it became free, and overtook one who waits for it", time.Since(free))
			}
			t.release(thief, c)
		}
		t.sleep(tick(look) / 10)
	}
	t.granted(p, t.soon())
	_ = t.tryRelease(p.b, p.Claim) // its TTL may have passed
}

func waitVanishedSilently(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	soon := t.soon()
	t.acquire(b, first)
	gone, next := t.open(), t.open()
	// The one who vanishes may be kept in the queue for its TTL, and would have the key for as long again.
	t.enqueue(gone, t.claim("k", 2*soon))
	p := t.enqueue(next, t.claim("k", ample))
	t.store.Vanish(gone)
	t.sleep(2*soon + late)
	t.waits(p)
	t.release(b, first)
	t.granted(p, soon)
	t.release(next, p.Claim)
}

// waitCall is Wait as one of the calls that may be ended.
func (t *caseT) waitCall() backendCall {
	return backendCall{"Wait", func(ctx context.Context, b driver.Backend, c driver.Claim) error {
		_, err := t.waitIn(ctx, b, c)
		return err
	}}
}
