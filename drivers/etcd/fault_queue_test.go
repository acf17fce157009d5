package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// expiry is how long after its TTL a lease may live on: the server looks for those that are over every half second, and the rest is for a busy machine.
const expiry = 3 * time.Second

// acquiring starts an Acquire, and sees it as number n of those who hold the lock or wait for it.
func acquiring(t *testing.T, s *site, l dlock.Locker, lock string, n int) <-chan *dlock.Lease {
	t.Helper()
	got := make(chan *dlock.Lease, 1)
	go func() {
		x, _ := dlock.Acquire(t.Context(), l, lock)
		got <- x
	}()
	faulttest.Eventually(t, 20*time.Second, "it waits", func() bool { return s.count(t, lock) == n })
	return got
}

// inTime receives a lease that must come within limit from began.
func inTime(t *testing.T, what string, got <-chan *dlock.Lease, began time.Time, limit time.Duration, late func() time.Duration) *dlock.Lease {
	t.Helper()
	x := faulttest.Receive(t, what, got)
	if took := time.Since(began); took > limit+late() {
		t.Errorf("%s: it took %v, want at most %v", what, took, limit)
	}
	if x == nil || !x.Held() {
		t.Fatalf("%s: the lock was not had", what)
	}
	return x
}

func TestTheLockOfAProcessThatDiedGoesOnAfterItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	s := startSite(t, 1)
	h := faulttest.StartHolder(t, "etcd", dsnOf(s.Addrs()...), "dead", ttl)
	fence, err := strconv.ParseUint(h.Line(t, "fence"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	got := acquiring(t, s, openLocker(t, ttl, s.Addrs()...), "dead", 2)
	gone := s.freed(t, "dead")
	late := faulttest.Lateness(t)
	h.Kill()
	x := inTime(t, "the lock", got, time.Now(), ttl+expiry, late)
	if at := faulttest.Receive(t, "the end of the dead holder's key", gone); x.Fence() <= fence || time.Since(at) > time.Second+late() {
		t.Errorf("fence %d after %d, %v after the key was gone", x.Fence(), fence, time.Since(at))
	}
}

func TestAWaiterThatIsGoneHoldsUpTheQueueForItsTTLAtMost(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	s := startSite(t, 1)
	for name, leave := range map[string]func(*faulttest.Process){"killed": (*faulttest.Process).Kill, "stopped": (*faulttest.Process).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := "waiter-" + name
			x := faulttest.Hold(t, openLocker(t, 30*time.Second, s.Addrs()...), lock)
			h := faulttest.StartHolder(t, "etcd", dsnOf(s.Addrs()...), lock, ttl)
			faulttest.Eventually(t, 20*time.Second, "the process waits", func() bool { return s.count(t, lock) == 2 })
			got := acquiring(t, s, openLocker(t, ttl, s.Addrs()...), lock, 3)
			late := faulttest.Lateness(t)
			leave(h)
			began := time.Now()
			if err := x.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			inTime(t, "the lock", got, began, ttl+expiry, late)
		})
	}
}

func TestAHandOverThatIsNotHeardOfIsFound(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for name, f := range map[string]func(p *faultproxy.Proxy, release func()){
		"the connection breaks before it": func(p *faultproxy.Proxy, release func()) {
			p.CutAll()
			release()
		},
		"the connection breaks with it": func(p *faultproxy.Proxy, release func()) {
			p.Set(faultproxy.Rules{DropDown: true})
			release()
			p.CutAndHeal()
		},
		"nobody can connect for a while": func(p *faultproxy.Proxy, release func()) {
			p.Set(faultproxy.Rules{Refuse: true})
			p.CutAll()
			release()
			time.Sleep(300 * time.Millisecond)
			p.Heal()
		},
		"it is late": func(p *faultproxy.Proxy, release func()) {
			p.Set(faultproxy.Rules{HoldDown: true})
			release()
			time.Sleep(300 * time.Millisecond)
			p.Heal()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, s.Cluster[0].Addr)
			x := faulttest.Hold(t, openLocker(t, 30*time.Second, s.Addrs()...), name)
			got := acquiring(t, s, openLocker(t, 30*time.Second, p.Addr), name, 2)
			late := faulttest.Lateness(t)
			f(p, func() {
				if err := x.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
			inTime(t, "the lock", got, time.Now(), 2*time.Second, late)
		})
	}
}

