package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// inServer is the name of a lock's key in the server. Braces stay where they are a hash tag.
func inServer(key string) string {
	key = strings.ReplaceAll(key, "%", "%25")
	if hashTag.MatchString(key) {
		return key
	}
	return strings.NewReplacer("{", "%7B", "}", "%7D").Replace(key)
}

var hashTag = regexp.MustCompile(`(?s)^[^{]*\{[^}]+\}`)

// TestConformanceOnACluster has a proxy in front of every master, which the cluster names to its clients, so that an outage can be had.
func TestConformanceOnACluster(t *testing.T) {
	t.Parallel()
	var proxies []*faultproxy.Proxy
	var addrs []string
	servers := redistest.StartCluster(t, 3, func(addr string) string {
		p := faultproxy.New(t, addr)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr)
		return p.Addr
	})
	dsn := "redis+cluster://" + strings.Join(addrs, ",")
	admin := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = admin.Close() })
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 300 * time.Millisecond,
		New: func(*testing.T) dlocktest.Store {
			for i, s := range servers {
				proxies[i].Heal()
				_, _ = s.Do("FLUSHALL")
			}
			return dlocktest.Store{
				Driver: "redis", DSN: dsn,
				Open: func(t testing.TB) driver.Backend { return openBackend(t, dsn) },
				Outage: func(down bool) {
					for _, p := range proxies {
						p.Set(faultproxy.Rules{Refuse: down})
						if down {
							p.CutAll()
						}
					}
				},
				Delete: func(key string) {
					if err := admin.Del(context.Background(), inServer(key)).Err(); err != nil {
						t.Error(err)
					}
				},
			}
		},
	})
}

// TestConformanceBehindSentinel has no outages: Sentinel names the server itself to its clients, and would take it for dead.
func TestConformanceBehindSentinel(t *testing.T) {
	t.Parallel()
	sentinel, master, _ := redistest.StartSentinel(t, time.Minute)
	dsn := "redis+sentinel://" + sentinel.Addr + "/" + redistest.MasterName
	admin := plainClient(t, master.Addr)
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 300 * time.Millisecond,
		New: func(*testing.T) dlocktest.Store {
			_, _ = master.Do("FLUSHALL")
			return dlocktest.Store{
				Driver: "redis", DSN: dsn,
				Open: func(t testing.TB) driver.Backend { return openBackend(t, dsn) },
				Delete: func(key string) {
					if err := admin.Del(context.Background(), inServer(key)).Err(); err != nil {
						t.Error(err)
					}
				},
			}
		},
	})
}

func TestClusterSpreadsLocksOverItsMasters(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3, nil)
	b := openBackend(t, "redis+cluster://"+servers[0].Addr)
	const locks = 60
	var claims []driver.Claim
	for i := range locks {
		c := claimFor(fmt.Sprintf("spread-%d", i), i, time.Minute)
		mustAcquire(t, b, c)
		claims = append(claims, c)
	}
	for _, s := range servers {
		if line, err := s.Do("DBSIZE"); err != nil || line == ":0" {
			t.Errorf("DBSIZE of %s = %q, %v; want some of the locks on every master", s.Addr, line, err)
		}
	}
	for i, r := range b.RenewBatch(limited(t, 5*time.Second), claims) {
		if r.Err != nil {
			t.Errorf("RenewBatch over all masters: claim %d: %v", i, r.Err)
		}
	}
	for _, c := range claims {
		if err := b.Release(limited(t, 5*time.Second), c); err != nil {
			t.Errorf("Release(%q) = %v", c.Key, err)
		}
	}
}

