package dlocktest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var outageCases = []testCase{
	{"outage-not-held", "trouble is not ErrHeld", "A store that cannot be asked is an error of its own: Acquire never answers ErrHeld for it.", []need{needOutage}, outageNotHeld},
	{"outage-not-owner", "trouble is not ErrNotOwner", "A store that cannot be asked is an error of its own: Renew and Release never answer nil or ErrNotOwner for it.", []need{needOutage}, outageNotOwner},
	{"outage-not-permanent", "trouble passes", "A store that cannot be reached is not marked ErrPermanent: trying again mends it.", []need{needOutage}, outageNotPermanent},
	{"outage-wait", "waiting", "Wait in an outage fails or waits, and does not say that another owner has the key.", []need{needOutage, needWaiter}, outageWait},
	{"outage-batch", "batches", "RenewBatch in an outage answers every claim with an error that is not ErrNotOwner.", []need{needOutage, needBatch}, outageBatch},
	{"outage-ends", "afterwards", "When the outage ends the same client works again, and holds that have not expired are still there.", []need{needOutage}, outageEnds},
	{"error-no-token", "no secrets", "No error text contains a token.", nil, errorNoToken},
}

// outage begins or ends an outage, and sees to it that it ends with the case.
func (t *caseT) outage(down bool) {
	set := t.store.Outage
	if t.hangs {
		set = t.store.Hang
	}
	if down {
		t.Cleanup(func() { set(false) })
	}
	set(down)
}

// during makes a call that is not expected to succeed and need not return before its context ends.
func (t *caseT) during(b driver.Backend, call func(ctx context.Context, b driver.Backend, c driver.Claim) error, c driver.Claim) error {
	ctx, cancel := t.limited(500*time.Millisecond + 5*t.trip)
	defer cancel()
	return call(ctx, b, c)
}

func outageNotHeld(t *caseT) {
	a, b := t.open(), t.open()
	t.acquire(a, t.claim("held", ample))
	t.outage(true)
	for _, key := range []string{"free", "held"} {
		t.trouble("Acquire in an outage", t.during(b, calls[0].make, t.claim(key, ample)))
	}
}

func outageNotOwner(t *caseT) {
	b := t.open()
	c := t.claim("k", ample)
	t.acquire(b, c)
	t.outage(true)
	t.trouble("Renew in an outage", t.during(b, calls[1].make, c))
	t.trouble("Release in an outage", t.during(b, calls[2].make, c))
	t.trouble("Renew of a free key in an outage", t.during(b, calls[1].make, t.claim("free", ample)))
}

func outageNotPermanent(t *caseT) {
	b := t.open()
	c := t.claim("k", ample)
	t.acquire(b, c)
	t.outage(true)
	for _, call := range calls {
		if err := t.during(b, call.make, c); errors.Is(err, driver.ErrPermanent) {
			t.Errorf("%s in an outage returned %q, which is marked as permanent", call.op, err)
		}
	}
}

func outageWait(t *caseT) {
	b := t.open()
	t.free(b, "k")
	t.outage(true)
	err := t.during(b, t.waitCall().make, t.claim("k", ample))
	t.trouble("Wait in an outage", err)
	if errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Wait in an outage returned %q, which is marked as permanent", err)
	}
}

func outageBatch(t *caseT) {
	b := t.open()
	claims := []driver.Claim{t.claim("k1", ample), t.claim("k2", ample)}
	for _, c := range claims {
		t.acquire(b, c)
	}
	t.outage(true)
	ctx, cancel := t.limited(500 * time.Millisecond)
	defer cancel()
	answers := b.(driver.BatchRenewer).RenewBatch(ctx, claims)
	if len(answers) != len(claims) {
		t.Fatalf("RenewBatch of %d claims in an outage has %d answers", len(claims), len(answers))
	}
	for _, r := range answers {
		t.trouble("RenewBatch in an outage", r.Err)
	}
}

func outageEnds(t *caseT) {
	a, b := t.open(), t.open()
	t.roundTrip()
	c := t.claim("k", ample)
	t.acquire(a, c)
	t.outage(true)
	for _, client := range []driver.Backend{a, b} {
		t.trouble("Renew in an outage", t.during(client, calls[1].make, c))
	}
	t.outage(false)
	var err error
	if !t.until(10*time.Second, func() bool { err = t.during(a, calls[1].make, c); return err == nil }) {
		t.Fatalf("Renew fails 10s after the end of an outage: %v", err)
	}
	other := t.claim("k", ample)
	if !t.until(10*time.Second, func() bool { err = t.during(b, calls[0].make, other); return errors.Is(err, driver.ErrHeld) }) {
		t.Fatalf("Acquire of a key that is held returns %v 10s after the end of an outage, want ErrHeld", err)
	}
	t.release(a, c)
	t.free(b, "k")
}

func errorNoToken(t *caseT) {
	a, b := t.open(), t.open()
	holder, other := t.claim("k", ample), t.claim("k", ample)
	dead, cancel := context.WithCancel(t.ctx)
	cancel()
	all := t.allCalls(b)
	check := func(op string, err error) {
		for _, c := range []driver.Claim{holder, other} {
			if err != nil && strings.Contains(strings.ToLower(err.Error()), c.Token) {
				t.Errorf("the error of %s contains a token: %q", op, err)
			}
		}
	}
	t.acquire(a, holder)
	try := func(when string, ctx context.Context) {
		for _, call := range all {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			check(call.op+when, call.make(ctx, b, other))
			cancel()
		}
	}
	try(" of another's key", t.ctx)
	_ = t.tryRelease(b, other) // which waits
	try(" with a dead context", dead)
	if t.store.Outage != nil {
		t.outage(true)
		try(" in an outage", t.ctx)
		t.outage(false)
	}
	_ = b.Close()
	try(" after Close", t.ctx)
}
