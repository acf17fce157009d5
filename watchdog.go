package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// maxRenewals is how many renewals of one hold are out at the same time. One that is stuck runs on beside the next, because it may be
// just about to have a connection; and one that was sent last is the first to find a store that has come back.
const maxRenewals = 3

// watch plans what comes next for h: the renewal, or the deadline.
func (l *locker) watch(h *hold) {
	if h.renew && !h.queued && !h.blocked && h.renewAt.Before(h.deadline) {
		early := l.interval(h) / 8
		if h.failing() || h.renewAt.Equal(l.began.Add(h.doubtAt)) {
			early = min(early, max(0, time.Until(h.renewAt)/2))
		}
		l.sched.add(&h.task, h, h.renewAt, early)
	} else {
		l.sched.add(&h.task, h, h.deadline, 0)
	}
}

// failing reports whether the last renewal failed, or has not been answered.
func (h *hold) failing() bool { return h.failures > 0 || h.outs > 0 }

func (l *locker) interval(h *hold) time.Duration { return or(l.cfg.RenewInterval, h.claim.TTL/3) }

// due is called when the renewal or the deadline has come, and when nothing of a lost hold can be in the store any more.
func (h *hold) due(now time.Time) {
	l := h.l
	switch {
	case h.over():
		l.forgotten(h)
	case h.expired(now):
		l.lose(h, h.lossReason())
	case !h.renew || h.queued || h.blocked || now.Before(h.renewAt.Add(-h.early)):
		l.watch(h)
	case h.outs == maxRenewals:
		h.makeRoom()
		l.watch(h)
	default:
		h.queued = true
		l.dueNow = append(l.dueNow, h)
		l.watch(h)
	}
}

// makeRoom ends a renewal in favour of the next: neither the first, which has had the most time, nor the last.
func (h *hold) makeRoom() {
	h.blocked = true // until one has returned
	c := h.out[h.outs/2]
	c.renewal.replaced = true
	c.cancel(context.Canceled)
}

// patience is how long to wait for the answer to a renewal before the next is sent: a sixth of the TTL, or a third of what is left if that is less, and no
// longer than an acquire takes. A quarter of it is kept back for an answer that is on its way.
func (h *hold) patience(now time.Time) time.Duration {
	return max(time.Millisecond, min(h.claim.TTL/6, h.deadline.Sub(now)/3, acquireLimit)*3/4)
}

// attemptLimit is how long a renewal may take, which is until the deadline when that is near: a reconnect takes the time that it takes.
func (h *hold) attemptLimit(now time.Time) time.Duration {
	return max(time.Millisecond, min(h.claim.TTL/3, h.deadline.Sub(now), acquireLimit))
}

// pause is how long to wait after a renewal that failed.
func (h *hold) pause(now time.Time) time.Duration {
	return max(time.Millisecond, min(h.claim.TTL/20, h.deadline.Sub(now)/4))
}

// sendRenewals sends what has become due, together as far as one patience suits: a hold that is near its end must not
// wait for the others, nor those that are in order for those that fail.
func (l *locker) sendRenewals(now time.Time) {
	if len(l.dueNow) == 0 {
		return
	}
	if l.batcher == nil || l.noBatch.Load() {
		l.renewSingly(l.dueNow, now)
	} else {
		for _, holds := range grouped(l.dueNow, now) {
			l.renewTogether(holds, now)
		}
	}
	clear(l.dueNow)
	l.dueNow = l.dueNow[:0]
}

func grouped(due []*hold, now time.Time) map[int][]*hold {
	groups := map[int][]*hold{}
	for _, h := range due {
		n := bits.Len64(uint64(h.patience(now)))
		if h.failing() {
			n = -n
		}
		if groups[n] == nil {
			groups[n] = make([]*hold, 0, len(due))
		}
		groups[n] = append(groups[n], h)
	}
	return groups
}

// renewTogether sends one request for holds.
func (l *locker) renewTogether(holds []*hold, now time.Time) {
	if l.renewals.batches >= maxBatches {
		for _, h := range holds {
			h.queued = false
			h.renewAt = now.Add(h.pause(now))
			l.watch(h)
		}
		return
	}
	l.renewals.batches++
	c := &call{kind: callRenewBatch, renewal: &renewal{holds: holds}}
	limit := holds[0].attemptLimit(now)
	for _, h := range holds[1:] {
		limit = min(limit, h.attemptLimit(now))
	}
	l.sendRenewal(c, limit, now)
}

// sendRenewal sends c, for whose answer nobody waits.
func (l *locker) sendRenewal(c *call, limit time.Duration, now time.Time) {
	c.l, c.parent, c.wake = l, context.Background(), nil
	l.begin(c, limit)
	for _, h := range c.renewal.holds {
		h.queued, h.doubted = false, false
		h.out[h.outs] = c
		h.outs++
		h.renewAt = now.Add(h.patience(now) + h.pause(now))
		l.watch(h)
	}
	l.workers.start(c)
}

