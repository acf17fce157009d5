package redis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestAKeyWithAHashTagIsTheSameForPlainClients: whoever locks it with SET NX excludes us, and is excluded.
func TestAKeyWithAHashTagIsTheSameForPlainClients(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, c := range []struct{ prefix, key string }{
		{"", "{tenant1}:orders"}, {"", "orders:{tenant1}"}, {"{app}:", "orders"}, {"{app}:", "{x}"}, {"", "a{b}c{d}e}f{"}, {"", "{{x}}"}, {"app:", "plain"},
	} {
		name := c.prefix + c.key
		l, err := dlock.Open("redis", dsn(s.Addr), &dlock.Config{Prefix: c.prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		s.do(t, "set", name, "plain client", "nx", "px", 30_000)
		if ok, err := l.TryLock(t.Context(), c.key); ok || err != nil {
			t.Errorf("TryLock(%q) = %v, %v while a plain client has it", name, ok, err)
		}
		s.do(t, "del", name)
		if ok, err := l.TryLock(t.Context(), c.key); !ok || err != nil {
			t.Errorf("TryLock(%q) = %v, %v; want it", name, ok, err)
		}
		if set, err := s.admin.SetNX(t.Context(), name, "plain client", 30*time.Second).Result(); set || err != nil {
			t.Errorf("SET NX %q = %v, %v while a Locker has it", name, set, err)
		}
		if err := l.Unlock(t.Context(), c.key); err != nil {
			t.Error(err)
		}
	}
}

func TestLocksWithHashTagsWaitAreListedAndBrokenInACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3, nil)
	a, b := openBackend(t, "redis+cluster://"+servers[0].Addr), openBackend(t, "redis+cluster://"+servers[0].Addr)
	admin := plainClient(t, servers[0].Addr)
	for _, key := range []string{"{tenant1}:orders", "x{tenant2}", "{}tenant3", "a}{b}", "tenant4", "{a", "50%{x}"} {
		slots := map[int64]bool{}
		for _, k := range []string{inServer(key), companion(inServer(key), "f"), companion(inServer(key), "q"), companion(inServer(key), "w")} {
			slots[admin.ClusterKeySlot(t.Context(), k).Val()] = true
		}
		if len(slots) != 1 {
			t.Errorf("the keys of %q are in %d slots", key, len(slots))
		}
		held := faulttest.Claim(key, time.Minute)
		g := mustAcquire(t, a, held)
		w := startWait(t, b, faulttest.Claim(key, time.Minute))
		if info, err := a.Inspect(t.Context(), key); err != nil || info.Fence != g.Fence || len(info.Waiters) != 1 {
			t.Errorf("Inspect(%q) = %+v, %v; want the fence %d and a waiter", key, info, err, g.Fence)
		}
		var listed []string
		for info, err := range a.List(t.Context(), key[:1]) {
			if err != nil {
				t.Fatal(err)
			}
			listed = append(listed, info.Key)
		}
		if fmt.Sprint(listed) != fmt.Sprint([]string{key}) {
			t.Errorf("List(%q) = %q, want %q", key[:1], listed, key)
		}
		if err := a.Break(t.Context(), key, g.Fence); err != nil {
			t.Errorf("Break(%q) = %v", key, err)
		}
		w.granted(t)
		info, err := a.Inspect(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Break(t.Context(), key, info.Fence); err != nil {
			t.Errorf("Break(%q) = %v", key, err)
		}
	}
}

func TestListFindsWhatBeginsWithABrace(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := backend(t, s.Addr)
	for _, key := range []string{"{app}:x", "{app", "{app}{", "{ap", "app", "{app}%", "x{app}", "x{app"} {
		acquire(t, b, faulttest.Claim(key, time.Minute))
	}
	for prefix, want := range map[string]int{"{app": 4, "{app}": 3, "{app}:": 1, "{ap": 5, "{": 5, "x{": 2, "": 8, "%": 0} {
		n := 0
		for info, err := range b.List(t.Context(), prefix) {
			if err != nil || !strings.HasPrefix(info.Key, prefix) {
				t.Errorf("List(%q) shows %q, %v", prefix, info.Key, err)
			}
			n++
		}
		if n != want {
			t.Errorf("List(%q) shows %d, want %d", prefix, n, want)
		}
	}
}

func TestAUserWithAHashTagInItsKeysCanDoEverything(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"{app}:", "app{x}:"} {
		t.Run(prefix, func(t *testing.T) {
			server := redistest.Start(t)
			everything(t, server, "redis://"+limitedUser(t, server, "resetkeys", "~"+prefix+"*", "&dlock:*")+server.Addr, prefix)
		})
	}
}
