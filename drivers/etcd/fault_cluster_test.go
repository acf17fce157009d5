package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// T1
func TestALeaderThatDiesDoesNotEndAHold(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second // many elections, also on a busy machine
	s := startSite(t, 3)
	l := openLocker(t, ttl, s.Addrs()...)
	x, y := faulttest.Hold(t, l, "t1"), faulttest.Hold(t, openLocker(t, ttl, s.Addrs()[1:]...), "t1-other")
	for i := range 20 {
		leader := s.Leader(t)
		leader.Kill()
		s.Leader(t)
		if !x.Held() || !y.Held() {
			t.Fatalf("lost after leader number %d was killed: %v, %v", i+1, x.Err(), y.Err())
		}
		if err := leader.Run(); err != nil {
			t.Fatal(err)
		}
		if i%5 == 4 { // calamities come in fives
			waitRenewed(t, x)
		}
	}
	for _, x := range []*dlock.Lease{x, y} {
		if keys := s.contenders(t, x.Key()); len(keys) != 1 || uint64(keys[0].CreateRevision) != x.Fence()/256 {
			t.Errorf("%s is held with the fence %d, but the server has %v", x.Key(), x.Fence(), keys)
		}
		if err := x.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock(%s): %v", x.Key(), err)
		}
	}
}

func waitRenewed(t *testing.T, x *dlock.Lease) {
	t.Helper()
	before := x.ValidUntil()
	faulttest.Eventually(t, 10*time.Second, "a renewal moves the deadline", func() bool { return x.ValidUntil().After(before) })
}

// T1
func TestALeaderThatHangsDoesNotEndAHold(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	s := startSite(t, 3)
	x := faulttest.Hold(t, openLocker(t, ttl, s.Addrs()...), "t1-hang")
	for range 3 {
		leader := s.Leader(t)
		leader.Stop()
		s.Leader(t)
		waitRenewed(t, x)
		leader.Continue()
	}
	if !x.Held() {
		t.Errorf("lost: %v", x.Err())
	}
}

// T2
func TestALostQuorumIsToldBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	s := startSite(t, 3)
	l := openLocker(t, ttl, s.Addrs()...)
	x := faulttest.Hold(t, l, "t2")
	late := faulttest.Lateness(t)
	s.Cluster[0].Kill()
	s.Cluster[1].Kill()
	deadline := x.ValidUntil()
	done := faulttest.Ended(t, x, 5*ttl)
	if now := x.ValidUntil(); now.After(deadline) {
		deadline = now // a renewal was under way
	}
	if done.After(deadline.Add(10*time.Millisecond + late())) {
		t.Errorf("Done %v after the deadline", done.Sub(deadline))
	}
	if !errors.Is(x.Err(), dlock.ErrOwnershipLost) {
		t.Errorf("Err = %v, want ErrOwnershipLost", x.Err())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if ok, err := l.TryLock(ctx, "t2-other"); ok || err == nil {
		t.Errorf("TryLock without a quorum = %v, %v; want an error", ok, err)
	}
	if err := s.Cluster[0].Run(); err != nil {
		t.Fatal(err)
	}
	faulttest.Hold(t, l, "t2") // the key of the lost hold goes when its lease does, if not before
}

