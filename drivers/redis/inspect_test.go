package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestInspectShowsHolderAndQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ops := openBackend(t, "redis://"+server.Addr)
	ctx := limited(t, 20*time.Second)
	const key = "app:{a} 100%"

	before := time.Now()
	c := claimFor(key, 1, time.Minute)
	c.Owner = "host-1:42 with spaces + and - signs"
	g := mustAcquire(t, ops, c)
	var want []string
	for i := range 3 {
		w := claimFor(key, 10+i, time.Minute)
		startWait(t, openBackend(t, "redis://"+server.Addr), w)
		want = append(want, w.Owner)
	}
	info, err := ops.Inspect(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if info.Key != key || info.Owner != c.Owner || info.Fence != g.Fence {
		t.Errorf("Inspect = key %q, owner %q, fence %d; want %q, %q, %d", info.Key, info.Owner, info.Fence, key, c.Owner, g.Fence)
	}
	if info.TTL <= 30*time.Second || info.TTL > time.Minute {
		t.Errorf("Inspect = TTL %v, want a little less than a minute", info.TTL)
	}
	if info.Since.Before(before.Add(-time.Second)) || info.Since.After(time.Now().Add(time.Second)) {
		t.Errorf("Inspect = since %v, want about %v", info.Since, before)
	}
	if !slices.Equal(info.Waiters, want) {
		t.Errorf("Inspect = waiters %q, want %q", info.Waiters, want)
	}
	if text := fmt.Sprintf("%+v", info); strings.Contains(text, c.Token) {
		t.Errorf("Inspect = %s, want no token in it", text)
	}
}

func TestInspectOfAForeignHolderShowsThatThereIsOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ops := openBackend(t, "redis://"+server.Addr)
	ctx := limited(t, 10*time.Second)
	for _, ttl := range []time.Duration{time.Minute, 0} {
		if err := plainClient(t, server.Addr).Set(ctx, "k", "somebody's secret token", ttl).Err(); err != nil {
			t.Fatal(err)
		}
		info, err := ops.Inspect(ctx, "k")
		if err != nil || info.TTL > 0 != (ttl > 0) || info.Owner != "(no dlock client)" || info.Fence != 0 || !info.Since.IsZero() {
			t.Errorf("with TTL %v Inspect = %+v, %v; want the TTL, if there is one, and nothing of the value", ttl, info, err)
		}
		if err := ops.Break(ctx, "k", info.Fence); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Break of a foreign hold = %v, want ErrNotOwner", err)
		}
	}
}

func TestListVisitsEveryMaster(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3, nil)
	b := openBackend(t, "redis+cluster://"+servers[1].Addr)
	var want []string
	for i := range 30 {
		c := claimFor(fmt.Sprintf("app:%d", i), i, time.Minute)
		mustAcquire(t, b, c)
		want = append(want, c.Key)
	}
	mustAcquire(t, b, claimFor("other:1", 100, time.Minute))
	var got []string
	for info, err := range b.List(limited(t, 10*time.Second), "app:") {
		if err != nil {
			t.Fatal(err)
		}
		if info.Owner == "" || info.Fence == 0 || info.TTL <= 0 {
			t.Errorf("List yields %+v, want owner, fence and TTL", info)
		}
		got = append(got, info.Key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("List = %q\nwant %q", got, want)
	}
}

func TestListWithoutAMasterIsAnError(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3, nil)
	b := openBackend(t, "redis+cluster://"+servers[0].Addr)
	for i := range 10 {
		mustAcquire(t, b, claimFor(fmt.Sprintf("app:%d", i), i, time.Minute))
	}
	servers[2].Kill()
	var last error
	for _, err := range b.List(limited(t, 20*time.Second), "app:") {
		last = err
	}
	if last == nil {
		t.Error("List without one of the masters ended as if it had seen everything")
	}
}

func TestBreakHandsOverToTheNextWaiter(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one server", "a cluster"} {
		t.Run(kind, func(t *testing.T) {
			var dsn string
			if kind == "a cluster" {
				dsn = "redis+cluster://" + redistest.StartCluster(t, 2, nil)[0].Addr
			} else {
				dsn = "redis://" + redistest.Start(t).Addr
			}
			ctx := limited(t, 20*time.Second)
			holder := openLocker(t, dsn, dlock.Config{DefaultTTL: 3 * time.Second})
			held, err := dlock.Acquire(ctx, holder, "k")
			if err != nil {
				t.Fatal(err)
			}
			first := startWait(t, openBackend(t, dsn), claimFor("k", 1, time.Minute))
			second := startWait(t, openBackend(t, dsn), claimFor("k", 2, time.Minute))
			ops := openBackend(t, dsn)
			info, err := ops.Inspect(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := ops.Break(ctx, "k", info.Fence+1); !errors.Is(err, driver.ErrNotOwner) {
				t.Errorf("Break with another fence = %v, want ErrNotOwner", err)
			}
			if err := ops.Break(ctx, "k", info.Fence); err != nil {
				t.Fatalf("Break = %v", err)
			}
			g := first.granted(t)
			if g.Fence <= info.Fence {
				t.Errorf("the next one has fence %d, want more than %d", g.Fence, info.Fence)
			}
			select {
			case <-second.done:
				t.Errorf("the one after the next has returned too: %v", second.err)
			default:
			}
			if err := ops.Break(ctx, "k", info.Fence); !errors.Is(err, driver.ErrNotOwner) {
				t.Errorf("Break of the holder before the last = %v, want ErrNotOwner", err)
			}
			select {
			case <-held.Done():
			case <-time.After(5 * time.Second):
				t.Fatal("the holder whose hold was broken was not told")
			}
			if err := ops.Break(ctx, "k", g.Fence); err != nil {
				t.Fatalf("Break of the next one = %v", err)
			}
			second.granted(t)
		})
	}
}

