package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// follower returns a member that does not lead.
func (s *site) follower(t *testing.T) *etcdtest.Member {
	t.Helper()
	leader := s.Leader(t)
	for _, m := range s.Cluster {
		if m != leader {
			return m
		}
	}
	t.Fatal("there is no follower")
	return nil
}

// G9. The requests that go to the member that hangs are given up and go to another one.
func TestAMemberThatHangsDoesNotHoldUpALock(t *testing.T) {
	t.Parallel()
	s := startSite(t, 3)
	l := openLocker(t, 10*time.Second, s.Addrs()...)
	busy := faulttest.Hold(t, openLocker(t, time.Minute, s.Addrs()...), "busy")
	for i := range 9 { // the connections to all members are there
		if err := faulttest.Hold(t, l, fmt.Sprint("warm-", i)).Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	hung := s.follower(t)
	witness := s.Leader(t).Client(t)
	slow := faulttest.Slowness(t, func(ctx context.Context) { _, _ = witness.Get(ctx, "slowness") })
	late := func() time.Duration { return 5 * slow() } // the driver is more patient with slow members
	hung.Stop()
	defer hung.Continue()
	var longest time.Duration
	for i := range 12 {
		began := time.Now()
		x := faulttest.Hold(t, l, fmt.Sprint("k-", i))
		took := time.Since(began)
		if longest = max(longest, took); took > 2*time.Second+late() {
			t.Errorf("Lock number %d took %v, want at most 2s", i, took)
		}
		if !x.Held() {
			t.Errorf("lost: %v", x.Err())
		}
	}
	t.Logf("the longest Lock took %v", longest)
	// Those who wait watch at a member that answers.
	var waiting []<-chan *dlock.Lease
	for i := range 3 {
		waiting = append(waiting, acquiring(t, s, openLocker(t, time.Minute, s.Addrs()...), "busy", 2+i))
	}
	time.Sleep(2 * time.Second) // for watches that have to be made again
	began := time.Now()
	if err := busy.Unlock(t.Context()); err != nil {
		t.Logf("Unlock: %v", err) // it is repeated in the background
	}
	for range waiting {
		x := inTime(t, "the lock that was waited for", waiting[0], began, 3*time.Second, late)
		waiting = waiting[1:]
		if err := x.Unlock(t.Context()); err != nil {
			t.Logf("Unlock: %v", err)
		}
		began = time.Now()
	}
}

// closedPort returns an address that nobody listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// The cause is told, not only that the time is over.
func TestAServerThatRefusesConnectionsIsNamedInTheError(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"", "app:secret@"} {
		t.Run("user "+user, func(t *testing.T) {
			t.Parallel()
			dsn := "etcd://" + user + closedPort(t) + "/?dial_timeout=500ms"
			l, err := dlock.Open("etcd", dsn, &dlock.Config{WaitTimeout: 4 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection refused") }
			if ok, err := l.TryLock(t.Context(), "k"); ok || !refused(err) {
				t.Errorf("TryLock = %v, %v; want that the connection is refused", ok, err)
			}
			if err := l.Lock(t.Context(), "k"); !refused(err) {
				t.Errorf("Lock = %v; want that the connection is refused", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := l.Lock(ctx, "k"); !refused(err) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock with a second of time = %v; want that the connection is refused, and the context's error", err)
			}
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := dlock.Ping(ctx, l); !refused(err) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Ping with a second of time = %v; want that the connection is refused, and the context's error", err)
			}
		})
	}
}

// The permission is taken away while a keepalive gets no answer: what the server says about the
// keys is told.
func TestTheAnswerOfTheServerIsToldAndNotTheEndOfTheTime(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	enableAuth(t, s.Cluster[0])
	client, w := dialWireAs(t, "app", "secret", s.Addrs()...)
	b := etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	c := faulttest.Claim("app-k", 30*time.Second)
	acquired(t, b, c)
	root, _ := dialWireAs(t, "root", "secret", s.Addrs()...)
	if _, err := root.RoleRevokePermission(bounded(t), "app", "app", clientv3.GetPrefixRangeEnd("app")); err != nil {
		t.Fatal(err)
	}
	w.stuckKeepAlive.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := b.Renew(ctx, c)
	if !errors.Is(err, rpctypes.ErrPermissionDenied) || !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Renew = %v, want ErrPermissionDenied, and it permanent", err)
	}
}
