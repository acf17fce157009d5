package dlocktest

import (
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// need is something that not every store has.
type need string

const (
	needOutage  need = "Store.Outage"
	needHang    need = "Store.Hang"
	needVanish  need = "Store.Vanish"
	needDelete  need = "Store.Delete"
	needClock   need = "monotonic clock, because its time is virtual"
	needDSN     need = "Store.Driver"
	needFence   need = "fences"
	needWaiter  need = "driver.Waiter"
	needBatch   need = "driver.BatchRenewer"
	needInspect need = "driver.Inspector"
	needBreaker need = "driver.Breaker"
	needPinger  need = "driver.Pinger"
	needDoctor  need = "driver.Doctor"
	needInline  need = "driver.Inline calls"
	needInterr  need = "driver.Interruptible calls"
)

// missing says what of needs the store has not, empty if it has everything. It asks the store: a
// method that returns errors.ErrUnsupported counts as absent.
func (t *caseT) missing(needs []need) string {
	var b driver.Backend
	for _, n := range needs {
		has := false
		switch n {
		case needOutage:
			has = t.store.Outage != nil
		case needHang:
			has = t.store.Hang != nil
		case needVanish:
			has = t.store.Vanish != nil
		case needClock:
			has = monotonic(time.Now())
		case needDelete:
			has = t.store.Delete != nil
		case needDSN:
			has = t.store.Driver != ""
		default:
			if b == nil {
				b = t.open()
			}
			has = t.supports(b, n)
		}
		if !has {
			return "the store has no " + string(n)
		}
	}
	return ""
}

// supports makes the call that n is about and reports whether there is such a thing.
func (t *caseT) supports(b driver.Backend, n need) bool {
	c := t.claim("dlocktest probe", ample)
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	err := errors.ErrUnsupported
	switch n {
	case needFence:
		h := t.acquire(b, c)
		t.release(b, c)
		return h.grant.Fence != 0
	case needWaiter:
		if w, ok := b.(driver.Waiter); ok {
			if _, err = t.waitIn(ctx, w, c); err == nil {
				t.release(b, c)
			}
		}
	case needBatch:
		if r, ok := b.(driver.BatchRenewer); ok {
			err = nil
			if answers := r.RenewBatch(ctx, []driver.Claim{c}); len(answers) > 0 {
				err = answers[0].Err
			}
		}
	case needInspect:
		if i, ok := b.(driver.Inspector); ok {
			_, err = i.Inspect(ctx, c.Key)
		}
	case needBreaker:
		if k, ok := b.(driver.Breaker); ok {
			err = k.Break(ctx, c.Key, 1)
		}
	case needPinger:
		if p, ok := b.(driver.Pinger); ok {
			err = p.Ping(ctx)
		}
	case needDoctor:
		if d, ok := b.(driver.Doctor); ok {
			_, err = d.Diagnose(ctx)
		}
	case needInline, needInterr:
		mode := map[need]driver.CallMode{needInline: driver.Inline, needInterr: driver.Interruptible}[n]
		if m, ok := b.(driver.CallModer); ok && m.CallMode() == mode {
			err = nil
		}
	}
	return !errors.Is(err, errors.ErrUnsupported)
}
