package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// newSession is a session of the concurrency package, as etcdctl lock makes one.
func newSession(t *testing.T, s *site) *concurrency.Session {
	t.Helper()
	session, err := concurrency.NewSession(s.Client(t), concurrency.WithTTL(10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func TestAMutexOfTheConcurrencyPackageKeepsDlockOut(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	m := concurrency.NewMutex(newSession(t, s), "app/lock")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := namespaced(t, s)
	if ok, err := l.TryLock(t.Context(), "lock"); ok || err != nil {
		t.Fatalf("TryLock = %v, %v; want false", ok, err)
	}
	got := make(chan *dlock.Lease, 1)
	go func() {
		x, _ := dlock.Acquire(t.Context(), l, "lock")
		got <- x
	}()
	faulttest.Eventually(t, 10*time.Second, "dlock waits behind the mutex", func() bool { return s.count(t, "app/lock") == 2 })
	if first := s.contenders(t, "app/lock")[0]; string(first.Key) != m.Key() {
		t.Fatalf("the first is %q, want the mutex' key %q", first.Key, m.Key())
	}
	if err := m.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := faulttest.Receive(t, "the lock", got)
	if x == nil || !x.Held() || x.Fence()/256 <= uint64(m.Header().Revision) {
		t.Fatalf("got %v after the mutex, want a hold with a greater fence than revision %d", x, m.Header().Revision)
	}
}

func TestDlockKeepsAMutexOfTheConcurrencyPackageOut(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	x := faulttest.Hold(t, namespaced(t, s), "lock")
	m := concurrency.NewMutex(newSession(t, s), "app/lock")
	if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("the mutex' TryLock = %v, want ErrLocked", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- m.Lock(t.Context()) }()
	faulttest.Eventually(t, 10*time.Second, "the mutex waits behind dlock", func() bool { return s.count(t, "app/lock") == 2 })
	if err := x.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := faulttest.Receive(t, "the mutex' Lock", locked); err != nil {
		t.Fatal(err)
	}
	r, err := s.witness.Txn(t.Context()).If(m.IsOwner()).Commit()
	if err != nil || !r.Succeeded {
		t.Errorf("the mutex is not the owner of its key: %v, %v", r, err)
	}
}

// namespaced is a Locker for the locks below app/.
func namespaced(t *testing.T, s *site) dlock.Locker {
	t.Helper()
	l, err := dlock.Open("etcd", dsnOf(s.Addrs()...)+"?namespace=app/", &dlock.Config{DefaultTTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// etcdctlLock does what etcdctl lock does: a session, a mutex, and then the key goes to standard output. It is a client of its own.
func etcdctlLock(ctx context.Context, t *testing.T, s *site, name string) (key string, unlock func() error, err error) {
	session := newSession(t, s)
	m := concurrency.NewMutex(session, name)
	if err := m.Lock(ctx); err != nil {
		return "", nil, err
	}
	r, err := session.Client().Get(ctx, m.Key())
	if err != nil || len(r.Kvs) == 0 {
		return "", nil, fmt.Errorf("lock lost on init: %w", err)
	}
	return m.Key(), func() error { return m.Unlock(context.Background()) }, nil
}

func TestEtcdctlLockAndDlockTakeTurns(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	l := openLocker(t, 10*time.Second, s.Addrs()...)
	key, unlock, err := etcdctlLock(t.Context(), t, s, "lock")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(key, "lock/") {
		t.Fatalf("etcdctl holds %q, want a key below lock/", key)
	}
	if ok, err := l.TryLock(t.Context(), "lock"); ok || err != nil {
		t.Errorf("TryLock while etcdctl holds it = %v, %v; want false", ok, err)
	}
	// An operator ends it by deleting the key that etcdctl has printed.
	if _, err := s.witness.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	x := faulttest.Hold(t, l, "lock")
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if n := s.count(t, "lock"); !x.Held() || n != 1 {
		t.Errorf("held %v, and the server has %d keys; want true and 1", x.Held(), n)
	}
	// And dlock's likewise, which then says so.
	if _, err := s.witness.Delete(t.Context(), "lock/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	faulttest.Ended(t, x, 10*time.Second)
	if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
	}
}

func TestMutexesAndDlockExcludeEachOtherUnderContention(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	var inside, worst, total atomic.Int64
	work := func() {
		if n := inside.Add(1); n > worst.Load() {
			worst.Store(n)
		}
		time.Sleep(200 * time.Microsecond)
		inside.Add(-1)
		total.Add(1)
	}
	const clients, times = 4, 8
	var wg sync.WaitGroup
	for range clients {
		l, session := openLocker(t, 10*time.Second, s.Addrs()...), newSession(t, s)
		wg.Go(func() {
			for range times {
				err := dlock.Do(t.Context(), l, "lock", func(context.Context) error { work(); return nil })
				if err != nil {
					t.Errorf("Do: %v", err)
				}
			}
		})
		wg.Go(func() {
			for range times {
				m := concurrency.NewMutex(session, "lock")
				if err := m.Lock(t.Context()); err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				work()
				if err := m.Unlock(t.Context()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if total.Load() != 2*clients*times || worst.Load() != 1 {
		t.Errorf("%d holds, of which %d at the same time; want %d and 1", total.Load(), worst.Load(), 2*clients*times)
	}
}

func TestADeadSessionLetsDlockIn(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	session, err := concurrency.NewSession(s.Client(t), concurrency.WithTTL(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(session, "lock").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	session.Orphan() // as if its process had died
	x := faulttest.Hold(t, openLocker(t, 10*time.Second, s.Addrs()...), "lock")
	if n := s.count(t, "lock"); !x.Held() || n != 1 {
		t.Errorf("held %v, and the server has %d keys; want true and 1", x.Held(), n)
	}
}
