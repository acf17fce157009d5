package dlocktest

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var lossCases = []testCase{
	{"loss-deleted", "a hold that is deleted", "Through a Locker: a holder whose key is deleted is told by Done, Err, its context and Unlock, and can lock again.", []need{needDelete}, lossDeleted},
	{"loss-taken", "a hold that another has", "Through a Locker: a holder whose key is another's is told, and leaves the other's hold alone.", []need{needDelete}, lossTaken},
	{"loss-broken", "a hold that is broken", "Through a Locker: a holder whose hold an operator broke is told, and the key is free.", []need{needBreaker, needInspect, needFence}, lossBroken},
	{"loss-unlock", "Unlock of what is gone", "Through a Locker: Unlock right after the key was deleted answers ErrOwnershipLost.", []need{needDelete}, lossUnlock},
	{"loss-outage", "an outage longer than the TTL", "Through a Locker: in an outage the holder is told before the TTL has passed, and can lock again afterwards.", []need{needOutage}, lossOutage},
	{"loss-not-by-one-failure", "an outage shorter than the TTL", "Through a Locker: a hold is not lost because a renewal failed, only when none succeeds in time.", []need{needOutage}, lossNotByOneFailure},
}

func lossDeleted(t *caseT) {
	l := t.locker(t.steady())
	t.lock(l, "k", callLimit)
	x, _ := dlock.LeaseOf(l, "k")
	ctx := x.Context(t.ctx)
	t.store.Delete("k")
	t.lost(x, ctx)
	t.unlockLost(func(ctx context.Context) error { return l.Unlock(ctx, "k") })
	t.lock(l, "k", callLimit)
	t.taken(t.open(), "k")
	t.unlock(l, "k")
}

func lossTaken(t *caseT) {
	l, b := t.locker(t.steady()), t.open()
	x := t.lease(l, "k")
	ctx := x.Context(t.ctx)
	t.store.Delete("k")
	other := t.claim("k", ample)
	t.acquire(b, other)
	t.lost(x, ctx)
	t.unlockLost(x.Unlock)
	t.sleep(t.steady())
	t.taken(b, "k")
	t.renew(b, other)
	t.release(b, other)
	t.lock(l, "k", callLimit)
}

func lossBroken(t *caseT) {
	l, b := t.locker(t.steady()), t.open()
	x := t.lease(l, "k")
	ctx := x.Context(t.ctx)
	info := t.inspect(b, "k")
	if info.Fence != x.Fence() {
		t.Fatalf("Inspect shows the fence %d, and the lease has %d", info.Fence, x.Fence())
	}
	t.breakHold(b, hold{Claim: driver.Claim{Key: "k"}, grant: driver.Grant{Fence: info.Fence}})
	t.free(b, "k")
	t.lost(x, ctx)
	t.unlockLost(x.Unlock)
}

func lossUnlock(t *caseT) {
	l, b := t.locker(ample), t.open()
	t.lock(l, "k", callLimit)
	t.store.Delete("k")
	t.unlockLost(func(ctx context.Context) error { return l.Unlock(ctx, "k") })
	t.free(b, "k")
	t.lock(l, "k", callLimit)
}

func lossOutage(t *caseT) {
	l := t.locker(t.steady())
	soon := t.soon()
	x := t.lease(l, "k")
	ctx := x.Context(t.ctx)
	t.outage(true)
	t.sleep(time.Until(x.ValidUntil()))
	t.lost(x, ctx)
	t.outage(false)
	t.unlockLost(x.Unlock)
	again := t.locking(l, "k")
	t.granted(again, soon+8*time.Second)
	t.unlock(l, "k")
}

func lossNotByOneFailure(t *caseT) {
	ttl, soon := 3*t.steady(), t.soon()
	l, b := t.locker(ttl), t.open()
	x := t.lease(l, "k")
	t.sleep(ttl / 4)
	t.outage(true)
	t.sleep(ttl / 3)
	t.outage(false)
	t.sleep(ttl)
	if !x.Held() {
		t.Fatalf("an outage of %v ended a hold with a TTL of %v: %v", ttl/3, ttl, x.Err())
	}
	var err error
	other := t.claim("k", ample)
	t.until(soon, func() bool {
		err = t.during(b, calls[0].make, other)
		return err == nil || errors.Is(err, driver.ErrHeld)
	})
	if !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire of a key that was held over a short outage returned %v, want ErrHeld", err)
	}
	if err := x.Unlock(t.ctx); err != nil {
		t.Errorf("Unlock returned %q", err)
	}
}
