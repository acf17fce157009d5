package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// keeps sees for a while that the server has the key of a hold that nothing happens to.
func (s *site) keeps(t *testing.T, x *dlock.Lease, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		n := s.count(t, x.Key())
		switch held := x.Held(); {
		case n == 0 && held, errors.Is(x.Err(), driver.ErrNotOwner):
			t.Fatalf("held %v (%v), and the server has %d keys of it", held, x.Err(), n)
		case !held:
			t.Logf("the machine is too slow to renew a hold in time: %v", x.Err())
			return
		}
	}
}

// checked has the keys of a lease checked for a while by renewing other, and k on the same lease only now and then. What was granted must be in the store.
func (s *site) checked(t *testing.T, b *etcddriver.Backend, k, other driver.Claim, g driver.Grant, d time.Duration) {
	t.Helper()
	for began, last := time.Now(), g; time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
		if r := b.RenewBatch(bounded(t), []driver.Claim{other})[0]; r.Err != nil {
			t.Logf("RenewBatch of the other hold = %v", r.Err)
		}
		n, r := s.count(t, k.Key), driver.Renewal{Grant: last}
		if time.Since(last.Start) > last.TTL/3 { // many checks come between two renewals
			r = b.RenewBatch(bounded(t), []driver.Claim{k})[0]
		}
		switch left := time.Until(last.Start.Add(last.TTL)); {
		case left <= 0:
			t.Log("the machine is too slow to renew a hold in time")
			return
		case n != 1 || errors.Is(r.Err, driver.ErrNotOwner):
			t.Fatalf("the server has %d keys of a hold that lasts for another %v, and its renewal said %v", n, left, r.Err)
		case r.Err == nil && r.Grant.Fence != g.Fence:
			t.Fatalf("RenewBatch = %+v, want the fence %d", r, g.Fence)
		case r.Err == nil:
			last = r.Grant
		}
	}
}

// A6. The key was to be moved to another lease, and is renewed where it was. That lease ends.
func TestAMoveThatFailsDoesNotEndTheHold(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for name, move := range map[string]func(ctx context.Context, send func(context.Context) error) error{
		"not sent": func(context.Context, func(context.Context) error) error { return errCut },
		"no reply": func(ctx context.Context, send func(context.Context) error) error { _ = send(ctx); return errCut },
	} {
		for _, revoked := range []bool{true, false} {
			name := fmt.Sprintf("%s revoked=%v", name, revoked)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				client, w := dialWire(t, s.Addrs()...)
				b := etcddriver.New(client).(*etcddriver.Backend)
				t.Cleanup(func() { _ = b.Close() })
				k, other := faulttest.Claim(name, 3*time.Second), faulttest.Claim(name+" other", 3*time.Second)
				g := acquired(t, b, k)
				acquired(t, b, other)
				var longer clientv3.LeaseID
				w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
					if isMove(req) && longer == 0 {
						longer = clientv3.LeaseID(req.(*pb.TxnRequest).Success[0].GetRequestPut().Lease)
						return move(ctx, send)
					}
					return send(ctx)
				})
				extended := k
				extended.TTL = 4 * time.Second
				if _, err := b.Renew(bounded(t), extended); !errors.Is(err, errCut) {
					t.Fatalf("Renew = %v, want that it failed", err)
				}
				if _, err := b.Renew(bounded(t), k); err != nil {
					t.Fatalf("Renew as before = %v", err)
				}
				if revoked {
					_, _ = s.witness.Revoke(bounded(t), longer) // the driver may have done it
					acquired(t, b, faulttest.Claim(name+" long", 4*time.Second))
				}
				s.checked(t, b, k, other, g, 6*time.Second)
			})
		}
	}
}

// A6. The server has forgotten the lease that the key was to be moved to before anybody has renewed the hold.
func TestALeaseThatTheKeyWasNotMovedToEndsAlone(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b, k, longer := failedMove(t, s, 10*time.Second, time.Minute)
	other := faulttest.Claim("other", k.TTL)
	acquired(t, b, other)
	if _, err := s.witness.Revoke(bounded(t), longer); err != nil {
		t.Fatal(err)
	}
	acquired(t, b, faulttest.Claim("long", time.Minute)) // notices it
	if entries, _ := etcddriver.Entries(b); entries != 3 {
		t.Errorf("%d keys are in the book, want those of all three holds", entries)
	}
	for range 10 {
		if r := b.RenewBatch(bounded(t), []driver.Claim{other})[0]; r.Err != nil {
			t.Fatalf("RenewBatch of another hold = %v", r.Err)
		}
		if n := s.count(t, k.Key); n != 1 {
			t.Fatalf("the server has %d keys of the hold after a check of its lease", n)
		}
	}
	if r := b.RenewBatch(bounded(t), []driver.Claim{k})[0]; r.Err != nil {
		t.Errorf("RenewBatch = %v", r.Err)
	}
}

