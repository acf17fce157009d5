package dlocktest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var waitCases = []testCase{
	{"wait-free", "a free key", "Wait for a key that nobody holds is granted at once, with Grant.Start set.", []need{needWaiter}, waitFree},
	{"wait-blocks", "a held key", "Wait for a key that is held returns when it gets the key, and not with ErrHeld before.", []need{needWaiter}, waitBlocks},
	{"wait-wakes", "a release", "Wait returns promptly when the key is released.", []need{needWaiter}, waitWakes},
	{"wait-expiry", "holders that expire", "Waiters are granted the key one after the other although every holder before them just expires.", []need{needWaiter}, waitExpiry},
	{"wait-fifo", "order", "Grants follow the order in which the waiters came.", []need{needWaiter}, waitFIFO},
	{"wait-again", "a second Wait", "A second Wait for a token that is queued keeps its place.", []need{needWaiter}, waitAgain},
	{"wait-no-overtaking", "no overtaking", "Acquire does not overtake the queue: it is refused when the key becomes free while another waits.", []need{needWaiter}, waitNoOvertaking},
	{"wait-acquire-leaves", "no place for who holds", "A token that is queued and gets the key by Acquire leaves the queue.", []need{needWaiter}, waitAcquireLeaves},
	{"wait-queued", "saying so", "Wait calls queued when the store has said that another owner has the key, and not before.", []need{needWaiter}, waitQueued},
	{"wait-cancel", "a context that ends", "When its context ends, Wait soon returns the context's error.", []need{needWaiter}, waitCancel},
	{"wait-release-queued", "leaving the queue", "Release takes a token that only waits out of the queue, and the next one is not delayed.", []need{needWaiter}, waitReleaseQueued},
	{"wait-release-given", "passing on", "Release passes the key on if the token was given it after its Wait had ended.", []need{needWaiter}, waitReleaseGiven},
	{"wait-start", "when the hold began", "A grant from Wait counts from Grant.Start: late enough to be of use, and no later than the store began to count.", []need{needWaiter}, waitStart},
	{"wait-vanished", "clients that vanish", "A waiter whose client vanished is passed over.", []need{needWaiter}, waitVanished},
	{"wait-many-keys", "many queues", "Waiting for one key delays nobody who waits for another.", []need{needWaiter}, waitManyKeys},
}

func waitFree(t *caseT) {
	b := t.open()
	c := t.claim("k", ample)
	h := t.granted(t.wait(b, c), t.soon())
	if h.grant.Start.IsZero() || h.grant.Start.Before(h.sent.Add(-time.Second)) || h.grant.Start.After(h.back) {
		t.Errorf("Wait was called at %v and returned at %v with Grant.Start at %v", h.sent, h.back, h.grant.Start)
	}
	t.taken(t.open(), "k")
	again := t.granted(t.wait(b, c), t.soon())
	if again.grant.Fence != h.grant.Fence {
		t.Errorf("Wait of the holder's token had the fence %d, and the first time %d", again.grant.Fence, h.grant.Fence)
	}
	t.release(b, c)
}

func waitBlocks(t *caseT) {
	a, b := t.open(), t.open()
	first := t.claim("k", ample)
	t.acquire(a, first)
	p := t.enqueue(b, t.claim("k", ample))
	t.sleep(2 * t.ttl)
	t.waits(p)
	t.release(a, first)
	t.granted(p, t.soon())
	t.taken(a, "k")
	t.release(b, p.Claim)
}

func waitWakes(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	for range 5 {
		first := t.claim("k", ample)
		t.acquire(a, first)
		p := t.enqueue(b, t.claim("k", ample))
		t.release(a, first)
		t.granted(p, soon)
		t.release(b, p.Claim)
	}
}

func waitExpiry(t *caseT) {
	a := t.open()
	soon := t.soon()
	prev := t.acquire(a, t.claim("k", t.steady()))
	var queue []*pending
	for range 4 {
		queue = append(queue, t.enqueue(t.open(), t.claim("k", t.steady())))
	}
	for _, p := range queue {
		h := t.granted(p, prev.ttl()+late+soon)
		if h.back.Before(prev.lasts()) {
			t.Errorf("Wait was granted the key %v before the hold of %s could have expired", prev.lasts().Sub(h.back), prev.Owner)
		}
		prev = h
	}
}

// queue has n clients wait for "k", which first holds.
func (t *caseT) queue(first driver.Claim, b driver.Backend, n int) []*pending {
	t.tb.Helper()
	t.acquire(b, first)
	var queue []*pending
	for range n {
		queue = append(queue, t.enqueue(t.open(), t.claim("k", ample)))
	}
	return queue
}

// inTurn asserts that those who wait get the key in the order of queue once first is released.
func (t *caseT) inTurn(b driver.Backend, first driver.Claim, queue []*pending) {
	t.tb.Helper()
	soon := t.soon()
	t.release(b, first)
	for i, p := range queue {
		t.firstOf(queue[i:], soon)
		t.granted(p, soon)
		t.release(p.b, p.Claim)
	}
}

// firstOf asserts that the first of queue is the first to return.
func (t *caseT) firstOf(queue []*pending, limit time.Duration) {
	t.tb.Helper()
	t.until(limit, func() bool { return slices.ContainsFunc(queue, func(p *pending) bool { return isClosed(p.done) }) })
	for i, p := range queue {
		if i > 0 && isClosed(p.done) {
			t.Fatalf("the key went to number %d of %d who wait, want the first one", i+1, len(queue))
		}
	}
}

func waitFIFO(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	t.inTurn(b, first, t.queue(first, b, 12))
}

