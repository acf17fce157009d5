package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestItIsRegisteredAsMemory(t *testing.T) {
	b, err := driver.Open("memory", "memory://registered")
	if err != nil {
		t.Fatalf("Open = %v, want nil", err)
	}
	defer func() { _ = b.Close() }()
	if _, ok := b.(*memory.Backend); !ok {
		t.Errorf("Open = %T, want *memory.Backend", b)
	}
}

func TestDSNsWithOneNameAreOneStore(t *testing.T) {
	for _, c := range []struct {
		a, b   string
		shared bool
	}{
		{"", "", true},
		{"", "memory://", true},
		{"memory://", "memory://?", true},
		{"memory://one", "memory://one", true},
		{"memory://one.two-three_4", "memory://one.two-three_4", true},
		{"memory://one", "memory://two", false},
		{"memory://one", "memory://One", false},
		{"memory://one", "", false},
	} {
		t.Run(c.a+" and "+c.b, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				acquire(t, open(t, c.a), claim("a"))
				_, err := open(t, c.b).Acquire(t.Context(), claim("b"))
				if shared := errors.Is(err, driver.ErrHeld); shared != c.shared {
					t.Errorf("Acquire in the other one = %v; want shared %t", err, c.shared)
				}
			})
		})
	}
}

func TestAStoreOfNewIsNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def, b, c := open(t, ""), memory.New(), memory.New()
		for _, backend := range []*memory.Backend{def, b, c} {
			acquire(t, backend, claim("a"))
		}
		_ = b.Close()
		if _, err := open(t, "").Acquire(t.Context(), claim("b")); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire in the default store = %v, want ErrHeld: another store's Close is none of its business", err)
		}
	})
}

func TestOtherDSNsAreRefused(t *testing.T) {
	const form = "it must be memory:// or memory://name, without user, password, port or path"
	for _, c := range []struct{ dsn, want string }{
		{"name", "it must begin with memory://"},
		{"redis://name", "it must begin with memory://"},
		{"memory:name", "it must begin with memory://"},
		{"memory://user@name", form},
		{"memory://:cAnArY7@name", form},
		{"memory://user:cAnArY7@", form},
		{"memory://name:80", form},
		{"memory://name/", form},
		{"memory://name/path", form},
		{"memory:///path", form},
		{"memory://one,two", form},
		{"memory://[::1]", form},
		{"memory://na me", "hosts must be written"},
		{"memory://name?size=cAnArY7", `unknown parameter "size"; accepted: none`},
	} {
		b, err := memory.Driver{}.Open(c.dsn)
		if b != nil || !errors.Is(err, driver.ErrInvalidDSN) {
			t.Errorf("Open(%q) = %v, %v; want an error matching ErrInvalidDSN", c.dsn, b, err)
			continue
		}
		got := err.Error()
		if !strings.HasPrefix(got, "memory: invalid DSN: ") || !strings.Contains(got, c.want) || strings.Contains(got, "cAnArY7") {
			t.Errorf("Open(%q) = %q, want memory: invalid DSN: … %s, and no secret", c.dsn, got, c.want)
		}
	}
	if got := memory.Stores(); got != 0 {
		t.Errorf("%d stores are open after refused DSNs, want 0", got)
	}
}

func TestAStoreIsDroppedAtItsLastClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := open(t, "memory://dropped"), open(t, "memory://dropped")
		first := acquire(t, b, claim("a"))
		_ = b.Close()
		_ = b.Close()
		refuseAcquire(t, c, claim("b"))
		d := open(t, "memory://dropped")
		refuseAcquire(t, d, claim("b"))
		_ = c.Close()
		_ = d.Close()
		if got := memory.Stores(); got != 0 {
			t.Errorf("%d stores are open after the last Close, want 0", got)
		}
		if g := acquire(t, open(t, "memory://dropped"), claim("b")); g.Fence <= first.Fence {
			t.Errorf("the fence after the drop is %d, want more than %d", g.Fence, first.Fence)
		}
	})
}

func TestAfterCloseEveryMethodFailsAndWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, other := open(t, "memory://closed"), open(t, "memory://closed")
		g := acquire(t, b, claim("a"))
		for range 2 {
			if err := b.Close(); err != nil {
				t.Errorf("Close = %v, want nil", err)
			}
		}
		time.Sleep(time.Second)
		for _, c := range []driver.Claim{claim("a"), withKey(claim("a"), "free")} {
			errs := everyMethod(t.Context(), b, c, g.Fence)
			if len(errs) != 9 {
				t.Errorf("%d methods answered, want 9", len(errs))
			}
			for what, err := range errs {
				if err == nil || err.Error() != "memory: closed" || errors.Is(err, driver.ErrNotOwner) {
					t.Errorf("%s after Close = %v, want memory: closed", what, err)
				}
			}
		}
		if info, _ := other.Inspect(t.Context(), "k"); info.Owner != "a" || info.TTL != ttl-time.Second {
			t.Errorf("the hold is %+v, want it as it was before Close", info)
		}
		if got := memory.Keys(other); got != 1 {
			t.Errorf("the store has %d keys, want 1", got)
		}
	})
}

func TestCloseEndsItsWaitsAndNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, other := open(t, "memory://closing"), open(t, "memory://closing")
		acquire(t, other, claim("a"))
		mine, theirs := wait(t, b, claim("b")), wait(t, other, claim("c"))
		_ = b.Close()
		if err := mine.failed(t); err.Error() != "memory: closed" || errors.Is(err, driver.ErrHeld) {
			t.Errorf("Wait = %v, want memory: closed alone", err)
		}
		theirs.waits(t)
		info, _ := other.Inspect(t.Context(), "k")
		if got := fmt.Sprint(info.Waiters); got != "[c]" {
			t.Errorf("the queue is %s, want [c]: a client that is gone is passed over", got)
		}
		release(t, other, claim("a"))
		theirs.granted(t)
	})
}

func TestPingAnswersUntilClose(t *testing.T) {
	b := memory.New()
	for range 2 {
		if err := b.Ping(t.Context()); err != nil {
			t.Errorf("Ping = %v, want nil", err)
		}
	}
	_ = b.Close()
	if err := b.Ping(context.Background()); err == nil {
		t.Error("Ping after Close = nil, want an error")
	}
}
