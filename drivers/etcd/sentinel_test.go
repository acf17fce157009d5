package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// guarded has b hold locks of these names whose lease is watched. The keys whose holds may be lost
// come.
func guarded(
	t *testing.T, s *site, b *etcddriver.Backend, ttl time.Duration, keys ...string,
) ([]driver.Claim, <-chan string) {
	t.Helper()
	suspects := make(chan string, 100)
	b.WatchLosses(func(key string) { suspects <- key })
	var claims []driver.Claim
	for _, key := range keys {
		claims = append(claims, faulttest.Claim(key, ttl))
		acquired(t, b, claims[len(claims)-1])
	}
	for _, r := range b.RenewBatch(bounded(t), claims) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	faulttest.Eventually(t, 10*time.Second, "the lease is watched", func() bool { return len(s.sentinels(t)) == 1 && s.watchers(t) == 1 })
	return claims, suspects
}

// sentinels returns the keys that are there to be watched.
func (s *site) sentinels(t *testing.T) (names []string) {
	t.Helper()
	r, err := s.witness.Get(bounded(t), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range r.Kvs {
		if strings.Contains(string(kv.Key), "%lease-") {
			names = append(names, string(kv.Key))
		}
	}
	return names
}

// G9. The server ends a lease whose keepalive it has acknowledged, as a leader does that has
// stalled.
func TestALeaseThatTheServerEndsIsToldAtOnce(t *testing.T) {
	t.Parallel()
	const ttl = time.Hour // the next renewal is far away
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	claims, suspects := guarded(t, s, b, ttl, "a/b", "%", "c")
	slow := s.slowness(t)
	revoked := s.revoke(t, etcddriver.Escape("a/b"), 0)
	told := map[string]bool{}
	for range claims {
		told[faulttest.Receive(t, "a hold that may be lost", suspects)] = true
	}
	if took := time.Since(revoked); took > 500*time.Millisecond+3*slow() {
		t.Errorf("told %v after the lease had ended, want it at once", took)
	}
	for _, c := range claims {
		if !told[c.Key] {
			t.Errorf("nothing was told of %q; told of %v", c.Key, told)
		}
		if _, err := b.Renew(bounded(t), c); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Renew of %q = %v, want ErrNotOwner", c.Key, err)
		}
	}
}

// Somebody else finds out first that a lease has ended, and it is not used again.
func TestHoldersAreToldOfALeaseThatAnAcquireFoundEnded(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	suspects := make(chan string, 10)
	b.WatchLosses(func(key string) { suspects <- key })
	acquired(t, b, faulttest.Claim("held", time.Hour)) // it is not watched, as it was not renewed yet
	s.revoke(t, "held", 0)
	acquired(t, b, faulttest.Claim("other", time.Hour))
	if key := faulttest.Receive(t, "a hold that may be lost", suspects); key != "held" {
		t.Errorf("told of %q, want held", key)
	}
}

// A waiter whose lease the server has ended does not wait until its next keepalive.
func TestAWaiterIsToldAtOnceThatItsLeaseHasEnded(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	guarded(t, s, b, time.Hour, "held")
	acquired(t, openBackend(t, s.Addrs()...), faulttest.Claim("busy", time.Hour))
	ended := queued(t, b, faulttest.Claim("busy", time.Hour))
	slow := s.slowness(t)
	revoked := s.revoke(t, "held", 0)
	if err := faulttest.Receive(t, "the end of the wait", ended); err == nil {
		t.Error("Wait = nil, although another owner has the lock")
	}
	if took := time.Since(revoked); took > time.Second+5*slow() {
		t.Errorf("told %v after the lease had ended, want it at once", took)
	}
}