// TestSlotOnTheMove proves that a hold survives while its slot is being moved: renewal and the common release need one key only. What needs more keys
// fails as long as they are apart, and never claims to know who holds the lock.
func TestSlotOnTheMove(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 2, nil)
	b := openBackend(t, "redis+cluster://"+servers[0].Addr)
	ctx := limited(t, 20*time.Second)
	c := claimFor("moving", 1, time.Minute)
	g := mustAcquire(t, b, c)

	from, to := plainClient(t, servers[0].Addr), plainClient(t, servers[1].Addr)
	slot := from.ClusterKeySlot(ctx, c.Key).Val()
	if slot >= 8192 {
		from, to = to, from
	}
	fromID, toID := from.Do(ctx, "CLUSTER", "MYID").Val(), to.Do(ctx, "CLUSTER", "MYID").Val()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
	must(from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
	host, port, _ := net.SplitHostPort(to.Options().Addr)
	must(from.Do(ctx, "MIGRATE", host, port, c.Key, 0, 5000).Err()) // the lock is there, its fence still here

	if r, err := b.Renew(ctx, c); err != nil || r.Fence != g.Fence {
		t.Errorf("Renew while the slot moves = %v, %v; want fence %d", r, err, g.Fence)
	}
	other := claimFor("moving", 2, time.Minute)
	if _, err := b.Acquire(ctx, other); err == nil {
		t.Error("Acquire by another while the slot moves was granted")
	}
	if err := b.Release(ctx, c); err != nil {
		t.Errorf("Release while the slot moves = %v", err)
	}
	for _, k := range from.Do(ctx, "CLUSTER", "GETKEYSINSLOT", slot, 100).Val().([]any) {
		must(from.Do(ctx, "MIGRATE", host, port, k, 0, 5000).Err())
	}
	must(to.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
	must(from.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
	if after := mustAcquire(t, b, other); after.Fence <= g.Fence {
		t.Errorf("the fence after the slot has moved is %d, want more than %d", after.Fence, g.Fence)
	}
}

// TestFailover kills a master that Sentinel watches. A short hold is told by its deadline, before the replica is promoted; one that the replica had
// acknowledged and that outlasts the failover is kept; the promoted replica grants new locks, with fences that go on rising.
func TestFailover(t *testing.T) {
	t.Parallel()
	sentinel, master, replica := redistest.StartSentinel(t, 2*time.Second)
	dsn := "redis+sentinel://" + sentinel.Addr + "/" + redistest.MasterName + "?dial_timeout=3s&read_timeout=3s"
	ctx := limited(t, 60*time.Second)
	first := openLocker(t, dsn, dlock.Config{})
	second := openLocker(t, dsn, dlock.Config{})
	careful := openLocker(t, dsn+"&replicas=1", dlock.Config{})

	long, err := dlock.Acquire(ctx, careful, "long", dlock.WithTTL(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	short, err := dlock.Acquire(ctx, first, "short", dlock.WithTTL(400*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	late, told := faulttest.Lateness(t), make(chan time.Time, 1)
	go func() {
		<-short.Done()
		told <- time.Now()
	}()
	master.Kill()
	killed := time.Now()

	if took := faulttest.Receive(t, "the end of the short hold", told).Sub(short.ValidUntil()); took > 50*time.Millisecond+late() {
		t.Errorf("the holder was told %v after its deadline", took)
	}
	if err := short.Err(); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("Err of the hold = %v, want ErrOwnershipLost", err)
	}

	next, err := dlock.Acquire(ctx, second, "short")
	if err != nil {
		t.Fatalf("Acquire after the failover = %v", err)
	}
	t.Logf("%v from the death of the master to the next grant", time.Since(killed).Round(time.Millisecond))
	if next.Fence() <= short.Fence() {
		t.Errorf("the fence after the failover is %d, want more than %d", next.Fence(), short.Fence())
	}
	if text, err := replica.Text("INFO replication"); err != nil || !strings.Contains(text, "role:master") {
		t.Errorf("the lock was granted, and not by the promoted replica: %q, %v", text, err)
	}
	if err := next.Unlock(ctx); err != nil {
		t.Errorf("Unlock after the failover = %v", err)
	}

	if err := long.Extend(ctx, 30*time.Second); err != nil {
		t.Errorf("Extend of the hold that was replicated = %v, want the promoted replica to know it", err)
	}
	if ok, err := second.TryLock(ctx, "long"); ok || err != nil {
		t.Errorf("TryLock of the hold that was replicated = %v, %v; want false", ok, err)
	}
	if err := long.Unlock(ctx); err != nil {
		t.Errorf("Unlock of the hold that was replicated = %v", err)
	}
}

func TestWaiterSurvivesAFailover(t *testing.T) {
	t.Parallel()
	sentinel, master, _ := redistest.StartSentinel(t, 2*time.Second)
	dsn := "redis+sentinel://" + sentinel.Addr + "/" + redistest.MasterName + "?dial_timeout=3s&read_timeout=3s"
	ctx := limited(t, 60*time.Second)
	holder := openLocker(t, dsn+"&replicas=1", dlock.Config{DefaultTTL: 30 * time.Second})
	waiter := openLocker(t, dsn, dlock.Config{DefaultTTL: 30 * time.Second})
	held, err := dlock.Acquire(ctx, holder, "k")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- waiter.Lock(ctx, "k") }()
	seen := openBackend(t, dsn)
	redistest.Eventually(t, 10*time.Second, "somebody waits", func() bool {
		info, err := seen.Inspect(ctx, "k")
		return err == nil && len(info.Waiters) == 1
	})
	master.Kill()
	redistest.Eventually(t, 30*time.Second, "the promoted replica renews the hold", func() bool { return held.Extend(ctx, 30*time.Second) == nil })
	select {
	case err := <-got:
		t.Fatalf("the waiter's Lock = %v while the lock was held", err)
	default:
	}
	if err := held.Unlock(ctx); err != nil {
		t.Fatalf("Unlock after the failover = %v", err)
	}
	if err := <-got; err != nil {
		t.Errorf("the waiter's Lock = %v", err)
	}
}

func TestReplicasAcknowledge(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.StartReplica(t, master)
	a := openLocker(t, "redis://"+master.Addr+"?replicas=1", dlock.Config{})
	b := openLocker(t, "redis://"+master.Addr+"?replicas=1", dlock.Config{})
	ctx := limited(t, 30*time.Second)

	if err := a.Lock(ctx, "k"); err != nil {
		t.Fatalf("Lock with a replica that acknowledges = %v", err)
	}
	if line, err := replica.Do("EXISTS k"); err != nil || line != ":1" {
		t.Errorf("EXISTS on the replica = %q, %v; want the lock to be there when Lock has returned", line, err)
	}
	got := make(chan error, 1)
	go func() { got <- b.Lock(ctx, "k") }()
	seen := openBackend(t, "redis://"+master.Addr)
	redistest.Eventually(t, 10*time.Second, "somebody waits", func() bool {
		info, err := seen.Inspect(ctx, "k")
		return err == nil && len(info.Waiters) == 1
	})
	if err := a.Unlock(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatalf("Lock that was waited for, with a replica that acknowledges = %v", err)
	}
	if err := b.Unlock(ctx, "k"); err != nil {
		t.Fatal(err)
	}

	replica.Stop()
	ok, err := a.TryLock(ctx, "k")
	if ok || err == nil || errors.Is(err, driver.ErrHeld) {
		t.Errorf("TryLock with a replica that hangs = %v, %v; want an error", ok, err)
	}
	if err != nil && !strings.Contains(err.Error(), "0 of 1 replicas have acknowledged the grant") {
		t.Errorf("TryLock with a replica that hangs = %q, want it to say what is missing", err)
	}
	redistest.Eventually(t, 10*time.Second, "nothing is left of the attempt", func() bool {
		line, err := master.Do("EXISTS k")
		return err == nil && line == ":0"
	})
	replica.Continue()
	redistest.Eventually(t, 20*time.Second, "the replica acknowledges again", func() bool {
		ok, err := a.TryLock(ctx, "k")
		return ok && err == nil
	})
}

// tlsServer is a server with a port for TLS beside the plain one.
func tlsServer(t *testing.T, clients string) (server *redistest.Server, certs redistest.Certificates, addr string) {
	t.Helper()
	redistest.Require(t)
	certs = redistest.NewCertificates(t)
	port := redistest.FreePort(t)
	server = redistest.Start(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", certs.Cert, "--tls-key-file", certs.Key,
		"--tls-ca-cert-file", certs.CA, "--tls-auth-clients", clients)
	return server, certs, fmt.Sprintf("127.0.0.1:%d", port)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	_, certs, addr := tlsServer(t, "no")
	other := redistest.NewCertificates(t)
	for _, c := range []struct{ name, params, refused string }{
		{"the right authority", "?ca=" + certs.CA, ""},
		{"another authority", "?ca=" + other.CA, "certificate signed by unknown authority"},
		{"the machine's authorities", "", "certificate signed by unknown authority"},
		{"no check", "?insecure=true", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := openLocker(t, "rediss://"+addr+"/0"+c.params, dlock.Config{DefaultTTL: 20 * time.Second, RenewInterval: 200 * time.Millisecond})
			ctx := limited(t, 10*time.Second)
			ok, err := l.TryLock(ctx, "k")
			if c.refused != "" {
				if ok || err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("TryLock = %v, %v; want it refused: %s", ok, err, c.refused)
				}
				return
			}
			if !ok || err != nil {
				t.Fatalf("TryLock = %v, %v; want true", ok, err)
			}
			held, _ := dlock.LeaseOf(l, "k")
			before := held.ValidUntil()
			redistest.Eventually(t, 5*time.Second, "the hold is renewed", func() bool { return held.ValidUntil().After(before) })
			w := openLocker(t, "rediss://"+addr+"/0"+c.params, dlock.Config{})
			got := make(chan error, 1)
			go func() { got <- w.Lock(ctx, "k") }()
			if err := l.Unlock(ctx, "k"); err != nil {
				t.Errorf("Unlock = %v", err)
			}
			if err := <-got; err != nil {
				t.Errorf("Lock of a waiter = %v", err)
			}
		})
	}
}

func TestTLSWithACertificateOfTheClient(t *testing.T) {
	t.Parallel()
	_, certs, addr := tlsServer(t, "yes")
	ctx := limited(t, 10*time.Second)
	dsn := "rediss://" + addr + "?ca=" + certs.CA
	if err := openBackend(t, dsn).Ping(ctx); err == nil {
		t.Error("Ping without a certificate was answered")
	}
	if err := openBackend(t, dsn+"&cert="+certs.Cert+"&key="+certs.Key).Ping(ctx); err != nil {
		t.Errorf("Ping with a certificate = %v", err)
	}
}

// TestTLSChecksEveryServerByItsOwnName has a first host that does not answer, and whose name the certificate of the other has not.
func TestTLSChecksEveryServerByItsOwnName(t *testing.T) {
	t.Parallel()
	certs := redistest.NewCertificates(t)
	redistest.Require(t)
	ports := []int{redistest.FreePort(t), redistest.FreePort(t)}
	master := redistest.Start(t, "--tls-port", fmt.Sprint(ports[0]), "--tls-cert-file", certs.Cert, "--tls-key-file", certs.Key,
		"--tls-ca-cert-file", certs.CA, "--tls-auth-clients", "no", "--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1",
		"--cluster-port", fmt.Sprint(ports[1]))
	client := plainClient(t, master.Addr)
	ctx := limited(t, 20*time.Second)
	if err := client.ClusterAddSlotsRange(ctx, 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, "the cluster is in order", func() bool {
		return strings.Contains(client.ClusterInfo(ctx).Val(), "cluster_state:ok")
	})
	b := openBackend(t, fmt.Sprintf("rediss+cluster://127.0.0.2:1,127.0.0.1:%d?ca=%s", ports[0], certs.CA))
	mustAcquire(t, b, claimFor("k", 1, time.Minute))
}

// documentedRules reads the ACL rules out of the package's documentation: the line that begins with intro, and those below it.
func documentedRules(t *testing.T, intro string) []string {
	t.Helper()
	source, err := os.ReadFile("redis.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(source), "//\t"+intro)
	if !ok {
		t.Fatalf("the package's documentation has no line %q", intro)
	}
	var rules []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "//\t"))
		if line == "//" {
			break
		}
		rules = append(rules, strings.Fields(line)...)
	}
	return rules
}

