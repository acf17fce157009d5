package dlocktest

import (
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var fenceCases = []testCase{
	{"fence-rises", "over releases", "The fence rises with every grant of a key, whichever client gets it.", []need{needFence}, fenceRises},
	{"fence-rises-expiry", "over expiry", "The fence rises when a hold ended by expiry.", []need{needFence}, fenceRisesExpiry},
	{"fence-rises-break", "over Break", "The fence rises when a hold ended by Break.", []need{needFence, needBreaker}, fenceRisesBreak},
	{"fence-rises-delete", "over outside interference", "The fence rises when the hold was deleted from outside.", []need{needFence, needDelete}, fenceRisesDelete},
	{"fence-rises-reopen", "over restarts of clients", "The fence rises when every client was closed and another one is opened.", []need{needFence}, fenceRisesReopen},
	{"fence-rises-token", "a token that comes again", "A token whose hold expired and that acquires again has a greater fence than anybody before.", []need{needFence}, fenceRisesToken},
	{"fence-rises-idle", "after a long time", "The fence rises however long nobody had the key: by a day in virtual time, by some seconds in real time.", []need{needFence}, fenceRisesIdle},
	{"fence-same", "while it is held", "The fence of a hold stays the same over renewals and refused attempts of others.", []need{needFence}, fenceSame},
	{"fence-contended", "in the order of grants", "Fences rise in the order in which the key was granted, also when many clients compete.", []need{needFence}, fenceContended},
	{"fence-thousand", "a thousand grants", "Over a thousand grants no fence is used twice, nor one out of a run that was reserved for an earlier grant.", []need{needFence}, fenceThousand},
}

// above asserts that next was granted after prev by its fence.
func (t *caseT) above(next, prev hold) {
	t.tb.Helper()
	if least := prev.grant.Fence + uint64(max(1, prev.grant.Fences)); next.grant.Fence < least {
		t.Fatalf("a grant has the fence %d, and the one before had %d (%d reserved)", next.grant.Fence, prev.grant.Fence, max(1, prev.grant.Fences))
	}
}

func fenceRises(t *caseT) {
	clients := t.clients(3)
	var prev hold
	for i := range 12 {
		h := t.acquire(clients[i/2%3], t.claim("k", ample))
		if i > 0 {
			t.above(h, prev)
		}
		t.release(clients[i/2%3], h.Claim)
		prev = h
	}
}

func fenceRisesExpiry(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	next := t.takeOver(b, h)
	t.above(next, h)
	t.release(b, next.Claim)
	h = t.acquire(a, t.claim("k", t.ttl))
	t.above(h, next)
	t.sleep(h.ttl() + late)
	t.above(t.acquire(b, t.claim("k", ample)), h)
}

func fenceRisesBreak(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", ample))
	for range 3 {
		t.breakHold(b, h)
		next := t.acquire(a, t.claim("k", ample))
		t.above(next, h)
		h = next
	}
}

func fenceRisesDelete(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", ample))
	for _, client := range []driver.Backend{b, a, b} {
		t.store.Delete("k")
		next := t.acquire(client, t.claim("k", ample))
		t.above(next, h)
		h = next
	}
}

func fenceRisesReopen(t *caseT) {
	var prev hold
	for i := range 4 {
		b := t.open()
		h := t.acquire(b, t.claim("k", ample))
		if i > 0 {
			t.above(h, prev)
		}
		t.release(b, h.Claim)
		if err := b.Close(); err != nil {
			t.Errorf("Close returned %q", err)
		}
		prev = h
	}
}

func fenceRisesToken(t *caseT) {
	a, b := t.open(), t.open()
	c := t.claim("k", t.ttl)
	h := t.acquire(a, c)
	next := t.takeOver(b, h)
	t.above(next, h)
	t.release(b, next.Claim)
	again := t.acquire(a, c)
	t.above(again, next)
	t.sleep(again.ttl() + late)
	t.above(t.acquire(a, c), again) // nobody had it meanwhile
}

func fenceRisesIdle(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", ample))
	t.release(a, h.Claim)
	idle := 24 * time.Hour
	if t.real || t.store.Advance != nil {
		idle = 6 * time.Second
	}
	t.lasts(idle)
	t.sleep(idle)
	t.above(t.acquire(b, t.claim("k", ample)), h)
}

func fenceSame(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", ample))
	for range 5 {
		t.taken(b, "k")
		if got := t.renew(a, h.Claim); got.grant.Fence != h.grant.Fence {
			t.Fatalf("Renew answered with the fence %d, and the hold was granted with %d", got.grant.Fence, h.grant.Fence)
		}
	}
}

func fenceContended(t *caseT) {
	clients := t.clients(4)
	var mu sync.Mutex
	var grants []hold
	t.each(len(clients), func(i int) {
		for range t.rounds(8) {
			c := t.claim("k", ample)
			h, ok := t.try(clients[i], c)
			for look := 0; !ok; look++ {
				t.pause(tick(look))
				h, ok = t.try(clients[i], c)
			}
			mu.Lock()
			grants = append(grants, h)
			mu.Unlock()
			t.pause(time.Millisecond)
			t.release(clients[i], c)
		}
	})
	for i := 1; i < len(grants); i++ {
		t.above(grants[i], grants[i-1])
	}
}

func fenceThousand(t *caseT) {
	clients := t.clients(2)
	var prev hold
	for i := range t.rounds(1000) {
		h := t.acquire(clients[i%2], t.claim("k", ample))
		if i > 0 {
			t.above(h, prev)
		}
		t.release(clients[i%2], h.Claim)
		prev = h
	}
}