// T3
func TestALeaseThatAnAdministratorRevokesIsToldInTime(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	s := startSite(t, 1)
	t.Run("to a holder", func(t *testing.T) {
		t.Parallel()
		x := faulttest.Hold(t, openLocker(t, ttl, s.Addrs()...), "t3-held")
		slow := s.slowness(t)
		revoked := s.revoke(t, "t3-held", 0)
		done := faulttest.Ended(t, x, 3*ttl)
		if took := done.Sub(revoked); took > ttl/3+ttl/6+100*time.Millisecond+2*slow() {
			t.Errorf("told %v after the revocation, want within a third of the TTL", took)
		}
		if !errors.Is(x.Err(), dlock.ErrOwnershipLost) {
			t.Errorf("Err = %v, want ErrOwnershipLost", x.Err())
		}
		if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
		}
	})
	t.Run("to a waiter, which stands in line again", func(t *testing.T) {
		t.Parallel()
		x := faulttest.Hold(t, openLocker(t, 30*time.Second, s.Addrs()...), "t3-wait")
		waiter := openLocker(t, ttl, s.Addrs()...)
		got := make(chan *dlock.Lease, 1)
		go func() {
			y, _ := dlock.Acquire(t.Context(), waiter, "t3-wait")
			got <- y
		}()
		faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.count(t, "t3-wait") == 2 })
		slow := s.slowness(t)
		old := s.contenders(t, "t3-wait")[1]
		s.revoke(t, "t3-wait", 1)
		faulttest.Within(t, func() time.Duration { return ttl/3 + time.Second + 3*slow() }, "it waits again", func() bool {
			keys := s.contenders(t, "t3-wait")
			return len(keys) == 2 && keys[1].CreateRevision > old.CreateRevision
		})
		if err := x.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if y := faulttest.Receive(t, "the lock", got); y == nil || !y.Held() {
			t.Error("the waiter did not get the lock")
		}
	})
}

// revoke revokes the lease of the i-th of the lock's keys, and returns when.
func (s *site) revoke(t *testing.T, lock string, i int) time.Time {
	t.Helper()
	if _, err := s.witness.Revoke(t.Context(), clientv3.LeaseID(s.contenders(t, lock)[i].Lease)); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// putsOf returns the puts by which req creates keys of locks whose names begin with prefix.
func putsOf(req any, prefix string) (puts []*pb.PutRequest) {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return nil
	}
	for _, op := range txn.Success {
		if put := op.GetRequestPut(); put != nil && strings.HasPrefix(string(put.Key), prefix) {
			puts = append(puts, put)
		}
		if nested := op.GetRequestTxn(); nested != nil {
			puts = append(puts, putsOf(nested, prefix)...)
		}
	}
	return puts
}

// T4
func TestATransactionThatIsStuckInTheNetworkIsNotKeptAlive(t *testing.T) {
	t.Parallel()
	const ttl, keys = 4 * time.Second, 50
	s := startSite(t, 1)
	for name, delay := range map[string]func() time.Duration{
		"until somewhen in the clean-up": func() time.Duration { return 800*time.Millisecond + rand.N(ttl) },
		"until the clean-up is over":     func() time.Duration { return 800*time.Millisecond + ttl*3/2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := "t4 " + name
			l, w := wiredLocker(t, ttl, s.Addrs()...)
			x := faulttest.Hold(t, l, "held "+name) // keeps the lease alive
			slow := s.slowness(t)
			ctx, giveUp := context.WithTimeout(t.Context(), 30*time.Second)
			defer giveUp()
			var stuck, calls sync.WaitGroup
			var arrived atomic.Int64
			var mu sync.Mutex
			sent := map[string]bool{}
			network := pb.NewKVClient(s.witness.ActiveConnection())
			w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
				puts := putsOf(req, prefix)
				if len(puts) == 0 {
					return send(ctx)
				}
				stuck.Go(func() { // its caller gives it up, and it reaches the server all the same
					time.Sleep(delay())
					if _, err := network.Txn(context.Background(), req.(*pb.TxnRequest)); err != nil {
						t.Errorf("a transaction that was stuck: %v", err)
					}
					arrived.Add(int64(len(puts)))
				})
				mu.Lock()
				for _, put := range puts {
					sent[string(put.Key)] = true
				}
				if len(sent) == keys {
					giveUp()
				}
				mu.Unlock()
				<-ctx.Done()
				return ctx.Err()
			})
			for i := range keys {
				calls.Go(func() {
					var err error
					if i%2 == 0 {
						_, err = l.TryLock(ctx, fmt.Sprint(prefix, i))
					} else {
						err = l.Lock(ctx, fmt.Sprint(prefix, i))
					}
					if err == nil {
						t.Error("a lock whose transaction was stuck was had, or another's")
					}
				})
			}
			calls.Wait()
			stuck.Wait()
			if n := arrived.Load(); n < keys {
				t.Errorf("%d puts were stuck, want %d", n, keys)
			}
			// They are found by a renewal, looked at one by one, and deleted.
			faulttest.Within(t, func() time.Duration { return ttl + (keys+3)*slow() }, "all their keys are gone", func() bool {
				names, err := s.left(t.Context(), prefix)
				return err == nil && len(names) == 0
			})
			if !x.Held() {
				t.Errorf("the hold on the same lease was lost: %v", x.Err())
			}
		})
	}
}

