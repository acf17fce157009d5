package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
)

func TestALockIsOneTransactionAndAnUnlockOneDelete(t *testing.T) {
	t.Parallel()
	client, sent := observed(t, etcdtest.Start(t))
	l, err := dlock.New(etcddriver.New(client), &dlock.Config{DefaultTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx := bounded(t)
	cycle := func(lock func(key string) error) {
		t.Helper()
		if err := lock("k"); err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
	}
	lock := func(key string) error { return l.Lock(ctx, key) }
	try := func(key string) error {
		if ok, err := l.TryLock(ctx, key); !ok {
			return fmt.Errorf("TryLock = false, %w", err)
		}
		return nil
	}
	cycle(lock)
	if got, want := sent.take(), map[string]int{"LeaseGrant": 1, "Txn": 1, "DeleteRange": 1}; !maps.Equal(got, want) {
		t.Errorf("the first lock and unlock sent %v, want %v", got, want)
	}
	for range 10 {
		cycle(lock)
		cycle(try)
	}
	if got, want := sent.take(), map[string]int{"Txn": 20, "DeleteRange": 20}; !maps.Equal(got, want) {
		t.Errorf("20 locks and unlocks sent %v, want %v", got, want)
	}
}

func TestTryLockOfAHeldKeyIsOneRequestAndWritesNothing(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	client, sent := observed(t, m)
	a, b := openDSN(t, "etcd://"+m.Addr), etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	acquired(t, b, claimBy(1, "other", time.Minute))
	acquired(t, a, claimBy(2, "k", time.Minute))
	sent.take()
	before := revision(t, client)
	if _, err := b.Acquire(bounded(t), claimBy(3, "k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire of a held key = %v, want ErrHeld", err)
	}
	if after := revision(t, client); after != before {
		t.Errorf("a refused Acquire moved the store from revision %d to %d", before, after)
	}
	if got, want := sent.take(), map[string]int{"Txn": 1, "Range": 2}; !maps.Equal(got, want) {
		t.Errorf("a refused Acquire, and two looks at the revision, sent %v, want %v", got, want)
	}
}

func revision(t testing.TB, client *clientv3.Client) int64 {
	t.Helper()
	resp, err := client.Get(bounded(t), "none")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// holdMany has a Locker on client hold n locks.
func holdMany(t *testing.T, client *clientv3.Client, prefix string, n int, ttl time.Duration) []*dlock.Lease {
	t.Helper()
	x, err := dlock.New(etcddriver.New(client), &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	leases := make([]*dlock.Lease, n)
	var wg sync.WaitGroup
	for from := range 20 {
		wg.Go(func() {
			for i := from; i < n; i += 20 {
				x, err := dlock.Acquire(t.Context(), x, fmt.Sprint(prefix, i))
				if err != nil {
					t.Errorf("Acquire = %v", err)
				}
				leases[i] = x
			}
		})
	}
	wg.Wait()
	return leases
}

func TestManyHeldLocksAreKeptByOneKeepAlive(t *testing.T) {
	t.Parallel()
	const n, ttl = 300, 9 * time.Second
	client, sent := observed(t, etcdtest.Start(t))
	leases := holdMany(t, client, "k", n, ttl)
	time.Sleep(ttl * 2 / 3) // until all are renewed together
	sent.take()
	began := time.Now()
	time.Sleep(ttl)
	got, rounds := sent.take(), int(time.Since(began)/(ttl/3))
	// The engine renews up to a quarter early.
	if most := rounds*4/3 + 1; got["LeaseKeepAlive"] > most || got["LeaseKeepAlive"] < rounds/2 {
		t.Errorf("%d locks sent %d keepalives in %d thirds of their TTL, want about one for each", n, got["LeaseKeepAlive"], rounds)
	}
	if got["Txn"]+got["Range"]+got["LeaseGrant"] > 0 {
		t.Errorf("locks that are only held sent %v", got)
	}
	for _, x := range leases {
		if x != nil && !x.Held() {
			t.Fatalf("a lock was lost: %v", x.Err())
		}
	}
}

// TestARenewalThatNeedsNoKeepAliveIsNotRepeatedAtOnce counts the requests of holds that the driver renews without sending a keepalive.
func TestARenewalThatNeedsNoKeepAliveIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	for name, c := range map[string]struct {
		cfg    dlock.Config
		extend time.Duration
	}{
		"an interval shorter than the slack": {dlock.Config{DefaultTTL: 30 * time.Second, RenewInterval: time.Second}, 0},
		"Extend by less than is left":        {dlock.Config{DefaultTTL: 20 * time.Second}, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, sent := observed(t, m)
			l, err := dlock.New(etcddriver.New(client), &c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			x := faulttest.Hold(t, l, name)
			if c.extend > 0 {
				if err := x.Extend(t.Context(), c.extend); err != nil {
					t.Fatal(err)
				}
			}
			sent.take()
			time.Sleep(4 * time.Second)
			total := 0
			got := sent.take()
			for _, n := range got {
				total += n
			}
			if total < 2 || total > 20 {
				t.Errorf("a hold that is renewed every second sent %v in 4s, want few", got)
			}
			if !x.Held() {
				t.Errorf("lost: %v", x.Err())
			}
		})
	}
}

// TestALockThatIsHeldHasNoGoroutine is not parallel, because it counts those of all tests.
func TestALockThatIsHeldHasNoGoroutine(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	holdMany(t, client, "one", 1, time.Minute)
	before := runtime.NumGoroutine()
	holdMany(t, client, "many", 500, time.Minute)
	faulttest.Eventually(t, 10*time.Second, "there are hardly more goroutines with 500 locks held than with one", func() bool { return runtime.NumGoroutine() < before+20 })
}

func TestAHoldThatNobodyRenewsEndsAlthoughItsLeaseLivesOn(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	b, other := openDSN(t, "etcd://"+m.Addr), openDSN(t, "etcd://"+m.Addr)
	forgotten, kept := claimBy(1, "forgotten", 2*time.Second), claimBy(2, "kept", 2*time.Second)
	g := acquired(t, b, forgotten)
	acquired(t, b, kept)
	faulttest.Eventually(t, 10*time.Second, "the hold that nobody renews ends", func() bool {
		if _, err := b.Renew(bounded(t), kept); err != nil {
			t.Fatalf("Renew = %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		_, err := other.Acquire(bounded(t), claimBy(3, "forgotten", time.Minute))
		return err == nil
	})
	if d := time.Since(g.Start); d < g.TTL-g.TTL/100 {
		t.Errorf("a hold of %v ended after %v", g.TTL, d)
	}
	if _, err := b.Renew(bounded(t), forgotten); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Renew of the hold that ended = %v, want ErrNotOwner", err)
	}
}

func TestAnotherTTLMovesTheKeyToAnotherLeaseAndKeepsItsFence(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	admin := m.Client(t)
	b := openDSN(t, "etcd://"+m.Addr)
	c := claimBy(1, "k", 5*time.Second)
	first := acquired(t, b, c)
	lease := leaseOf(t, admin, etcddriver.Name(b, c))
	c.TTL = time.Minute
	g, err := b.Renew(bounded(t), c)
	if err != nil || g.Fence != first.Fence || g.TTL != time.Minute {
		t.Errorf("Renew by a minute = fence %d, TTL %v, %v; want the fence %d and a minute", g.Fence, g.TTL, err, first.Fence)
	}
	longer := leaseOf(t, admin, etcddriver.Name(b, c))
	if longer == lease {
		t.Error("the key is on the lease that it was on, want that of another TTL")
	}
	c.TTL = 5 * time.Second
	if g, err = b.Renew(bounded(t), c); err != nil || time.Until(g.Start.Add(g.TTL)) < 50*time.Second {
		t.Errorf("Renew by 5s of a hold with a minute left = %+v, %v; want it to keep what it has", g, err)
	}
	if now := leaseOf(t, admin, etcddriver.Name(b, c)); now != longer {
		t.Error("a renewal by less moved the key to a shorter lease")
	}
	if err := b.Release(bounded(t), c); err != nil {
		t.Errorf("Release = %v", err)
	}
}

func leaseOf(t testing.TB, client *clientv3.Client, name string) int64 {
	t.Helper()
	resp, err := client.Get(bounded(t), name)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("Get = %v, %v; want the key", resp, err)
	}
	return resp.Kvs[0].Lease
}

// isMove reports whether a request puts a key that is there already on another lease.
func isMove(req any) bool {
	r, ok := req.(*pb.TxnRequest)
	return ok && len(r.Compare) == 1 && r.Compare[0].Target == pb.Compare_MOD
}

var errCut = errors.New("the connection was cut")

// TestAMoveThatIsLateDoesNotTakeTheKeyBack has the request that moves a key to a longer lease arrive when the key was renewed where it was.
func TestAMoveThatIsLateDoesNotTakeTheKeyBack(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	admin := m.Client(t)
	client, sent := observed(t, m)
	b := etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	c := claimBy(1, "k", 10*time.Second)
	first := acquired(t, b, c)
	lease := leaseOf(t, admin, etcddriver.Name(b, c))

	var late func(context.Context) error
	sent.on(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
		if isMove(req) {
			late = send
			return errCut
		}
		return send(ctx)
	})
	longer := c
	longer.TTL = time.Minute
	if _, err := b.Renew(bounded(t), longer); !errors.Is(err, errCut) {
		t.Fatalf("Renew = %v, want that the request was lost", err)
	}
	sent.on(nil)
	if _, err := b.Renew(bounded(t), c); err != nil {
		t.Fatalf("Renew as before = %v", err)
	}
	if err := late(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if now := leaseOf(t, admin, etcddriver.Name(b, c)); now != lease {
		t.Error("a request that came late moved the key to a lease on which nobody counts on it")
	}
	if g, err := b.Renew(bounded(t), c); err != nil || g.Fence != first.Fence {
		t.Errorf("Renew afterwards = %+v, %v; want the fence %d", g, err, first.Fence)
	}
}

func TestAMoveWhoseReplyIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	client, sent := observed(t, etcdtest.Start(t))
	b := etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	c := claimBy(1, "k", 5*time.Second)
	first := acquired(t, b, c)
	c.TTL = time.Minute
	sent.on(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
		err := send(ctx)
		if isMove(req) {
			return errCut
		}
		return err
	})
	if _, err := b.Renew(bounded(t), c); !errors.Is(err, errCut) {
		t.Fatalf("Renew = %v, want that the reply was lost", err)
	}
	sent.on(nil)
	if g, err := b.Renew(bounded(t), c); err != nil || g.Fence != first.Fence || g.TTL != time.Minute {
		t.Errorf("Renew again = %+v, %v; want the fence %d and a minute", g, err, first.Fence)
	}
	if err := b.Release(bounded(t), c); err != nil {
		t.Errorf("Release = %v", err)
	}
}

func TestAKeyOnALeaseThatNobodyKnowsIsDeleted(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	admin := m.Client(t)
	b := openDSN(t, "etcd://"+m.Addr)
	c := claimBy(1, "k", time.Minute)
	acquired(t, b, c)
	id := clientv3.LeaseID(leaseOf(t, admin, etcddriver.Name(b, c)))
	late := claimBy(2, "stray", time.Minute)
	stray := etcddriver.Name(b, late)
	if _, err := admin.Put(bounded(t), stray, etcddriver.Value(late), clientv3.WithLease(id)); err != nil {
		t.Fatal(err)
	}
	if r := b.RenewBatch(bounded(t), []driver.Claim{c}); r[0].Err != nil {
		t.Fatalf("RenewBatch = %v", r[0].Err)
	}
	faulttest.Eventually(t, 5*time.Second, "the key that nobody knows is deleted", func() bool {
		resp, err := admin.Get(bounded(t), stray)
		return err == nil && len(resp.Kvs) == 0
	})
	if _, err := b.Renew(bounded(t), c); err != nil {
		t.Errorf("Renew of the hold on the same lease = %v", err)
	}
}

func TestALeaseThatNobodyUsesIsRevoked(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	admin := m.Client(t)
	client, sent := observed(t, m)
	b := etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	c := claimBy(1, "k", 6*time.Second)
	acquired(t, b, c)
	if err := b.Release(bounded(t), c); err != nil {
		t.Fatal(err)
	}
	if _, leases := etcddriver.Entries(b); leases != 1 {
		t.Errorf("%d leases after a release, want one at hand", leases)
	}
	faulttest.Eventually(t, 7*time.Second, "the lease is gone, before it ends by itself", func() bool {
		resp, err := admin.Leases(bounded(t))
		entries, leases := etcddriver.Entries(b)
		return err == nil && len(resp.Leases) == 0 && entries == 0 && leases == 0
	})
	if got := sent.take(); got["LeaseRevoke"] != 1 {
		t.Errorf("a lease that was not used any more sent %v, want it revoked", got)
	}
	acquired(t, b, c)
}

func TestCloseRevokesItsLeases(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	admin := m.Client(t)
	for i := range 10 {
		b := openDSN(t, "etcd://"+m.Addr)
		acquired(t, b, claimBy(1, fmt.Sprint("k", i), time.Minute))
		acquired(t, b, claimBy(2, fmt.Sprint("l", i), time.Hour))
		had := leaseCount(t, admin)
		began := time.Now()
		if err := b.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		took := time.Since(began)
		left := leaseCount(t, admin)
		if left == had-2 {
			return
		}
		if took < 200*time.Millisecond { // else the server did not answer as long as Close waits for it
			t.Errorf("%d leases before Close and %d after it, want two less", had, left)
		}
	}
}

func leaseCount(t *testing.T, admin *clientv3.Client) int {
	t.Helper()
	resp, err := admin.Leases(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.Leases)
}

func TestEscapedKeysAreDifferentAndHaveNoSlash(t *testing.T) {
	all := []string{""}
	for range 4 {
		for _, key := range all {
			for _, c := range []string{"/", "%", "2", "F", "5", "\x00"} {
				all = append(all, key+c)
			}
		}
		if len(all) > 3000 {
			break
		}
	}
	seen := map[string]string{}
	for _, key := range all {
		e := etcddriver.Escape(key)
		if other, ok := seen[e]; ok && other != key {
			t.Fatalf("%q and %q are both escaped as %q", key, other, e)
		}
		seen[e] = key
		if strings.Contains(e, "/") || etcddriver.Unescape(e) != key {
			t.Fatalf("%q is escaped as %q, and that unescaped is %q", key, e, etcddriver.Unescape(e))
		}
	}
}

func TestNoTokenIsInTheStore(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	b := openDSN(t, "etcd://"+m.Addr)
	c := claimBy(0xabcdef, "k", time.Minute)
	acquired(t, b, c)
	resp, err := m.Client(t).Get(bounded(t), "", clientv3.WithFromKey())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("Get = %v, %v; want one key", resp, err)
	}
	if kv := resp.Kvs[0]; strings.Contains(string(kv.Key)+string(kv.Value), c.Token) {
		t.Errorf("the key %q with the value %q shows the token", kv.Key, kv.Value)
	}
}
