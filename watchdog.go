package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// renewWorkers is how many holds are renewed at the same time where the driver cannot renew many at once.
const renewWorkers = 64

// watch plans what comes next for h: the renewal, or the deadline.
func (l *locker) watch(h *hold) {
	if h.renew && !h.inFlight && h.renewAt.Before(h.deadline) {
		l.sched.add(&h.task, h, h.renewAt, l.interval(h)/8)
	} else {
		l.sched.add(&h.task, h, h.deadline, 0)
	}
}

func (l *locker) interval(h *hold) time.Duration { return or(l.cfg.RenewInterval, h.claim.TTL/3) }

// due is called when the renewal or the deadline has come.
func (h *hold) due(now time.Time) {
	switch {
	case h.expired(now):
		h.l.lose(h, h.lossReason())
	case h.renew && !h.inFlight && !now.Before(h.renewAt.Add(-h.early)):
		h.inFlight = true
		h.l.dueNow = append(h.l.dueNow, h)
		h.l.watch(h)
	default:
		h.l.watch(h)
	}
}

// attemptLimit is how long one renewal of h may take: a sixth of the TTL, or a third of what is left if that is less, and no longer than an acquire: many that
// hang must not take the places of those that would be answered. A quarter of it is kept back for an answer that is on its way when the limit ends.
func (h *hold) attemptLimit(now time.Time) time.Duration {
	return max(time.Millisecond, min(h.claim.TTL/6, h.deadline.Sub(now)/3, acquireLimit)*3/4)
}

// sendRenewals sends what has become due, together as far as one time limit suits: a hold that is near its end must not make
// the others hurry, nor wait for them.
func (l *locker) sendRenewals(now time.Time) {
	if len(l.dueNow) == 0 {
		return
	}
	groups := map[int][]*hold{}
	for _, h := range l.dueNow {
		n := bits.Len64(uint64(h.attemptLimit(now)))
		if groups[n] == nil {
			groups[n] = make([]*hold, 0, len(l.dueNow))
		}
		groups[n] = append(groups[n], h)
	}
	clear(l.dueNow)
	l.dueNow = l.dueNow[:0]
	for _, holds := range groups {
		l.ops++
		go func() {
			l.renewAll(holds)
			l.opDone()
		}()
	}
}

// renewAll renews holds, at once or one by one.
func (l *locker) renewAll(holds []*hold) {
	if l.batcher != nil && !l.noBatch.Load() && l.renewBatch(holds) {
		return
	}
	var wg sync.WaitGroup
	next := make(chan *hold)
	for range min(renewWorkers, len(holds)) {
		wg.Go(func() {
			for h := range next {
				l.renewSlots <- struct{}{}
				l.renewOne(h)
				<-l.renewSlots
			}
		})
	}
	for _, h := range holds {
		next <- h
	}
	close(next)
	wg.Wait()
}

// renewBatch reports false if the driver cannot do it after all.
func (l *locker) renewBatch(holds []*hold) bool {
	now := time.Now()
	l.mu.Lock()
	limit := holds[0].attemptLimit(now)
	for _, h := range holds[1:] {
		limit = min(limit, h.attemptLimit(now))
	}
	l.mu.Unlock()

	c := &call{kind: callRenewBatch, holds: holds}
	answered, why := l.ask(context.Background(), c, limit)
	if answered && len(c.renewals) > 0 && errors.Is(c.renewals[0].Err, errors.ErrUnsupported) {
		l.noBatch.Store(true)
		return false
	}
	l.mu.Lock()
	defer l.unlock()
	if answered && len(c.renewals) != len(c.holds) {
		why = or(c.err, fmt.Errorf("the driver answered %d of %d renewals", len(c.renewals), len(c.holds)))
	}
	jitter := rand.Float64() // the same for all of them, so that they stay together
	now = time.Now()
	for i, h := range c.holds {
		if why != nil {
			l.renewed(h, driver.Renewal{Err: why}, 0, c.sent, now, jitter)
		} else {
			l.renewed(h, c.renewals[i], c.batch[i].TTL, c.sent, now, jitter)
		}
	}
	return true
}

