package dlocktest

import (
	"context"
	"errors"
	"strings"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var dsnCases = []testCase{
	{"dsn-opens-store", "the same store", "dlock.Open with the store's DSN is another client of the same store.", []need{needDSN}, dsnOpensStore},
	{"dsn-no-network", "no network", "Opening a DSN parses it and opens no connection: it succeeds in an outage.", []need{needDSN, needOutage}, dsnNoNetwork},
	{"dsn-invalid", "a DSN that cannot be used", "A DSN of another kind of store is refused with ErrInvalidDSN, and no secret is shown.", []need{needDSN}, dsnInvalid},
}

func dsnOpensStore(t *caseT) {
	a := t.open()
	l, err := dlock.Open(t.store.Driver, t.store.DSN, &dlock.Config{Prefix: "p:", DefaultTTL: ample})
	if err != nil {
		t.Fatalf("dlock.Open returned %q", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	if err := l.Lock(ctx, "k"); err != nil {
		t.Fatalf("Lock returned %q", err)
	}
	t.taken(a, "p:k")
	t.free(a, "k")
	if err := l.Unlock(ctx, "k"); err != nil {
		t.Fatalf("Unlock returned %q", err)
	}
	t.acquire(a, t.claim("p:k", ample))
	if ok, err := l.TryLock(ctx, "k"); ok || err != nil {
		t.Errorf("TryLock of a key that another client holds returned %v, %v; want false", ok, err)
	}
}

func dsnNoNetwork(t *caseT) {
	t.outage(true)
	p := t.start(func(_ context.Context, p *pending) { p.b, p.err = driver.Open(t.store.Driver, t.store.DSN) })
	if !t.await(p.done, 0) && !t.await(p.done, callLimit) {
		t.Fatalf("opening the DSN in an outage has not returned after %v", callLimit)
	}
	if p.err != nil {
		t.Fatalf("opening the DSN in an outage returned %q", p.err)
	}
	t.outage(false)
	t.Cleanup(func() { _ = p.b.Close() })
	c, err := t.claim("k", ample), error(nil) // one token: a request that was given up may have been applied
	if !t.until(callLimit, func() bool { err = t.during(p.b, calls[0].make, c); return err == nil }) {
		t.Errorf("a client that was opened in an outage does not work %v after its end: Acquire returns %v", callLimit, err)
	}
}

func dsnInvalid(t *caseT) {
	const secret = "canary-9b1c"
	for _, dsn := range []string{"no-such-store://user:" + secret + "@host:1/0", "no-such-store://host?password=" + secret} {
		b, err := driver.Open(t.store.Driver, dsn)
		if err == nil {
			_ = b.Close()
		}
		if !errors.Is(err, driver.ErrInvalidDSN) {
			t.Errorf("opening the DSN of another kind of store returned %v, want ErrInvalidDSN", err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error for a DSN that cannot be used shows its password: %q", err)
		}
	}
}