func waitAgain(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	queue := t.queue(first, b, 4)
	head := queue[0]
	head.cancel()
	if !t.await(head.done, t.soon()) {
		t.Fatalf("Wait has not returned %v after its context ended", t.soon())
	}
	queue[0] = t.enqueue(head.b, head.Claim)
	t.inTurn(b, first, queue)
}

func waitNoOvertaking(t *caseT) {
	a, b, thief := t.open(), t.open(), t.open()
	soon := t.soon()
	for range t.rounds(5) {
		first := t.claim("k", ample)
		t.acquire(a, first)
		p := t.enqueue(b, t.claim("k", ample))
		t.each(2, func(i int) {
			if i == 0 {
				t.pause(2 * time.Millisecond)
				t.release(a, first)
				return
			}
			for look := 0; look < 200 && !isClosed(p.done); look++ {
				t.taken(thief, "k")
				t.pause(100 * time.Microsecond)
			}
		})
		t.granted(p, soon)
		t.release(b, p.Claim)
	}
}

func waitAcquireLeaves(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	first, c := t.claim("k", ample), t.claim("k", ample)
	t.acquire(a, first)
	p := t.enqueue(b, c)
	p.cancel()
	if !t.await(p.done, soon) {
		t.Fatalf("Wait has not returned %v after its context ended", soon)
	}
	t.release(a, first)
	if !t.until(soon, func() bool { return t.got(b, c) }) {
		t.Fatalf("Acquire by the first in the queue was refused for %v after the key became free", soon)
	}
	t.release(b, c)
	t.notOwner("Release of a token that was in the queue, got the key and released it", t.tryRelease(b, c))
	t.free(a, "k")
}

func waitQueued(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	first := t.claim("k", ample)
	p := t.wait(a, first)
	if t.granted(p, soon); isClosed(p.queued) {
		t.Errorf("Wait for a key that nobody holds called queued")
	}
	p = t.wait(b, t.claim("k", ample))
	if !t.await(p.queued, soon) {
		t.Errorf("Wait for a key that is held has not called queued after %v", soon)
	}
	t.waits(p)
	t.release(a, first)
	t.granted(p, soon)
	t.release(b, p.Claim)
}

func waitCancel(t *caseT) {
	a, b := t.open(), t.open()
	t.acquire(a, t.claim("k", ample))
	trip, soon := t.roundTrip(), t.soon()
	for _, end := range []func(p *pending){
		func(p *pending) { p.cancel() },
		func(*pending) {},
	} {
		p := t.start(func(ctx context.Context, p *pending) {
			ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond+5*trip)
			defer cancel()
			_, p.err = t.waitIn(ctx, b, t.claim("k", ample))
		})
		t.pause(100*time.Millisecond + 3*trip)
		end(p)
		if !t.await(p.done, soon) {
			t.Fatalf("Wait has not returned %v after its context ended", soon)
		}
		if !errors.Is(p.err, context.Canceled) && !errors.Is(p.err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %v after its context ended, which does not match the context's error", p.err)
		}
	}
}

func waitReleaseQueued(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	soon := t.soon()
	queue := t.queue(first, b, 3)
	gone := queue[0]
	gone.cancel()
	t.await(gone.done, soon)
	t.release(gone.b, gone.Claim)
	t.notOwner("a second Release of a token that waited", t.tryRelease(gone.b, gone.Claim))
	t.inTurn(b, first, queue[1:])
	t.free(b, "k")
}

func waitReleaseGiven(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	soon := t.soon()
	queue := t.queue(first, b, 2)
	given, next := queue[0], queue[1]
	given.cancel()
	t.await(given.done, soon)
	t.release(b, first)
	t.pause(5 * t.roundTrip())
	// The driver may have noticed by itself that nobody waits for this grant.
	if err := t.tryRelease(given.b, given.Claim); err != nil && !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release of a token that was given the key returned %q", err)
	}
	t.granted(next, soon)
	t.taken(b, "k")
	t.release(next.b, next.Claim)
	t.free(b, "k")
}

func waitStart(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	first := t.claim("k", ample)
	t.acquire(a, first)
	p := t.enqueue(b, t.claim("k", t.steady()))
	t.sleep(2 * p.TTL)
	t.waits(p)
	t.release(a, first)
	h := t.granted(p, soon)
	if h.grant.Start.IsZero() || h.grant.Start.After(h.back) {
		t.Errorf("Wait returned at %v with Grant.Start at %v", h.back, h.grant.Start)
	}
	if left := h.start().Add(h.ttl()).Sub(h.back); left <= 0 {
		t.Errorf("Grant.Start is so early that the hold is over %v before Wait returns it", -left)
	}
	t.takeOver(a, h)
}

func waitVanished(t *caseT) {
	b, first := t.open(), t.claim("k", ample)
	soon := t.soon()
	t.acquire(b, first)
	gone, next := t.open(), t.open()
	// The one who vanishes may be kept in the queue for its TTL, and would have the key for as long again.
	t.enqueue(gone, t.claim("k", 2*soon))
	p := t.enqueue(next, t.claim("k", ample))
	_ = gone.Close()
	t.sleep(2 * soon)
	t.release(b, first)
	t.granted(p, soon)
	t.release(next, p.Claim)
}

func waitManyKeys(t *caseT) {
	a, b := t.open(), t.open()
	soon := t.soon()
	const n = 8
	var claims []driver.Claim
	var queue []*pending
	for i := range n {
		key := "k" + string(rune('A'+i))
		c := t.claim(key, ample)
		t.acquire(a, c)
		claims, queue = append(claims, c), append(queue, t.enqueue(b, t.claim(key, ample)))
	}
	for i := n - 1; i >= 0; i-- {
		t.release(a, claims[i])
		t.granted(queue[i], soon)
		for _, p := range queue[:i] {
			t.waits(p)
		}
	}
}
