package dlocktest

import (
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var exclusionCases = []testCase{
	{"excl-two-clients", "two clients", "A key that one client holds is refused to every other client with ErrHeld.", nil, exclTwoClients},
	{"excl-one-client", "two tokens of one client", "Two tokens of one client exclude each other as two clients do.", nil, exclOneClient},
	{"excl-race", "at the same moment", "Of any number of clients that ask at the same moment exactly one gets the key.", nil, exclRace},
	{"excl-many-clients", "many clients", "The rules hold for any number of clients: while one of them has the key it is refused to all others.", nil, exclManyClients},
	{"excl-counter", "a shared counter", "Between a grant and its release nobody else is given the key, however many clients take turns.", nil, exclCounter},
	{"excl-handover", "free means free", "A key that was released is granted to whoever asks next: ErrHeld means that another holds it.", nil, exclHandover},
	{"excl-after-expiry", "one new owner", "A key whose hold has expired goes to one new owner, and the next one is refused.", nil, exclAfterExpiry},
	{"excl-many-keys", "many keys", "Many keys are held at the same time, by one client and by several, without regard to each other.", nil, exclManyKeys},
}

func exclTwoClients(t *caseT) {
	a, b := t.open(), t.open()
	first := t.claim("k", ample)
	t.acquire(a, first)
	for range 3 {
		t.taken(b, "k")
	}
	t.release(a, first)
	t.acquire(b, t.claim("k", ample))
	t.taken(a, "k")
}

func exclOneClient(t *caseT) {
	b := t.open()
	first, second := t.claim("k", ample), t.claim("k", ample)
	second.Owner = first.Owner
	t.acquire(b, first)
	t.refuse(b, second)
	t.release(b, first)
	t.acquire(b, second)
	t.refuse(b, first)
}

func exclRace(t *caseT) {
	const n = 6
	clients := t.clients(n)
	for range t.rounds(20) {
		var grants [n]bool
		var claims [n]driver.Claim
		begin := make(chan struct{})
		time.AfterFunc(time.Millisecond, func() { close(begin) })
		t.each(n, func(i int) {
			claims[i] = t.claim("k", ample)
			<-begin
			grants[i] = t.got(clients[i], claims[i])
		})
		won := 0
		for i, ok := range grants {
			if ok {
				won++
				_ = t.tryRelease(clients[i], claims[i])
			}
		}
		if won != 1 {
			t.Fatalf("%d of %d clients that asked at the same moment got the key, want 1", won, n)
		}
	}
}

func exclManyClients(t *caseT) {
	const n = 16
	clients := t.clients(n)
	for holder := range t.rounds(n) {
		c := t.claim("k", ample)
		t.acquire(clients[holder], c)
		t.each(n, func(i int) { t.taken(clients[i], "k") })
		t.renew(clients[holder], c)
		t.release(clients[holder], c)
	}
}

func exclCounter(t *caseT) {
	clients := t.clients(4)
	var inside, total atomic.Int32
	t.each(len(clients), func(i int) {
		for range t.rounds(10) {
			c := t.claim("k", ample)
			for look := 0; ; look++ {
				if _, ok := t.try(clients[i], c); ok {
					break
				}
				t.pause(tick(look))
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d owners were given the key at the same time", n)
			}
			t.pause(time.Millisecond)
			total.Add(1)
			inside.Add(-1)
			t.release(clients[i], c)
		}
	})
	if total.Load() < 4 {
		t.Errorf("4 clients had the key %d times in all, want each of them at least once", total.Load())
	}
}

func exclHandover(t *caseT) {
	clients := t.clients(2)
	for i := range t.rounds(40) {
		c := t.claim("k", ample)
		t.acquire(clients[i/2%2], c)
		t.release(clients[i/2%2], c)
	}
}

func exclAfterExpiry(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	t.takeOver(b, h)
	t.taken(a, "k")
	t.taken(b, "k")
}

func exclManyKeys(t *caseT) {
	a, b := t.open(), t.open()
	const n = 40
	t.each(n, func(i int) {
		key := "k" + string(rune('A'+i))
		c := t.claim(key, ample)
		if i%2 == 0 {
			t.acquire(a, c)
		} else {
			t.acquire(b, c)
		}
	})
	t.each(n, func(i int) {
		t.taken(b, "k"+string(rune('A'+i)))
	})
}