func TestAHandOverDuringAnElectionIsNotMissed(t *testing.T) {
	t.Parallel()
	s := startSite(t, 3)
	holder, waiter := openLocker(t, 30*time.Second, s.Addrs()...), openLocker(t, 30*time.Second, s.Addrs()...)
	for i := range 3 {
		lock := fmt.Sprint("election-", i)
		x := faulttest.Hold(t, holder, lock)
		got := acquiring(t, s, waiter, lock, 2)
		late := faulttest.Lateness(t)
		leader := s.Leader(t)
		leader.Kill()
		began := time.Now()
		// A request that the election has swallowed is given up after five seconds.
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		if err := x.Unlock(ctx); err != nil {
			t.Logf("Unlock: %v", err) // it is repeated in the background
		}
		cancel()
		y := inTime(t, "the lock", got, began, 15*time.Second, late)
		if err := leader.Run(); err != nil {
			t.Fatal(err)
		}
		if err := y.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAWaiterOutlivesTheLossOfTheQuorum(t *testing.T) {
	t.Parallel()
	s := startSite(t, 3)
	leader := s.Leader(t)
	x := faulttest.Hold(t, openLocker(t, time.Minute, s.Addrs()...), "quorum")
	got := acquiring(t, s, openLocker(t, time.Minute, leader.Addr), "quorum", 2)
	for _, m := range s.Cluster {
		if m != leader {
			m.Stop()
		}
	}
	faulttest.Eventually(t, 20*time.Second, "the leader has noticed that it leads nobody", func() bool {
		status, err := s.witness.Status(t.Context(), leader.Addr)
		return err == nil && status.Leader == 0
	})
	// By then the server ends the watches that want a leader.
	time.Sleep(4 * etcdtest.Election)
	for _, m := range s.Cluster {
		if m != leader {
			m.Continue()
		}
	}
	s.Leader(t)
	late := faulttest.Lateness(t)
	began := time.Now()
	if err := x.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	inTime(t, "the lock", got, began, 6*time.Second, late)
}

func TestAWaiterKeepsItsPlaceForLongerThanItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	s := startSite(t, 1)
	x := faulttest.Hold(t, openLocker(t, time.Minute, s.Addrs()...), "place")
	got := acquiring(t, s, openLocker(t, ttl, s.Addrs()...), "place", 2)
	place := s.contenders(t, "place")[1]
	time.Sleep(ttl + expiry)
	if now := s.contenders(t, "place"); len(now) != 2 || now[1].CreateRevision != place.CreateRevision {
		t.Errorf("the queue is %v, want %v as the second", now, place)
	}
	late := faulttest.Lateness(t)
	began := time.Now()
	if err := x.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	y := inTime(t, "the lock", got, began, time.Second, late)
	if y.Fence()/256 != uint64(place.CreateRevision) {
		t.Errorf("the fence is %d, want that of revision %d", y.Fence(), place.CreateRevision)
	}
}

// N1
func TestConnectionsThatBreakDoNotEndAHold(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	s := startSite(t, 1)
	p := faultproxy.New(t, s.Cluster[0].Addr)
	l := openLocker(t, ttl, p.Addr)
	x := faulttest.Hold(t, l, "n1")
	other := faulttest.Hold(t, openLocker(t, 30*time.Second, s.Addrs()...), "n1-wait")
	got := acquiring(t, s, l, "n1-wait", 2)
	for end := time.Now().Add(ttl + 2*time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		p.CutAll()
	}
	if !x.Held() || s.count(t, "n1") != 1 {
		t.Errorf("lost: %v", x.Err())
	}
	late := faulttest.Lateness(t)
	if err := other.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	inTime(t, "the lock that was waited for", got, time.Now(), 3*time.Second, late)
}

// D6
func TestRequestsPerAcquisitionStayFlatAndTheOrderIsKept(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	few, many := s.crowd(t, 10), s.crowd(t, 80)
	t.Logf("requests per acquisition: %.2f with 10 waiters, %.2f with 80", few, many)
	if many > few+1 {
		t.Errorf("%.2f requests per acquisition with 80 waiters and %.2f with 10, want as many", many, few)
	}
}

// crowd has n waiters of n/5 clients get a lock one after the other, and returns how many requests that took for each.
func (s *site) crowd(t *testing.T, n int) float64 {
	t.Helper()
	lock := fmt.Sprint("d6-", n)
	x := faulttest.Hold(t, openLocker(t, time.Minute, s.Addrs()...), lock)
	backends, wires := make([]driver.Waiter, n/5), make([]*wire, n/5)
	for i := range backends {
		c, w := dialWire(t, s.Addrs()...)
		b := etcddriver.New(c).(*etcddriver.Backend)
		t.Cleanup(func() { _ = b.Close() })
		backends[i], wires[i] = b, w
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var order []int
	looks := 0 // that came of waiting long: somebody who has heard nothing for five seconds asks
	var wg sync.WaitGroup
	for i := range n {
		b, c := backends[i%len(backends)], faulttest.Claim(lock, time.Minute)
		wg.Go(func() {
			began := time.Now()
			_, err := b.Wait(ctx, c, func() {})
			mu.Lock()
			order = append(order, i)
			looks += int(time.Since(began) / (5 * time.Second))
			mu.Unlock()
			if err == nil {
				err = b.Release(ctx, c)
			}
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
		faulttest.Eventually(t, 20*time.Second, "it is in the queue", func() bool { return s.count(t, lock) == i+2 })
	}
	if err := x.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, who := range order {
		if who != i {
			t.Errorf("waiter %d came as number %d, want the order of arrival: %v", who, i, order)
			break
		}
	}
	sum := 0
	for _, w := range wires {
		sum += int(w.requests.Load())
	}
	return float64(sum-looks) / float64(n)
}

// What keeps the lock is left over from an attempt of this process that was given up: no owner has it.
func TestAWaitBehindAnOrphanOfItsOwnIsNotBehindAnOwner(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	orphan, c := faulttest.Claim("k", time.Minute), faulttest.Claim("k", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		err := send(ctx)
		if len(putsOf(req, "k/")) > 0 {
			cancel()
			err = context.Canceled
		}
		return err
	})
	if _, err := b.Acquire(ctx, orphan); !errors.Is(err, context.Canceled) {
		t.Fatalf("Acquire whose answer is lost = %v, want the context's error", err)
	}
	w.intercept(func(ctx context.Context, _ any, send func(context.Context) error) error { return send(ctx) })
	var told atomic.Bool
	got := make(chan error, 1)
	go func() {
		_, err := b.Wait(bounded(t), c, func() { told.Store(true) })
		got <- err
	}()
	faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.count(t, "k") == 2 && s.watchers(t) > 0 })
	if err := b.Release(bounded(t), orphan); err != nil {
		t.Fatal(err)
	}
	if err := faulttest.Receive(t, "the lock", got); err != nil {
		t.Fatal(err)
	}
	if told.Load() {
		t.Error("it was told that another owner has the key")
	}
}