// A6. It is not known where the key is, and the renewal that finds out asks for less than was granted.
func TestARenewalByLessAfterAMoveThatFailedKeepsWhatTheHoldHas(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	b, k, _ := failedMove(t, s, time.Minute, 2*time.Minute)
	before := s.contenders(t, k.Key)[0].Lease
	k.TTL = 5 * time.Second
	g, err := b.Renew(bounded(t), k)
	if err != nil || time.Until(g.Start.Add(g.TTL)) < 20*time.Second {
		t.Errorf("Renew by 5s of a hold of a minute = %+v, %v; want it to keep what it has", g, err)
	}
	if now := s.contenders(t, k.Key)[0].Lease; now != before {
		t.Error("a renewal by less moved the key to a shorter lease")
	}
}

// failedMove returns a claim that is held for ttl, after a renewal by longer that got no further than its lease.
func failedMove(t *testing.T, s *site, ttl, longer time.Duration) (*etcddriver.Backend, driver.Claim, clientv3.LeaseID) {
	t.Helper()
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	c := faulttest.Claim("k", ttl)
	acquired(t, b, c)
	var lease clientv3.LeaseID
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		if isMove(req) && lease == 0 {
			lease = clientv3.LeaseID(req.(*pb.TxnRequest).Success[0].GetRequestPut().Lease)
			return errCut
		}
		return send(ctx)
	})
	extended := c
	extended.TTL = longer
	if _, err := b.Renew(bounded(t), extended); !errors.Is(err, errCut) {
		t.Fatalf("Renew = %v, want that it failed", err)
	}
	return b, c, lease
}

// A6. The watchdog moves the key back before the reply to Extend is there. The lease of the one that came last is the one that the key is on.
func TestAReplyThatWasOvertakenDoesNotSayWhereTheKeyIs(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	l, w := wiredLocker(t, 3*time.Second, s.Addrs()...)
	x := faulttest.Hold(t, l, "k")
	var moves atomic.Int32
	overtaken := make(chan struct{})
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		if !isMove(req) {
			return send(ctx)
		}
		n := moves.Add(1)
		err := send(ctx)
		switch n {
		case 1:
			<-overtaken
			time.Sleep(50 * time.Millisecond)
		case 2:
			close(overtaken)
		}
		return err
	})
	if err := x.Extend(t.Context(), 9*time.Second); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(x.ValidUntil()); left < 4*time.Second {
		t.Errorf("%v are left after Extend by 9s", left)
	}
	s.keeps(t, x, 6*time.Second)
}

// A6. A hold is renewed on its lease while a request is under way that moves its key to a shorter one.
func TestAGrantDoesNotOutlastItsKeyThatIsOnTheMove(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	c := claimBy(1, "k", 6*time.Second)
	g := acquired(t, b, c)
	shorter := c
	shorter.TTL = 4 * time.Second
	time.Sleep(time.Until(g.Start.Add(c.TTL - shorter.TTL + 10*time.Millisecond)))

	type batch struct{} // marks the requests of RenewBatch
	checked, moving := make(chan struct{}), make(chan struct{})
	answer, move := make(chan struct{}), make(chan struct{})
	check, put := sync.OnceFunc(func() { close(checked) }), sync.OnceFunc(func() { close(moving) })
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		switch _, look := req.(*pb.LeaseTimeToLiveRequest); {
		case look && ctx.Value(batch{}) != nil: // the lease is looked at for its own sake, too
			check()
			<-answer
		case isMove(req):
			put()
			<-move
		}
		return send(ctx)
	})
	renewed, moved := make(chan driver.Renewal, 1), make(chan error, 1)
	go func() {
		renewed <- b.RenewBatch(context.WithValue(context.Background(), batch{}, true), []driver.Claim{c})[0]
	}()
	faulttest.Receive(t, "the look at the lease", checked)
	go func() {
		_, err := b.Renew(context.Background(), shorter)
		moved <- err
	}()
	faulttest.Receive(t, "the move", moving)
	close(answer)
	r := faulttest.Receive(t, "RenewBatch", renewed)
	close(move)
	if err := faulttest.Receive(t, "Renew", moved); err != nil {
		t.Errorf("Renew by less = %v", err)
	}
	lease, err := s.witness.TimeToLive(bounded(t), clientv3.LeaseID(s.contenders(t, "k")[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	if granted := time.Duration(lease.GrantedTTL) * time.Second; r.Err == nil && r.Grant.TTL > granted {
		t.Errorf("RenewBatch granted %v, and the key is on a lease of %v", r.Grant.TTL, granted)
	}
}

// A6. The key is where a late reply says, and a request is under way that moves it to a shorter lease.
func TestALateReplyGrantsNothingWhileTheKeyIsOnTheMoveAgain(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	c := faulttest.Claim("k", 30*time.Second)
	acquired(t, b, c)
	longer := c
	longer.TTL = time.Minute
	var moves atomic.Int32
	done, answer, under, move := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		if !isMove(req) {
			return send(ctx)
		}
		switch moves.Add(1) {
		case 1:
			err := send(ctx)
			close(done)
			<-answer
			return err
		case 2:
			close(under)
			<-move
		}
		return send(ctx)
	})
	renew := func(c driver.Claim) <-chan driver.Renewal {
		answer := make(chan driver.Renewal, 1)
		go func() {
			g, err := b.Renew(context.Background(), c)
			answer <- driver.Renewal{Grant: g, Err: err}
		}()
		return answer
	}
	extended := renew(longer)
	faulttest.Receive(t, "the move", done)
	renewed := renew(c)
	faulttest.Receive(t, "the move back", under)
	close(answer)
	r := faulttest.Receive(t, "Renew by more", extended)
	close(move)
	faulttest.Receive(t, "Renew", renewed)
	lease, err := s.witness.TimeToLive(bounded(t), clientv3.LeaseID(s.contenders(t, "k")[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	if granted := time.Duration(lease.GrantedTTL) * time.Second; r.Err != nil || r.Grant.TTL > granted {
		t.Errorf("Renew by more = %+v, and the key is on a lease of %v", r, granted)
	}
}

// A1. The server's shortest lease is two seconds, as it is by default, and so the key lasts longer than the claim asks for.
func TestAnAcquireThatIsRepeatedIsInTheBook(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1, etcdtest.Timing(100*time.Millisecond, time.Second))
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	k, other := faulttest.Claim("k", 500*time.Millisecond), faulttest.Claim("other", 500*time.Millisecond)
	acquired(t, b, other)
	var once atomic.Bool
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		err := send(ctx)
		if _, txn := req.(*pb.TxnRequest); txn && once.CompareAndSwap(false, true) {
			return errCut
		}
		return err
	})
	if _, err := b.Acquire(bounded(t), k); !errors.Is(err, errCut) {
		t.Fatalf("Acquire = %v, want that the reply was lost", err)
	}
	g := acquired(t, b, k)
	s.checked(t, b, k, other, g, 6*time.Second)
}