func TestASentinelIsNoContenderAndNotListed(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	claims, suspects := guarded(t, s, b, time.Minute, "svc")
	if err := b.Release(bounded(t), claims[0]); err != nil {
		t.Fatal(err)
	}
	if len(s.sentinels(t)) != 1 {
		t.Fatal("there is no sentinel to look at")
	}
	session, err := concurrency.NewSession(s.witness)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	m := concurrency.NewMutex(session, "svc")
	if err := m.TryLock(bounded(t)); err != nil {
		t.Errorf("TryLock of concurrency.Mutex = %v", err)
	}
	if err := m.Unlock(bounded(t)); err != nil {
		t.Error(err)
	}
	for _, prefix := range []string{"", "svc"} {
		for info, err := range b.List(bounded(t), prefix) {
			t.Errorf("List(%q) shows %+v, %v; want nothing", prefix, info, err)
		}
	}
	if info, err := b.Inspect(bounded(t), "svc"); err != nil || info.Fence != 0 || len(info.Waiters) > 0 {
		t.Errorf("Inspect = %+v, %v; want that nobody has it", info, err)
	}
	acquired(t, b, faulttest.Claim("svc", time.Minute))
	if len(suspects) > 0 {
		t.Errorf("%d holds were said to be lost, want none", len(suspects))
	}
}

// A lease that ends because nobody uses it is nobody's loss, and nothing is watched then.
func TestASentinelGoesWithItsLease(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	claims, suspects := guarded(t, s, b, 3*time.Second, "k")
	if err := b.Release(bounded(t), claims[0]); err != nil {
		t.Fatal(err)
	}
	faulttest.Eventually(t, 20*time.Second, "the lease, its sentinel and the watch are gone", func() bool {
		_, leases := etcddriver.Entries(b)
		return leases == 0 && len(s.sentinels(t)) == 0 && s.watchers(t) == 0
	})
	if len(suspects) > 0 {
		t.Errorf("%q was said to be lost", <-suspects)
	}
}

// Somebody deletes the sentinel: nothing is lost, and another one is made.
func TestASentinelThatIsDeletedIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	claims, suspects := guarded(t, s, b, time.Minute, "k")
	if _, err := s.witness.Delete(bounded(t), s.sentinels(t)[0]); err != nil {
		t.Fatal(err)
	}
	faulttest.Receive(t, "a hold that may be lost", suspects)
	faulttest.Eventually(t, 10*time.Second, "the lease is watched again", func() bool {
		if _, err := b.Renew(bounded(t), claims[0]); err != nil {
			t.Fatalf("Renew = %v", err)
		}
		return len(s.sentinels(t)) == 1 && s.watchers(t) == 1
	})
}

// A user whose permission ends at one lock's keys locks all the same.
func TestASentinelThatIsRefusedIsDoneWithout(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	admin, ctx := m.Client(t), bounded(t)
	if _, err := admin.RoleAdd(ctx, "narrow"); err != nil {
		t.Fatal(err)
	}
	all := clientv3.GetPrefixRangeEnd("app/")
	if _, err := admin.RoleGrantPermission(ctx, "narrow", "app/", all, clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UserAdd(ctx, "narrow", "secret"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UserGrantRole(ctx, "narrow", "narrow"); err != nil {
		t.Fatal(err)
	}
	enableAuth(t, m)
	client, w := dialWireAs(t, "narrow", "secret", m.Addr)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	b.WatchLosses(func(key string) { t.Errorf("%q was said to be lost", key) })
	c := faulttest.Claim("app", time.Minute)
	acquired(t, b, c)
	puts := 0
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		err := send(ctx)
		if strings.Contains(fmt.Sprint(req), "%lease-") {
			puts++
		}
		return err
	})
	for range 5 {
		if _, err := b.Renew(bounded(t), c); err != nil {
			t.Fatalf("Renew = %v", err)
		}
		time.Sleep(20 * time.Millisecond) // nothing shows that the refusal has come
	}
	if err := b.Close(); err != nil { // ends what is under way
		t.Error(err)
	}
	if puts != 1 {
		t.Errorf("it was tried to make the sentinel %d times, want once", puts)
	}
}