// limitedUser makes a user who may do what the package's documentation lists and nothing else, and returns the DSN's user part.
func limitedUser(t *testing.T, server *redistest.Server, rules ...string) string {
	t.Helper()
	args := []any{"ACL", "SETUSER", "app", "reset", "on", ">secret", "~app:*"}
	for _, r := range append(documentedRules(t, "ACL SETUSER app on >password ~app:* &dlock:*"), rules...) {
		args = append(args, r)
	}
	if err := plainClient(t, server.Addr).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return "app:secret@"
}

func TestLimitedUserCanDoEverything(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, channels, params string }{
		{"the channels as they are by default", "&dlock:*", ""},
		{"channels with a prefix of their own", "&app:*", "?channel=app:events:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			dsn := "redis://" + limitedUser(t, server, c.channels) + server.Addr + c.params
			everything(t, server, dsn, "app:")
		})
	}
	t.Run("a cluster", func(t *testing.T) {
		server := redistest.StartCluster(t, 1, nil)[0]
		rules := documentedRules(t, "in a cluster:")
		everything(t, server, "redis+cluster://"+limitedUser(t, server, append(rules, "&dlock:*")...)+server.Addr, "app:")
	})
	t.Run("with replicas", func(t *testing.T) {
		server := redistest.Start(t, "--repl-diskless-sync-delay", "0")
		redistest.StartReplica(t, server)
		rules := documentedRules(t, "with replicas:")
		everything(t, server, "redis://"+limitedUser(t, server, append(rules, "&dlock:*")...)+server.Addr+"?replicas=1", "app:")
	})
}

