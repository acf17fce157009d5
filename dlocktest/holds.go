package dlocktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// hold is a grant that a case got, and when.
type hold struct {
	driver.Claim
	grant driver.Grant
	sent  time.Time // before the call
	back  time.Time // after it
}

// ttl is how long the store says that the hold lasts.
func (h hold) ttl() time.Duration { return max(h.grant.TTL, h.TTL) }

// start is when the store began to count, or earlier.
func (h hold) start() time.Time {
	if h.grant.Start.IsZero() {
		return h.sent
	}
	return h.grant.Start
}

// lasts is the instant before which nobody else may get the key. Clocks may differ in rate by 1 %.
func (h hold) lasts() time.Time { return h.start().Add(h.ttl() - h.ttl()/100) }

// try makes one attempt and reports whether it was granted. An error other than ErrHeld ends the
// case.
func (t *caseT) try(b driver.Backend, c driver.Claim) (hold, bool) {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	h := hold{Claim: c, sent: time.Now()}
	var err error
	h.grant, err = b.Acquire(ctx, c)
	h.back = time.Now()
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire of %q by %s returned %q, want a grant or ErrHeld", c.Key, c.Owner, err)
	}
	return h, err == nil
}

// got is try without the grant.
func (t *caseT) got(b driver.Backend, c driver.Claim) bool {
	t.tb.Helper()
	_, ok := t.try(b, c)
	return ok
}

// acquire gets a key that nobody holds.
func (t *caseT) acquire(b driver.Backend, c driver.Claim) hold {
	t.tb.Helper()
	h, ok := t.try(b, c)
	if !ok {
		t.Fatalf("Acquire of %q by %s returned ErrHeld, and nobody else holds the key", c.Key, c.Owner)
	}
	return h
}

// refuse asserts that key is held by another than c.
func (t *caseT) refuse(b driver.Backend, c driver.Claim) {
	t.tb.Helper()
	if _, ok := t.try(b, c); ok {
		t.Fatalf("Acquire of %q by %s was granted, and another owner holds the key", c.Key, c.Owner)
	}
}

// taken asserts that somebody holds key.
func (t *caseT) taken(b driver.Backend, key string) {
	t.tb.Helper()
	t.refuse(b, t.claim(key, t.ttl))
}

// free asserts that nobody holds key.
func (t *caseT) free(b driver.Backend, key string) {
	t.tb.Helper()
	c := t.claim(key, ample)
	t.acquire(b, c)
	t.release(b, c)
}

// renew renews a hold by the same claim, or one with another TTL.
func (t *caseT) renew(b driver.Backend, c driver.Claim) hold {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	h := hold{Claim: c, sent: time.Now()}
	var err error
	h.grant, err = b.Renew(ctx, c)
	h.back = time.Now()
	if err != nil {
		t.Fatalf("Renew of %q by %s, who holds it, returned %q", c.Key, c.Owner, err)
	}
	return h
}

func (t *caseT) tryRenew(b driver.Backend, c driver.Claim) error {
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	_, err := b.Renew(ctx, c)
	return err
}

func (t *caseT) release(b driver.Backend, c driver.Claim) {
	t.tb.Helper()
	if err := t.tryRelease(b, c); err != nil {
		t.Fatalf("Release of %q by %s, who holds it, returned %q", c.Key, c.Owner, err)
	}
}

func (t *caseT) tryRelease(b driver.Backend, c driver.Claim) error {
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	return b.Release(ctx, c)
}

// notOwner asserts that err is ErrNotOwner.
func (t *caseT) notOwner(op string, err error) {
	t.tb.Helper()
	if !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("%s returned %v, want ErrNotOwner", op, err)
	}
}

// takeOver asserts that h, which nobody renews any more, ends when it has to: another owner gets
// the key, not before the TTL has passed and not much later. It returns the other one's hold.
func (t *caseT) takeOver(b driver.Backend, h hold) hold {
	t.tb.Helper()
	c, last := t.claim(h.Key, ample), h.start().Add(h.ttl()+late)
	for look := 0; ; look++ {
		next, ok := t.try(b, c)
		switch {
		case ok && next.back.Before(h.lasts()):
			t.Errorf("another owner got %q %v before the hold of %s could have expired", h.Key, h.lasts().Sub(next.back), h.Owner)
			return next
		case ok:
			return next
		case next.sent.After(last):
			t.Fatalf("%q is still held %v after its TTL of %v began", h.Key, next.sent.Sub(h.start()), h.ttl())
		}
		t.sleep(tick(look))
	}
}

// pending is a call under way.
type pending struct {
	hold
	b      driver.Backend // of a Wait
	err    error
	cancel context.CancelFunc
	done   chan struct{}
	queued chan struct{} // closed when a Wait said that it is queued
}

// start makes a call on a goroutine of its own.
func (t *caseT) start(call func(ctx context.Context, p *pending)) *pending {
	ctx, cancel := context.WithCancel(t.ctx)
	p := &pending{cancel: cancel, done: make(chan struct{})}
	p.err = errors.New("the call has not returned")
	t.started.Go(func() {
		defer cancel()
		defer close(p.done)
		defer t.recover()
		p.sent = time.Now()
		call(ctx, p)
		p.back = time.Now()
	})
	return p
}

// wait starts a Wait.
func (t *caseT) wait(b driver.Backend, c driver.Claim) *pending {
	queued := make(chan struct{})
	once := sync.OnceFunc(func() { close(queued) })
	p := t.start(func(ctx context.Context, p *pending) {
		p.grant, p.err = b.(driver.Waiter).Wait(ctx, c, once)
	})
	p.b, p.Claim, p.queued = b, c, queued
	return p
}

// enqueue starts a Wait and returns when it is in the queue. A driver that does not call queued is
// given some time instead.
func (t *caseT) enqueue(b driver.Backend, c driver.Claim) *pending {
	t.tb.Helper()
	before := t.queued(b, c.Key)
	settle := 50*time.Millisecond + 5*t.roundTrip()
	p := t.wait(b, c)
	if !t.await(p.queued, settle) {
		t.inLine(b, c.Key, before+1)
	}
	return p
}

// inLine returns when n wait for key, as far as the store can tell; at a busy moment a client may
// need long to get there.
func (t *caseT) inLine(b driver.Backend, key string, n int) {
	t.tb.Helper()
	t.until(t.soon(), func() bool {
		queued := t.queued(b, key)
		return queued < 0 || queued >= n
	})
}

// queued is how many wait for key, or -1 if the store does not tell.
func (t *caseT) queued(b driver.Backend, key string) int {
	i, ok := b.(driver.Inspector)
	if !ok {
		return -1
	}
	info, err := i.Inspect(t.ctx, key)
	if err != nil {
		return -1
	}
	return len(info.Waiters)
}

// granted waits for the grant of a Wait.
func (t *caseT) granted(p *pending, limit time.Duration) hold {
	t.tb.Helper()
	if !t.await(p.done, limit) {
		t.Fatalf("a call that waits has not returned %v after the key became free for it", limit)
	}
	if p.err != nil {
		t.Fatalf("a call that waits returned %q, want a grant", p.err)
	}
	return p.hold
}

// waits asserts that p has not returned.
func (t *caseT) waits(p *pending) {
	t.tb.Helper()
	if isClosed(p.done) {
		t.Fatalf("a call that has to wait returned %v", p.err)
	}
}
