package memory_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestInspectShowsHolderAndQueueAndNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		start := time.Now()
		g := acquire(t, b, claim("a"))
		abandon(t, b, claim("b"))
		abandon(t, b, claim("c"))
		time.Sleep(time.Second)
		got, err := b.Inspect(t.Context(), "k")
		want := driver.Info{Key: "k", Owner: "a", Fence: g.Fence, TTL: ttl - time.Second, Since: start, Waiters: []string{"b", "c"}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Inspect = %+v, %v; want %+v", got, err, want)
		}
		refuteToken(t, fmt.Sprintf("%+v", got))
	})
}

func TestInspectOfAFreeKeyHasTheKeyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		time.Sleep(ttl)
		for _, key := range []string{"k", "never seen"} {
			got, err := b.Inspect(t.Context(), key)
			if want := (driver.Info{Key: key}); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("Inspect(%q) = %+v, %v; want %+v", key, got, err, want)
			}
		}
		if got := memory.Keys(b); got != 0 {
			t.Errorf("the store has %d keys, want 0", got)
		}
	})
}

func TestSinceIsTheGrantAndNotTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		start := time.Now()
		acquire(t, b, claim("a"))
		time.Sleep(time.Second)
		acquire(t, b, claim("a"))
		if _, err := b.Renew(t.Context(), claim("a")); err != nil {
			t.Fatal(err)
		}
		if info, _ := b.Inspect(t.Context(), "k"); !info.Since.Equal(start) {
			t.Errorf("Since = %v, want %v", info.Since, start)
		}
	})
}

// list returns the keys that List yields, and its error.
func list(ctx context.Context, b *memory.Backend, prefix string) (keys []string, err error) {
	for info, e := range b.List(ctx, prefix) {
		if err = e; err == nil {
			keys = append(keys, info.Key)
		}
	}
	return keys, err
}

func TestListYieldsTheHeldLocksOfAPrefixSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		for _, key := range []string{"p:c", "p:a", "q:a", "p:b", "p"} {
			acquire(t, b, withKey(claim("a"), key))
		}
		acquire(t, b, withTTL(withKey(claim("a"), "p:expired"), time.Second))
		acquire(t, b, withKey(claim("a"), "p:released"))
		release(t, b, withKey(claim("a"), "p:released"))
		time.Sleep(time.Second)
		for _, c := range []struct{ prefix, want string }{{"p:", "[p:a p:b p:c]"}, {"", "[p p:a p:b p:c q:a]"}, {"none", "[]"}} {
			if keys, err := list(t.Context(), b, c.prefix); err != nil || fmt.Sprint(keys) != c.want {
				t.Errorf("List(%q) = %v, %v; want %s", c.prefix, keys, err, c.want)
			}
		}
		for info := range b.List(t.Context(), "q") {
			if info.Owner != "a" || info.TTL != ttl-time.Second {
				t.Errorf("List yields %+v, want what Inspect shows", info)
			}
			refuteToken(t, fmt.Sprintf("%+v", info))
		}
	})
}

func TestListIsASnapshotAndTheStoreGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		for _, key := range []string{"a", "b", "c"} {
			acquire(t, b, withKey(claim("a"), key))
		}
		var keys []string
		for info, err := range b.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			release(t, b, withKey(claim("a"), info.Key))
			acquire(t, b, withKey(claim("a"), "z"+info.Key))
			keys = append(keys, info.Key)
		}
		if got := fmt.Sprint(keys); got != "[a b c]" {
			t.Errorf("List yields %s, want [a b c]", got)
		}
	})
}

func TestListEndsWithCtxOrWithItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		for _, key := range []string{"a", "b", "c"} {
			acquire(t, b, withKey(claim("a"), key))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for info, err := range b.List(ctx, "") {
			got = append(got, fmt.Sprint(info.Key, err))
			cancel()
		}
		if want := "[a<nil> context canceled]"; fmt.Sprint(got) != want {
			t.Errorf("List under a ctx that ends yields %q, want %q", got, want)
		}
		for range b.List(t.Context(), "") {
			break
		}
	})
}

func TestBreakFreesTheHolderItWasShownAndNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		refuse := func(when string, fence uint64) {
			t.Helper()
			if err := b.Break(t.Context(), "k", fence); !errors.Is(err, driver.ErrNotOwner) {
				t.Errorf("Break %s = %v, want ErrNotOwner", when, err)
			}
		}
		refuse("of a free key", 0)
		first := acquire(t, b, claim("a")).Fence
		refuse("with the fence below", first-1)
		refuse("with the fence above", first+1)
		w := wait(t, b, claim("b"))
		if err := b.Break(t.Context(), "k", first); err != nil {
			t.Errorf("Break = %v, want nil", err)
		}
		g := w.granted(t)
		if g.Fence <= first || !g.Start.Equal(time.Now()) {
			t.Errorf("Wait = %+v, want the lock handed over at once", g)
		}
		if _, err := b.Renew(t.Context(), claim("a")); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Renew of a broken hold = %v, want ErrNotOwner", err)
		}
		refuse("for the second time", first)
		time.Sleep(ttl)
		refuse("of an expired hold", g.Fence)
		if got := memory.Keys(b); got != 0 {
			t.Errorf("the store has %d keys, want 0", got)
		}
	})
}