// everything uses every request that the driver has.
func everything(t *testing.T, server *redistest.Server, dsn, prefix string) {
	t.Helper()
	ctx := limited(t, 20*time.Second)
	cfg := dlock.Config{Prefix: prefix, DefaultTTL: 20 * time.Second, RenewInterval: 200 * time.Millisecond}
	a, b := openLocker(t, dsn, cfg), openLocker(t, dsn, cfg)
	if err := dlock.Ping(ctx, a); err != nil {
		t.Errorf("Ping = %v", err)
	}
	held, err := dlock.Acquire(ctx, a, "k")
	if err != nil {
		t.Fatalf("Acquire = %v", err)
	}
	before := held.ValidUntil()
	redistest.Eventually(t, 5*time.Second, "the hold is renewed", func() bool { return held.ValidUntil().After(before) })
	got := make(chan error, 1)
	go func() { got <- b.Lock(ctx, "k") }()
	ops := openBackend(t, dsn)
	redistest.Eventually(t, 10*time.Second, "somebody waits", func() bool {
		info, err := ops.Inspect(ctx, prefix+"k")
		if err != nil {
			t.Fatalf("Inspect = %v", err)
		}
		return len(info.Waiters) == 1
	})
	if err := held.Unlock(ctx); err != nil {
		t.Errorf("Unlock = %v", err)
	}
	if err := <-got; err != nil {
		t.Fatalf("Lock of a waiter = %v", err)
	}
	for info, err := range ops.List(ctx, prefix) {
		if err != nil {
			t.Fatalf("List = %v", err)
		}
		if err := ops.Break(ctx, info.Key, info.Fence); err != nil {
			t.Errorf("Break = %v", err)
		}
	}
	if ok, err := a.TryLock(ctx, "k"); !ok || err != nil {
		t.Errorf("TryLock after Break = %v, %v; want true", ok, err)
	}
	if _, err := ops.Diagnose(ctx); err != nil {
		t.Errorf("Diagnose = %v", err)
	}
	denials := plainClient(t, server.Addr).ACLLog(ctx, 10).Val()
	for _, d := range denials {
		t.Errorf("the server has refused %s: %s, %q", d.Context, d.Reason, d.Object)
	}
}