// stillHeld leaves out of c the holds that ended since it was planned, so that none is renewed after its Unlock, and notes for the others that
// something is sent. It reports whether any are left.
func (l *locker) stillHeld(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make([]*hold, 0, len(c.renewal.holds))
	claims := make([]driver.Claim, 0, len(c.renewal.holds))
	now := time.Now()
	for _, h := range c.renewal.holds {
		if !h.over() {
			h.lastSent = now
			held = append(held, h)
			claims = append(claims, h.claim)
		}
	}
	c.renewal.holds, c.renewal.batch = held, claims
	return len(held) > 0
}

// tookRenewals takes the answers that c brought.
func (l *locker) tookRenewals(c *call, now time.Time) {
	jitter := rand.Float64() // the same for all of them, so that they stay together
	if c.kind == callRenew {
		l.gavePlaceBack(c, now)
		for _, h := range c.renewal.holds {
			l.renewed(h, c, driver.Renewal{Grant: c.grant, Err: c.err}, c.verdict, c.claim.TTL, now, jitter)
		}
		return
	}
	l.renewals.batches--
	if len(c.renewal.verdicts) > 0 && c.renewal.verdicts[0] == verdictUnsupported {
		l.notBatched(c, now)
		return
	}
	whole, verdict := c.err, c.verdict
	if whole == nil && len(c.renewal.renewals) != len(c.renewal.holds) {
		whole, verdict = fmt.Errorf("the driver answered %d of %d renewals", len(c.renewal.renewals), len(c.renewal.holds)), verdictOther
	}
	for i, h := range c.renewal.holds {
		switch {
		case whole != nil:
			l.renewed(h, c, driver.Renewal{Err: whole}, verdict, 0, now, jitter)
		case c.renewal.verdicts != nil:
			l.renewed(h, c, c.renewal.renewals[i], c.renewal.verdicts[i], c.renewal.batch[i].TTL, now, jitter)
		default:
			l.renewed(h, c, c.renewal.renewals[i], verdictOK, c.renewal.batch[i].TTL, now, jitter)
		}
	}
}

// renewed takes the answer to a renewal of h by asked that c brought. It counts from when c was sent, whatever was sent since.
func (l *locker) renewed(h *hold, c *call, r driver.Renewal, v verdict, asked time.Duration, now time.Time, jitter float64) {
	last := h.returned(c)
	switch {
	case h.over():
		return
	case h.expired(now):
		l.lose(h, h.lossReason())
		return
	case r.Err == nil && r.Grant.Fence != 0 && r.Grant.Fence != h.fence:
		l.lose(h, errFence)
		return
	case r.Err == nil:
		l.unqueue(h)
		h.failures, h.trouble = 0, trouble{}
		l.renewAgain(h, h.granted(r.Grant, asked, c.sent), now, jitter)
	case v == verdictNotOwner:
		h.told = true
		l.lose(h, r.Err)
		return
	case c.renewal.replaced:
	default:
		l.renewFailed(h, r.Err, v, now)
		if last {
			h.renewAt = now.Add(h.pause(now))
		}
	}
	if h.outs == 0 {
		l.unqueue(h)
	}
	if h.blocked {
		h.blocked, h.renewAt = false, now
	}
	if h.doubted {
		h.doubted = false
		h.askSoon(now)
	}
	l.watch(h)
}

// returned takes c off the renewals of h that are out, and reports whether it was the last one sent.
func (h *hold) returned(c *call) (last bool) {
	i := slices.Index(h.out[:h.outs], c)
	if i < 0 {
		return false
	}
	copy(h.out[i:], h.out[i+1:h.outs])
	h.outs--
	h.out[h.outs] = nil
	return i == int(h.outs)
}

// renewFailed notes a failure. In a long outage ever fewer of them are logged: the first, the second, the fourth and so on.
func (l *locker) renewFailed(h *hold, err error, v verdict, now time.Time) {
	h.failures++
	h.trouble.note(err, v)
	if n := h.failures; n&(n-1) == 0 {
		key, left := h.e.key, h.deadline.Sub(now)
		l.later(func() { l.tel.renewFailed(key, err, n, left) })
	}
}

// errFence says that the token holds the key by another grant: it was taken away, and an old request of ours got it again.
var errFence = errors.New("the store renewed another grant than this one")

// nextRenewal is when a hold whose TTL counts from start is to be renewed: after nine to ten tenths of the interval.
func (l *locker) nextRenewal(h *hold, start time.Time, jitter float64) time.Time {
	whole := l.interval(h)
	return start.Add(whole - time.Duration(jitter*float64(whole)/10))
}

// renewAgain plans what follows a renewal that was answered at now. The TTL may count from a time so far back that the next one is due: a driver answers from
// what it sent before, or leaves a hold alone that lasts long enough, and would do so again at once. So there is a pause, and time for some more attempts.
func (l *locker) renewAgain(h *hold, start, now time.Time, jitter float64) {
	h.renewAt = l.nextRenewal(h, start, jitter)
	soonest := now.Add(max(time.Millisecond, min(l.interval(h)/2, h.deadline.Sub(now)/3)))
	if h.renewAt.Before(soonest) {
		h.renewAt = soonest
	}
}

// lossReason says why the deadline of h has passed.
func (h *hold) lossReason() error {
	if h.trouble.err != nil {
		return because{errDeadline, h.trouble.err}
	}
	return errDeadline
}
