package dlocktest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var expiryCases = []testCase{
	{"excl-expiry-race", "at the moment of expiry", "Of any number of clients that ask at the very moment a hold expires, its holder's renewal among them, exactly one has the key afterwards.", nil, exclExpiryRace},
	{"token-last-moments", "the end of the TTL", "Renew and Release check the token in the last moments of a TTL, and after them, as they do at any other time.", nil, tokenLastMoments},
	{"token-release-expired", "release of what expired", "Release of a hold that has expired answers ErrNotOwner.", nil, tokenReleaseExpired},
}

// lag is how late the store lets go of a hold that has expired.
func (t *caseT) lag(a, b driver.Backend) time.Duration {
	t.tb.Helper()
	h, c := t.acquire(a, t.claim("dlocktest lag", t.ttl)), t.claim("dlocktest lag", ample)
	end := h.start().Add(h.ttl())
	t.sleep(time.Until(end))
	for !t.got(b, c) && time.Since(end) < late {
		t.sleep(100 * time.Microsecond)
	}
	return time.Since(end)
}

// exclExpiryRace holds many races at once, each on a key of its own. The renewals come before, at and after the end of
// the TTL.
func exclExpiryRace(t *caseT) {
	const keys, contenders = 25, 3
	clients := t.clients(contenders + 1)
	holder, clients := clients[0], clients[1:]
	near := 2*time.Millisecond + 2*t.roundTrip()
	lag := t.lag(holder, clients[0])
	for round := range t.rounds(4) {
		t.join(t.beside(keys, func(i int) {
			h := t.acquire(holder, t.claim(fmt.Sprintf("k%d-%d", round, i), t.ttl))
			end := h.start().Add(h.ttl() + lag)
			var renewed atomic.Bool
			var won atomic.Int32
			race := t.beside(contenders, func(i int) {
				t.pause(time.Until(end) - near)
				c, last := t.claim(h.Key, ample), h.start().Add(h.ttl()+late)
				for look := 0; won.Load() == 0 && !renewed.Load(); look++ {
					next, ok := t.try(clients[i], c)
					if ok {
						won.Add(1)
					}
					if ok || next.sent.After(last) {
						return
					}
					t.pause(tick(look) / 4)
				}
			})
			t.pause(time.Until(end) - near + time.Duration(i)*near/keys*5/4)
			again := h.Claim
			again.TTL = ample
			err := t.tryRenew(holder, again)
			renewed.Store(err == nil)
			race.Wait()
			switch n := won.Load(); {
			case renewed.Load() && n > 0:
				t.Errorf("at the end of a TTL of %v the holder's renewal was confirmed, and another owner got the key", h.ttl())
			case n > 1:
				t.Errorf("%d of %d clients that asked when a TTL of %v ended got the key, want 1", n, contenders, h.ttl())
			case n == 0 && errors.Is(err, driver.ErrNotOwner): // of another error the outcome is not known
				t.Errorf("nobody got the key of a hold that expired %v ago", time.Since(h.start().Add(h.ttl())))
			}
		}))
	}
}

// tokenLastMoments has requests with wrong tokens come all through the last eighth of a TTL and somewhat beyond it.
func tokenLastMoments(t *caseT) {
	const n = 40
	a, b := t.open(), t.open()
	passed, next := t.claim("passed on", t.steady()), t.claim("passed on", ample)
	t.acquire(a, passed)
	t.release(a, passed)
	t.acquire(b, next)
	h := t.acquire(a, t.claim("k", t.steady()))
	var broken atomic.Bool // and told once
	refuse := func(op string, err error) {
		if !errors.Is(err, driver.ErrNotOwner) && broken.CompareAndSwap(false, true) {
			t.notOwner(op+" in the last moments of a TTL", err)
		}
	}
	wrong := t.beside(n, func(i int) {
		c := t.claim("k", ample)
		t.pause(time.Until(h.start().Add(h.ttl() * time.Duration(7*n+i+i/4) / (8 * n))))
		if i%4 == 0 {
			refuse("Renew by another", t.tryRenew(a, c))
		} else {
			refuse("Release by another", t.tryRelease(a, c))
		}
		refuse("Release by the holder before", t.tryRelease(a, passed))
	})
	t.takeOver(b, h)
	t.join(wrong)
	t.taken(a, "passed on")
	t.renew(b, next)
}

func tokenReleaseExpired(t *caseT) {
	a, b := t.open(), t.open()
	h := t.acquire(a, t.claim("k", t.ttl))
	t.sleep(h.ttl() + late)
	t.notOwner("Release of a hold that expired", t.tryRelease(a, h.Claim))
	t.notOwner("Release of a hold that expired, by another client", t.tryRelease(b, h.Claim))
	t.free(b, "k")
}
