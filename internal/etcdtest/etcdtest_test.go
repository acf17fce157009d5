package etcdtest_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/internal/etcdtest"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	goleak.VerifyTestMain(m)
}

// put writes through a client that must succeed in time.
func put(t *testing.T, c *clientv3.Client, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Put(ctx, key, value); err != nil {
		t.Fatalf("Put: %v", err)
	}
}

func get(t *testing.T, c *clientv3.Client, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := c.Get(ctx, key)
	if err != nil || len(r.Kvs) != 1 {
		t.Fatalf("Get = %v, %v; want one key", r, err)
	}
	return string(r.Kvs[0].Value)
}

func TestAMemberKeepsItsDataOverAKill(t *testing.T) {
	t.Parallel()
	began := time.Now()
	m := etcdtest.Start(t)
	t.Logf("started in %v", time.Since(began))
	put(t, m.Client(t), "k", "v")
	m.Kill()
	if err := m.Run(); err != nil {
		t.Fatal(err)
	}
	if got := get(t, m.Client(t), "k"); got != "v" {
		t.Errorf("after a restart the value is %q, want v", got)
	}
}

func TestAClusterElectsAnotherLeaderWhenItsOwnIsKilledOrHangs(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := etcdtest.StartCluster(t, 3)
	t.Logf("three members started in %v", time.Since(began))
	client := c.Client(t)
	put(t, client, "k", "v")

	first := c.Leader(t)
	first.Kill()
	second := c.Leader(t)
	if second == first {
		t.Fatalf("the leader is still %v", first)
	}
	put(t, client, "k", "w")
	if err := first.Run(); err != nil {
		t.Fatal(err)
	}
	second.Stop()
	if third := c.Leader(t); third == second {
		t.Fatalf("the leader is still %v", second)
	}
	second.Continue()
	if got := get(t, client, "k"); got != "w" {
		t.Errorf("the value is %q, want w", got)
	}
}

func TestTimingDecidesTheShortestLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []etcdtest.Option
		want int64
	}{
		"the suite's":  {nil, 1},
		"etcd's stock": {[]etcdtest.Option{etcdtest.Timing(100*time.Millisecond, time.Second)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			r, err := etcdtest.Start(t, c.opts...).Client(t).Grant(ctx, 1)
			if err != nil || r.TTL != c.want {
				t.Errorf("Grant of a second = %+v, %v; want a TTL of %ds", r, err, c.want)
			}
		})
	}
}

func TestAMemberIsGoneWhenItsTestEnds(t *testing.T) {
	t.Parallel()
	var pid int
	t.Run("starts", func(t *testing.T) { pid = etcdtest.Start(t).Pid() })
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the process is still there: %v", err)
	}
}
