package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// G9. The message that the one ahead is gone is late, and by then the waiter's own key is gone too.
func TestAWaiterIsNotGrantedAKeyThatIsGone(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	p := faultproxy.New(t, s.Cluster[0].Addr)
	client, w := dialWire(t, p.Addr)
	waiter := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = waiter.Close() })
	var looks atomic.Int32
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		err := send(ctx)
		if _, read := req.(*pb.RangeRequest); read {
			looks.Add(1)
		}
		return err
	})
	holder, next := openBackend(t, s.Addrs()...), openBackend(t, s.Addrs()...)
	first := faulttest.Claim("g9", 30*time.Second)
	acquired(t, holder, first)
	type granted struct {
		driver.Grant
		err error
	}
	got := make(chan granted, 1)
	go func() {
		g, err := waiter.Wait(t.Context(), faulttest.Claim("g9", 30*time.Second), func() {})
		got <- granted{g, err}
	}()
	faulttest.Eventually(t, 20*time.Second, "it watches", func() bool { return looks.Load() > 0 })
	p.Set(faultproxy.Rules{HoldDown: true})
	if err := holder.Release(bounded(t), first); err != nil {
		t.Fatal(err)
	}
	s.revoke(t, "g9", 0)
	g := acquired(t, next, faulttest.Claim("g9", 30*time.Second))
	p.Heal()
	if x := faulttest.Receive(t, "the end of the wait", got); x.err == nil {
		t.Errorf("granted with the fence %d, although the key is gone and another owner has %d", x.Fence, g.Fence)
	}
}

// noSpace has releases go out together, and the server answer that it has no space. It returns
// their errors.
func noSpace(t *testing.T, s *site, prefix string, applied bool) []error {
	t.Helper()
	const n = 3
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	var claims []driver.Claim
	for i := range n {
		claims = append(claims, faulttest.Claim(fmt.Sprint(prefix, i), time.Minute))
		acquired(t, b, claims[i])
	}
	etcddriver.Patient(b)
	var sent atomic.Int32
	cleared := make(chan struct{})
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		if sent.Add(1) <= etcddriver.MaxInFlight {
			<-cleared
			return send(ctx)
		}
		txn, ok := req.(*pb.TxnRequest)
		if !ok || len(txn.Compare) > 0 || len(txn.Success) < n {
			return send(ctx)
		}
		if applied {
			if err := send(ctx); err != nil {
				return err
			}
		}
		return rpctypes.ErrGRPCNoSpace
	})
	for i := range etcddriver.MaxInFlight {
		attempt(t.Context(), b, faulttest.Claim(fmt.Sprint(prefix, "jam-", i), time.Minute))
	}
	jammed := func() bool { return sent.Load() == etcddriver.MaxInFlight }
	faulttest.Eventually(t, 10*time.Second, "the way is jammed", jammed)
	results := make(chan error, n)
	for _, c := range claims {
		go func() { results <- b.Release(t.Context(), c) }()
	}
	gathered := func() bool { return etcddriver.Gathered(b) == n }
	faulttest.Eventually(t, 10*time.Second, "the releases have gathered", gathered)
	close(cleared)
	var errs []error
	for range n {
		errs = append(errs, faulttest.Receive(t, "Release", results))
	}
	for _, c := range claims {
		if k := s.count(t, c.Key); k != 0 {
			t.Errorf("%s was released, and the server has %d keys of it", c.Key, k)
		}
	}
	return errs
}

// G9. The server may have done what it says it has no space for.
func TestNoSpaceIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	t.Run("the releases were applied", func(t *testing.T) {
		t.Parallel()
		for _, err := range noSpace(t, s, "applied-", true) {
			if !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, driver.ErrNotOwner) {
				t.Errorf("Release = %v, want ErrNoSpace: the key may have been ours until then", err)
			}
		}
	})
	t.Run("the releases were not applied", func(t *testing.T) {
		t.Parallel()
		for _, err := range noSpace(t, s, "refused-", false) {
			if err != nil {
				t.Errorf("Release = %v, want it repeated by itself", err)
			}
		}
	})
}

// orphan makes a key of b's in the store that b does not know, as a request does that was long in
// the network.
func orphan(t *testing.T, s *site, b driver.Backend, c driver.Claim, on, suffix string) {
	t.Helper()
	lease := clientv3.LeaseID(s.contenders(t, on)[0].Lease)
	name := etcddriver.Name(b, c) + suffix
	if _, err := s.witness.Put(bounded(t), name, etcddriver.Value(c), clientv3.WithLease(lease)); err != nil {
		t.Fatal(err)
	}
}

// A key that nobody wants is not another owner's.
func TestAnOrphanOfOurOwnIsNotAnotherOwner(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	acquired(t, b, faulttest.Claim("other", time.Minute))
	for i := range 20 {
		key := fmt.Sprint("orphan-", i)
		orphan(t, s, b, faulttest.Claim(key, time.Minute), "other", []string{"", "-9"}[i%2])
		g, err := b.Acquire(bounded(t), faulttest.Claim(key, time.Minute))
		if err != nil {
			t.Fatalf("Acquire of a lock whose only key is an orphan of ours = %v", err)
		}
		if keys := s.contenders(t, key); len(keys) != 1 || uint64(keys[0].CreateRevision) != g.Fence/256 {
			t.Errorf("granted with the fence %d, and the server has %v", g.Fence, keys)
		}
	}
}

