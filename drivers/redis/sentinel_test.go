package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// onClient makes a Backend on a client of the application's, and closes both when the test ends.
func onClient(t testing.TB, client goredis.UniversalClient, opts ...redisdriver.Option) *redisdriver.Backend {
	t.Helper()
	b := redisdriver.New(client, opts...).(*redisdriver.Backend)
	t.Cleanup(func() {
		_ = b.Close()
		_ = client.Close()
	})
	return b
}

// sentinelBackends are all the ways to reach the master that a Sentinel names.
func sentinelBackends(t testing.TB, sentinel string) map[string]*redisdriver.Backend {
	t.Helper()
	o := func() *goredis.FailoverOptions {
		return &goredis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: []string{sentinel}}
	}
	return map[string]*redisdriver.Backend{
		"a DSN":                               openBackend(t, "redis+sentinel://"+sentinel+"/"+redistest.MasterName),
		"a client of the application's":       onClient(t, goredis.NewFailoverClient(o())),
		"a client that spreads over replicas": onClient(t, goredis.NewFailoverClusterClient(o())),
	}
}

// TestAFailoverLeavesNobodyAtTheOldMaster has the old master hang until another one has taken its place, and then go on as if nothing had happened. That Sentinel
// would tell it within seconds is not waited for: it refuses to be told.
func TestAFailoverLeavesNobodyAtTheOldMaster(t *testing.T) {
	t.Parallel()
	sentinel, master, replica := redistest.StartSentinel(t, 2*time.Second)
	ctx := limited(t, 120*time.Second)
	if err := plainClient(t, master.Addr).Do(ctx, "acl", "setuser", "default", "-slaveof", "-replicaof").Err(); err != nil {
		t.Fatal(err)
	}
	watch := goredis.NewSentinelClient(&goredis.Options{Addr: sentinel.Addr})
	t.Cleanup(func() { _ = watch.Close() })
	switched := watch.Subscribe(ctx, "+switch-master")
	if _, err := switched.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	promoted := plainClient(t, replica.Addr)

	all := sentinelBackends(t, sentinel.Addr)
	held := map[string]driver.Claim{}
	for name, b := range all {
		c := claimFor("held by "+name, 1, time.Minute)
		mustAcquire(t, b, c)
		if _, err := b.Renew(ctx, c); err != nil {
			t.Fatalf("%s: Renew = %v", name, err)
		}
		redistest.Eventually(t, 20*time.Second, "the replica knows the hold", func() bool { return promoted.Exists(ctx, c.Key).Val() == 1 })
		held[name] = c
	}
	master.Stop()
	if _, err := switched.ReceiveMessage(ctx); err != nil {
		t.Fatalf("no other master was named: %v", err)
	}
	master.Continue()
	redistest.Eventually(t, 20*time.Second, "the old master goes on", func() bool {
		text, err := master.Text("INFO replication")
		return err == nil && strings.Contains(text, "role:master")
	})

	for name, b := range all {
		n := 0
		redistest.Eventually(t, 20*time.Second, name+": a grant is the new master's", func() bool {
			n++
			c := claimFor(fmt.Sprintf("%s, attempt %d", name, n), n, time.Minute)
			_, err := b.Acquire(ctx, c)
			return err == nil && promoted.Exists(ctx, c.Key).Val() == 1
		})
	}
	for name, b := range all {
		if err := promoted.Del(ctx, held[name].Key).Err(); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 20*time.Second, name+": the new master does not know the hold", func() bool {
			_, err := b.Renew(ctx, held[name])
			return errors.Is(err, driver.ErrNotOwner)
		})
	}
}

// TestSentinelThatWasNotReachedIsAskedAgainAtOnce fails more often than the pools have places.
func TestSentinelThatWasNotReachedIsAskedAgainAtOnce(t *testing.T) {
	t.Parallel()
	sentinel, master, _ := redistest.StartSentinel(t, time.Minute)
	p := faultproxy.New(t, sentinel.Addr)
	b := openBackend(t, "redis+sentinel://"+p.Addr+"/"+redistest.MasterName+"?pool_size=2")
	p.Set(faultproxy.Rules{Refuse: true})
	c := claimFor("k", 1, time.Minute)
	for range 20 {
		if _, err := b.Acquire(limited(t, 5*time.Second), c); err == nil {
			t.Fatal("Acquire without a Sentinel was granted")
		}
		if _, err := b.Renew(limited(t, 5*time.Second), c); err == nil || errors.Is(err, driver.ErrNotOwner) {
			t.Fatalf("Renew without a Sentinel = %v, want that nothing is known", err)
		}
	}
	p.Heal()
	mustAcquire(t, b, c)
	if _, err := b.Renew(limited(t, 10*time.Second), c); err != nil {
		t.Errorf("Renew = %v", err)
	}
	if line, err := master.Do("EXISTS k"); err != nil || line != ":1" {
		t.Errorf("EXISTS on the master = %q, %v; want the lock there", line, err)
	}
}

// TestSentinelThatDoesNotAnswer keeps neither a call nor Close.
func TestSentinelThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := listenSilently(t)
	for _, dsn := range []string{"redis+sentinel://" + s.addr + "/m", "rediss+sentinel://" + s.addr + "/m?insecure=true"} {
		scheme, _, _ := strings.Cut(dsn, ":")
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			late := faulttest.Lateness(t)
			l := openLocker(t, dsn, dlock.Config{})
			for _, try := range []bool{true, false} {
				faulttest.CancelAcquire(t, l, "k", 100*time.Millisecond, try, late)
			}
			began := time.Now()
			_ = l.Close()
			if took := time.Since(began); took > 2*time.Second+late() {
				t.Errorf("Close took %v, want at most 2s", took)
			}
		})
	}
}

// TestSentinelLeavesCallsToTheClient: its calls end with the client's timeouts, and the engine must know.
func TestSentinelLeavesCallsToTheClient(t *testing.T) {
	t.Parallel()
	for name, b := range sentinelBackends(t, "127.0.0.1:1") {
		if b.CallMode() != driver.Detached {
			t.Errorf("%s: the backend says that it can be interrupted", name)
		}
		client, renewer := redisdriver.Clients(b)
		if separate := client != renewer; separate != (name == "a DSN") {
			t.Errorf("%s: renewals have a client of their own: %v", name, separate)
		}
	}
}

func TestDiagnoseOfASentinelClientSaysThatItIsShared(t *testing.T) {
	t.Parallel()
	sentinel, _, _ := redistest.StartSentinel(t, time.Minute)
	for name, b := range sentinelBackends(t, sentinel.Addr) {
		f, shared := findings(t, b)["redis-shared-pool"]
		if shared == (name == "a DSN") {
			t.Errorf("%s: Diagnose says that the pool is shared: %v", name, shared)
		}
		if shared && !strings.Contains(f.Advice, "DSN") {
			t.Errorf("%s: the advice is %q, want it to say what helps with Sentinel", name, f.Advice)
		}
	}
}