func (l *locker) renewOne(h *hold) {
	l.mu.Lock()
	limit := h.attemptLimit(time.Now())
	c := &call{kind: callRenew, claim: h.claim, holds: []*hold{h}}
	l.mu.Unlock()
	answered, why := l.ask(context.Background(), c, limit)
	l.mu.Lock()
	defer l.unlock()
	if answered {
		why = c.err
	}
	l.renewed(h, driver.Renewal{Grant: c.grant, Err: why}, c.claim.TTL, c.sent, time.Now(), rand.Float64())
}

// stillHeld leaves out of c the holds that ended since it was planned, so that none is renewed after its Unlock, and notes for the others that
// something is sent. It reports whether any are left.
func (l *locker) stillHeld(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make([]*hold, 0, len(c.holds))
	claims := make([]driver.Claim, 0, len(c.holds))
	now := time.Now()
	for _, h := range c.holds {
		if !h.over() {
			h.lastSent = now
			held = append(held, h)
			claims = append(claims, h.claim)
		}
	}
	c.holds, c.batch = held, claims
	return len(held) > 0
}

// renewed takes the answer to a renewal of h by asked that was sent at sent.
func (l *locker) renewed(h *hold, r driver.Renewal, asked time.Duration, sent, now time.Time, jitter float64) {
	h.inFlight = false
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
		h.failures, h.lastErr = 0, nil
		l.renewAgain(h, h.granted(r.Grant, asked, sent), now, jitter)
	case errors.Is(r.Err, driver.ErrNotOwner):
		h.told = true
		l.lose(h, r.Err)
		return
	default:
		h.failures, h.lastErr = h.failures+1, r.Err
		left := h.deadline.Sub(now)
		h.renewAt = now.Add(max(time.Millisecond, min(h.claim.TTL/20, left/4)))
		key, n := h.e.key, h.failures
		l.later(func() { l.tel.renewFailed(key, r.Err, n, left) })
	}
	l.watch(h)
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
	if h.lastErr != nil {
		return because{errDeadline, h.lastErr}
	}
	return errDeadline
}

// extend is Lease.Extend.
func (l *locker) extend(ctx context.Context, x *Lease, ttl time.Duration) error {
	fail := func(err error) error { return &Error{Op: "extend", Driver: l.cfg.Driver, Key: x.Key(), Err: err} }
	if err := l.checkTTL(ttl); err != nil {
		return fail(err)
	}
	if err := ctx.Err(); err != nil && x.Err() == nil {
		return fail(err)
	}
	l.mu.Lock()
	now := time.Now()
	if err := l.leaseErr(x, now); err != nil {
		l.unlock()
		return fail(reasonOf(err))
	}
	h := x.h
	c := &call{kind: callRenew, claim: h.claim, holds: []*hold{h}}
	c.claim.TTL = ttl
	limit := h.deadline.Sub(now)
	h.maxTTL = max(h.maxTTL, ttl)
	l.unlock()

	answered, why := l.ask(ctx, c, limit)
	l.mu.Lock()
	defer l.unlock()
	if answered {
		why = c.err
	}
	now = time.Now()
	switch err := l.leaseErr(x, now); {
	case err != nil:
		return fail(reasonOf(err))
	case errors.Is(why, driver.ErrNotOwner):
		h.told = true
		l.lose(h, why)
		return fail(reasonOf(x.err))
	case why != nil:
		return fail(why)
	case c.grant.Fence != 0 && c.grant.Fence != h.fence:
		l.lose(h, errFence)
		return fail(reasonOf(x.err))
	}
	h.claim.TTL = ttl
	l.renewAgain(h, h.granted(c.grant, ttl, c.sent), now, rand.Float64())
	l.watch(h)
	return nil
}

// reasonOf takes the *Error off a lease's reason, to be put into another one.
func reasonOf(err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