// A key whose claim was given up, and which nobody has released yet, is not another owner's either.
func TestAClaimThatWasGivenUpIsNotAnotherOwner(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	acquired(t, b, faulttest.Claim("other", time.Minute))
	c := faulttest.Claim("k", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		err := send(ctx)
		if len(putsOf(req, "k/")) > 0 {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		return err
	})
	if _, err := b.Acquire(ctx, c); !errors.Is(err, context.Canceled) {
		t.Fatalf("Acquire = %v, want that of the context", err)
	}
	w.intercept(func(ctx context.Context, _ any, send func(context.Context) error) error { return send(ctx) })
	g, err := b.Acquire(bounded(t), faulttest.Claim("k", time.Minute))
	if err != nil {
		t.Fatalf("Acquire of a lock that nobody has = %v", err)
	}
	if err := b.Release(bounded(t), c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release of the claim that was given up = %v, want ErrNotOwner", err)
	}
	if _, err := b.Acquire(bounded(t), c); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire by the claim that was given up = %v, want ErrHeld", err)
	}
	if keys := s.contenders(t, "k"); len(keys) != 1 || uint64(keys[0].CreateRevision) != g.Fence/256 {
		t.Errorf("granted with the fence %d, and the server has %v", g.Fence, keys)
	}
}

// A waiter does not wait for an orphan until the next renewal finds it.
func TestAnOrphanOfOurOwnIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b := openBackend(t, s.Addrs()...)
	acquired(t, b, faulttest.Claim("other", time.Minute))
	orphan(t, s, b, faulttest.Claim("orphan", time.Minute), "other", "-9")
	slow := s.slowness(t)
	began := time.Now()
	if _, err := b.Wait(bounded(t), faulttest.Claim("orphan", time.Minute), func() {}); err != nil {
		t.Fatalf("Wait = %v", err)
	}
	if took := time.Since(began); took > time.Second+5*slow() {
		t.Errorf("an orphan of ours was waited for for %v", took)
	}
}

// G7. A claim whose outcome is not known is removed by the name that its key would have.
func TestAnUnknownClaimIsRemovedByNameInOneRequest(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	m := s.Cluster[0]
	for name, late := range map[string]bool{"the key is there": false, "the key comes later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, sent := observed(t, m)
			b := etcddriver.New(client).(*etcddriver.Backend)
			t.Cleanup(func() { _ = b.Close() })
			acquired(t, b, faulttest.Claim("warm "+name, time.Minute))
			c := faulttest.Claim(name, time.Minute)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			arrive := make(chan func(context.Context) error, 1)
			sent.on(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
				if len(putsOf(req, name)) == 0 {
					return send(ctx)
				}
				if arrive <- send; !late {
					if err := send(ctx); err != nil {
						return err
					}
				}
				cancel()
				<-ctx.Done()
				return ctx.Err()
			})
			if _, err := b.Acquire(ctx, c); !errors.Is(err, context.Canceled) {
				t.Fatalf("Acquire = %v, want that of the context", err)
			}
			sent.on(nil)
			sent.take()
			removed := 0
			release := func() {
				t.Helper()
				switch err := b.Release(bounded(t), c); {
				case err == nil:
					removed++
				case !errors.Is(err, driver.ErrNotOwner):
					t.Errorf("Release = %v", err)
				}
			}
			release()
			release()
			if late {
				if err := (<-arrive)(bounded(t)); err != nil {
					t.Fatal(err)
				}
			}
			sent.take()
			for range 3 {
				release()
			}
			if got := sent.take(); got["Txn"]+got["DeleteRange"] != 3 || got["Range"]+got["Read"] != 0 {
				t.Errorf("three releases sent %v, want one request each and none that reads", got)
			}
			if n := s.count(t, name); n != 0 || removed != 1 {
				t.Errorf("%d keys are left, and %d releases say that they removed it; want 0 and 1", n, removed)
			}
		})
	}
}

// G4. What is left of another backend's lease is no TTL that anybody granted to this one.
func TestARenewalGrantsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	a, b := openBackend(t, s.Addrs()...), openBackend(t, s.Addrs()...)
	c := faulttest.Claim("g4", time.Hour)
	first := acquired(t, a, c)
	c.TTL = 4500 * time.Millisecond
	before := time.Now()
	type call func(context.Context, driver.Claim) (driver.Grant, error)
	for name, f := range map[string]call{"Renew": b.Renew, "Acquire": b.Acquire} {
		g, err := f(bounded(t), c)
		now := !g.Start.After(time.Now()) && !g.Start.Before(before)
		if err != nil || g.Fence != first.Fence || g.TTL != 5*time.Second || !now {
			t.Errorf("%s by %v = %+v, %v; want the fence %d and 5s from the call on", name, c.TTL, g, err, first.Fence)
		}
	}
	g, err := a.Renew(bounded(t), c)
	if err != nil || g.TTL != time.Hour || g.Start.After(first.Start) {
		t.Errorf("Renew where it was granted = %+v, %v; want that grant: %+v", g, err, first)
	}
}