func TestUserOutsideOfItsKeysIsRefusedForGood(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dsn := "redis://" + limitedUser(t, server, "&dlock:*") + server.Addr
	l := openLocker(t, dsn, dlock.Config{Prefix: "other:"})
	if err := l.Lock(limited(t, 10*time.Second), "k"); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Lock of a key that the user may not touch = %v, want a permanent error", err)
	}
	dsn = "redis://" + limitedUser(t, server, "&dlock:*", "-lpop", "-setrange", "-set") + server.Addr
	l = openLocker(t, dsn, dlock.Config{Prefix: "app:"})
	if err := l.Lock(limited(t, 10*time.Second), "k"); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Lock with a command that the user may not use in a script = %v, want a permanent error", err)
	}
	dsn = "redis://" + limitedUser(t, server) + server.Addr
	l = openLocker(t, dsn, dlock.Config{Prefix: "app:"})
	if err := l.Lock(limited(t, 10*time.Second), "k"); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Lock without a channel to wait on = %v, want a permanent error", err)
	}
}

// TestHandOverWithoutPublish forbids the message: the lock is handed over at once all the same, and the waiter finds out by asking, which it does every third
// of its TTL.
func TestHandOverWithoutPublish(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dsn := "redis://" + limitedUser(t, server, "&dlock:*", "-publish") + server.Addr
	ctx := limited(t, 20*time.Second)
	a := openBackend(t, dsn)
	holder := claimFor("app:k", 1, time.Minute)
	mustAcquire(t, a, holder)
	first := startWait(t, openBackend(t, dsn), claimFor("app:k", 2, 3*time.Second))
	second := startWait(t, openBackend(t, dsn), claimFor("app:k", 3, 3*time.Second))
	released := time.Now()
	if err := a.Release(ctx, holder); err != nil {
		t.Fatalf("Release = %v, want it to succeed without its message", err)
	}
	info, err := a.Inspect(ctx, "app:k")
	if err != nil || info.Owner != "owner 2" || !slices.Equal(info.Waiters, []string{"owner 3"}) {
		t.Errorf("after the release Inspect = %+v, %v; want owner 2 to have the lock and owner 3 to wait", info, err)
	}
	g := first.granted(t)
	if took := time.Since(released); took > 2*time.Second {
		t.Errorf("the hand-over took %v, want about a third of the TTL at most", took)
	}
	if g.Fence != info.Fence {
		t.Errorf("the waiter has fence %d, and the server %d", g.Fence, info.Fence)
	}
	if err := a.Release(ctx, claimFor("app:k", 2, 0)); err != nil {
		t.Errorf("Release of the waiter's hold = %v", err)
	}
	second.granted(t)
}

