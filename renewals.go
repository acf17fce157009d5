package dlock

import (
	"slices"
	"time"
)

// renewShare tells the holds that a driver renews one by one apart, so that those that hang leave the others their places.
type renewShare uint8

const (
	renewFresh  renewShare = iota // the last renewal was confirmed
	renewAgain                    // the last one failed
	renewBeside                   // one is out, and this one goes beside it
	renewShares
)

// places is how many renewals of each share are under way at the same time. One that takes longer than slowAfter gives its place to another, unless it
// is beside another of its hold: so one renewal of every hold is always made, however many hang.
var places = [renewShares]int{64, 16, 64}

// maxBatches is how many requests that renew many holds may be out.
const maxBatches = 256

// renewals are those that wait for a place, and those under way. They are guarded by the Locker's mutex.
type renewals struct {
	waiting [renewShares][]*hold
	taken   [renewShares]int
	batches int
}

// slowAfter is a hundredth of the TTL: then a thousand renewals that hang delay the others by less than a sixth of it.
func slowAfter(ttl time.Duration) time.Duration {
	return max(2*time.Millisecond, min(ttl/100, 100*time.Millisecond))
}

// renewSingly renews holds one by one, as there are places.
func (l *locker) renewSingly(holds []*hold, now time.Time) {
	for _, h := range holds {
		share := renewFresh
		switch {
		case h.outs > 0:
			share = renewBeside
		case h.failures > 0:
			share = renewAgain
		}
		h.queued = true
		l.renewals.waiting[share] = append(l.renewals.waiting[share], h)
	}
	for share := range renewShares {
		l.fillPlaces(share, now)
	}
}

// fillPlaces gives free places to those who wait.
func (l *locker) fillPlaces(share renewShare, now time.Time) {
	r := &l.renewals
	for r.taken[share] < places[share] && len(r.waiting[share]) > 0 {
		h := r.waiting[share][0]
		r.waiting[share][0] = nil
		r.waiting[share] = r.waiting[share][1:]
		if h.over() || h.expired(now) {
			continue
		}
		r.taken[share]++
		c := &call{kind: callRenew, claim: h.claim, renewal: &renewal{holds: []*hold{h}, share: share, place: true}}
		limit := h.attemptLimit(now)
		l.sendRenewal(c, limit, now)
		if slow := slowAfter(h.claim.TTL); share != renewBeside && slow < limit {
			l.sched.add(&c.task, c, now.Add(slow), 0)
		}
	}
}

// unqueue takes h off those who wait for a place beside a renewal that has been answered: such a place may never become free.
func (l *locker) unqueue(h *hold) {
	if h.queued {
		h.queued = false
		waiting := &l.renewals.waiting[renewBeside]
		*waiting = slices.DeleteFunc(*waiting, func(o *hold) bool { return o == h })
	}
}

// gavePlaceBack gives the place of c, if it has one, to another.
func (l *locker) gavePlaceBack(c *call, now time.Time) {
	if c.renewal.place {
		c.renewal.place = false
		l.renewals.taken[c.renewal.share]--
		l.fillPlaces(c.renewal.share, now)
	}
}

// notBatched renews the holds of c one by one: the driver has said that it cannot renew many at once.
func (l *locker) notBatched(c *call, now time.Time) {
	l.noBatch.Store(true)
	var again []*hold
	for _, h := range c.renewal.holds {
		h.returned(c)
		if !h.over() && !h.queued {
			again = append(again, h)
		}
	}
	l.renewSingly(again, now)
}