// findings are what Diagnose finds, by id, with their levels.
func findings(t *testing.T, b driver.Backend) map[string]driver.Finding {
	t.Helper()
	list, err := b.(driver.Doctor).Diagnose(limited(t, 10*time.Second))
	if err != nil {
		t.Fatalf("Diagnose = %v", err)
	}
	found := map[string]driver.Finding{}
	for _, f := range list {
		if f.Level != "info" && f.Advice == "" {
			t.Errorf("%+v has no advice", f)
		}
		if _, twice := found[f.ID]; twice && !strings.Contains(f.Text, "127.0.0.1") {
			t.Errorf("%+v is found twice, and does not say where", f)
		}
		found[f.ID] = f
	}
	return found
}

func TestDiagnoseFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	sound := redistest.Start(t, "--appendonly", "yes", "--repl-diskless-sync-delay", "0")
	forgetful := redistest.Start(t)
	evicting := redistest.Start(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	lru := redistest.Start(t, "--appendonly", "yes", "--maxmemory-policy", "allkeys-lru") // it never evicts: there is no limit
	replicated := redistest.Start(t, "--appendonly", "yes", "--repl-diskless-sync-delay", "0")
	redistest.StartReplica(t, replicated)
	old, _ := fakeServer(t, "# Server\r\nredis_version:6.0.9\r\naof_enabled:1\r\n")
	type wrapped struct{ *goredis.Client }

	for _, c := range []struct {
		name  string
		b     driver.Backend
		id    string // "" for nothing but information
		level string
		text  string
	}{
		{"nothing is wrong", openBackend(t, "redis://"+sound.Addr), "", "", ""},
		{"no append-only file", openBackend(t, "redis://"+forgetful.Addr), "redis-persistence", "warning", "append-only file"},
		{"eviction", openBackend(t, "redis://"+evicting.Addr), "redis-eviction", "error", "allkeys-lru"},
		{"eviction without a limit", openBackend(t, "redis://"+lru.Addr), "", "", ""},
		{"replicas that nobody waits for", openBackend(t, "redis://"+replicated.Addr), "redis-replicas", "warning", "1 connected"},
		{"replicas that are waited for", openBackend(t, "redis://"+replicated.Addr+"?replicas=1"), "", "", ""},
		{"a shared pool", redisdriver.New(wrapped{plainClient(t, sound.Addr)}), "redis-shared-pool", "warning", "connection pool"},
		{"an old server", openBackend(t, "redis://"+old), "redis-version-old", "error", "6.0.9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() { _ = c.b.Close() })
			found := findings(t, c.b)
			if f, ok := found["redis-version"]; !ok || f.Level != "info" {
				t.Errorf("Diagnose = %+v, want redis-version as information", found)
			}
			if c.id != "" {
				if f := found[c.id]; f.Level != c.level || !strings.Contains(f.Text, c.text) {
					t.Errorf("Diagnose has %+v, want %s of level %s about %q", f, c.id, c.level, c.text)
				}
			}
			for id, f := range found {
				if f.Level != "info" && id != c.id {
					t.Errorf("Diagnose = %+v, and that is not so", f)
				}
			}
		})
	}
}

func TestDiagnoseLooksAtEveryMaster(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3, nil)
	b := openBackend(t, "redis+cluster://"+servers[0].Addr)
	last := plainClient(t, servers[2].Addr)
	ctx := limited(t, 20*time.Second)
	for name, value := range map[string]string{"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"} {
		if err := last.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	found := findings(t, b)
	if f := found["redis-eviction"]; f.Level != "error" || !strings.Contains(f.Text, servers[2].Addr) {
		t.Errorf("Diagnose has %+v, want an error about %s", f, servers[2].Addr)
	}
	if f, ok := found["redis-cluster"]; ok {
		t.Errorf("Diagnose has %+v, and the cluster is in order", f)
	}
	if err := last.ClusterDelSlotsRange(ctx, 12000, 12000).Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, "the cluster is out of order", func() bool {
		return strings.Contains(last.ClusterInfo(ctx).Val(), "cluster_state:fail")
	})
	if f := findings(t, b)["redis-cluster"]; f.Level != "error" {
		t.Errorf("Diagnose has %+v, want an error about the state of the cluster", f)
	}
}

func TestDiagnoseOfAServerThatCannotBeReachedIsAnError(t *testing.T) {
	b := openBackend(t, "redis://127.0.0.1:1?dial_timeout=200ms")
	if list, err := b.Diagnose(limited(t, 5*time.Second)); err == nil {
		t.Errorf("Diagnose = %+v, want an error", list)
	}
}