func TestNotifyOffPolls(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dsn := "redis://" + server.Addr + "?notify=off"
	if _, err := openBackend(t, dsn).Wait(t.Context(), claimFor("k", 1, time.Second), func() {}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Wait = %v, want errors.ErrUnsupported", err)
	}
	a, b := openLocker(t, dsn, dlock.Config{}), openLocker(t, dsn, dlock.Config{RetryInterval: 20 * time.Millisecond})
	ctx := limited(t, 20*time.Second)
	if err := a.Lock(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- b.Lock(ctx, "k") }()
	stats := plainClient(t, server.Addr)
	redistest.Eventually(t, 10*time.Second, "the waiter asks again and again", func() bool {
		return strings.Contains(stats.Info(ctx, "commandstats").Val(), "cmdstat_evalsha:calls=") && calls(stats.Info(ctx, "commandstats").Val(), "evalsha") >= 5
	})
	if err := a.Unlock(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("Lock by polling = %v", err)
	}
	if text := stats.Info(ctx, "commandstats").Val(); strings.Contains(text, "cmdstat_subscribe") || strings.Contains(text, "cmdstat_rpush") {
		t.Error("the waiter subscribed or entered the queue, and notify is off")
	}
}

// calls reads how often a command was called from INFO commandstats.
func calls(stats, command string) (n int) {
	_, rest, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	_, _ = fmt.Sscanf(rest, "%d", &n)
	return n
}

func TestOldServerIsRefused(t *testing.T) {
	addr, asked := fakeServer(t, "# Server\r\nredis_version:6.0.9\r\nredis_mode:standalone\r\n")
	l := openLocker(t, "redis://"+addr, dlock.Config{})
	err := l.Lock(limited(t, 10*time.Second), "k")
	if !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Lock = %v, want a permanent error", err)
	}
	const want = "the server has version 6.0.9; dlock needs 6.2 or newer"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Lock = %v, want: %s", err, want)
	}
	for _, name := range asked() {
		if strings.HasPrefix(name, "EVAL") { // or EVALSHA
			t.Errorf("the old server was sent %s", name)
		}
	}
}

// openLocker opens a DSN as a Locker for the length of the test.
func openLocker(t testing.TB, dsn string, cfg dlock.Config) dlock.Locker {
	t.Helper()
	l, err := dlock.Open("redis", dsn, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// granted waits until the claim has the lock.
func (w *waiting) granted(t testing.TB) driver.Grant {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(15 * time.Second):
		t.Fatal("Wait has not returned")
	}
	if w.err != nil {
		t.Fatalf("Wait = %v, want it granted", w.err)
	}
	return w.grant
}