// A1. The request that was not answered the first time arrives when the lock was broken and another has had it: its key has the name of the one that was lost.
func TestABrokenLockThatAnOldRequestTakesAgainIsLost(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for name, take := range map[string]func(*etcddriver.Backend, context.Context, driver.Claim) (driver.Grant, error){
		"Acquire": (*etcddriver.Backend).Acquire,
		"Wait": func(b *etcddriver.Backend, ctx context.Context, c driver.Claim) (driver.Grant, error) {
			return b.Wait(ctx, c, func() {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, w := dialWire(t, s.Addrs()...)
			b, rival := etcddriver.New(client).(*etcddriver.Backend), openBackend(t, s.Addrs()...)
			t.Cleanup(func() { _ = b.Close() })
			k, next, other := faulttest.Claim(name, time.Minute), faulttest.Claim(name, time.Minute), faulttest.Claim("other "+name, time.Minute)
			acquired(t, b, other)
			var late func(context.Context) error
			w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
				if late == nil && len(putsOf(req, name)) > 0 {
					late = send
					return errCut
				}
				return send(ctx)
			})
			if _, err := take(b, bounded(t), k); !errors.Is(err, errCut) {
				t.Fatalf("%s = %v, want that the request was lost", name, err)
			}
			g, err := take(b, bounded(t), k)
			if err != nil {
				t.Fatal(err)
			}
			if r := b.RenewBatch(bounded(t), []driver.Claim{k})[0]; r.Err != nil || r.Grant.Fence != g.Fence {
				t.Fatalf("RenewBatch = %+v, want the fence %d", r, g.Fence)
			}
			if err := rival.Break(bounded(t), name, g.Fence); err != nil {
				t.Fatal(err)
			}
			acquired(t, rival, next)
			if err := rival.Release(bounded(t), next); err != nil {
				t.Fatal(err)
			}
			if err := late(bounded(t)); err != nil {
				t.Fatal(err)
			}
			if n := s.count(t, name); n != 1 {
				t.Fatalf("the server has %d keys after the old request, want that it took the lock again", n)
			}
			if r := b.RenewBatch(bounded(t), []driver.Claim{k})[0]; !errors.Is(r.Err, driver.ErrNotOwner) {
				t.Errorf("RenewBatch of a hold with the fence %d that was broken = %+v, want ErrNotOwner", g.Fence, r)
			}
			faulttest.Eventually(t, 20*time.Second, "the key that the old request made is deleted", func() bool {
				return b.RenewBatch(bounded(t), []driver.Claim{other})[0].Err == nil && s.count(t, name) == 0
			})
		})
	}
}