// T5
func TestAnAcquireOnALeaseThatIsNotNewHasTheRightDeadline(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	s := startSite(t, 1)
	for _, left := range []time.Duration{ttl * 6 / 10, ttl * 3 / 10} { // with the latter it is too old to be used as it is
		t.Run(left.String(), func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, s.Cluster[0].Addr)
			l, w := wiredLocker(t, ttl, p.Addr)
			key := "t5-" + left.String()
			first := faulttest.Hold(t, l, key+"-first", dlock.WithoutRenewal())
			w.noKeepAlive.Store(true)
			faulttest.Eventually(t, 2*ttl, "little is left of the lease", func() bool { return time.Until(first.ValidUntil()) < left })
			w.noKeepAlive.Store(false)
			called := time.Now()
			x := faulttest.Hold(t, l, key, dlock.WithoutRenewal())
			p.BlackHole()
			deadline := x.ValidUntil()
			if left := deadline.Sub(called); left < ttl*4/10 {
				t.Errorf("%v are left of a TTL of %v, want half of it or more", left, ttl)
			}
			gone := s.freed(t, key)
			faulttest.Ended(t, x, 3*ttl)
			if at := faulttest.Receive(t, "the deletion of the key", gone); deadline.After(at) {
				t.Errorf("held for %v longer than at the server", deadline.Sub(at))
			}
		})
	}
}

// T5
func TestAnAcquireWhoseLeaseIsLostOnTheWayIsRepeatedOnAnother(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	var revoked atomic.Bool
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		if puts := putsOf(req, "t5"); len(puts) > 0 && revoked.CompareAndSwap(false, true) {
			if _, err := s.witness.Revoke(ctx, clientv3.LeaseID(puts[0].Lease)); err != nil {
				t.Error(err)
			}
		}
		return send(ctx)
	})
	wait := func(ctx context.Context, c driver.Claim) (driver.Grant, error) { return b.Wait(ctx, c, func() {}) }
	for name, acquire := range map[string]func(context.Context, driver.Claim) (driver.Grant, error){"Acquire": b.Acquire, "Wait": wait} {
		revoked.Store(true)
		c := faulttest.Claim("t5-"+name, ttl)
		if _, err := b.Acquire(t.Context(), c); err != nil { // so that there is a lease
			t.Fatal(err)
		}
		if err := b.Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		revoked.Store(false)
		began := time.Now()
		c = faulttest.Claim("t5-"+name, ttl)
		g, err := acquire(t.Context(), c)
		if err != nil || !revoked.Load() {
			t.Fatalf("%s = %v, and the lease was revoked: %v; want no error, and true", name, err, revoked.Load())
		}
		if g.Start.Before(began) || g.TTL != ttl {
			t.Errorf("%s counts %v from %v before the lease was lost", name, g.TTL, began.Sub(g.Start))
		}
		if keys := s.contenders(t, c.Key); len(keys) != 1 || uint64(keys[0].CreateRevision) != g.Fence/256 {
			t.Errorf("%s gave the fence %d, but the server has %v", name, g.Fence, keys)
		}
	}
}
