package etcd_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// C1
func TestAServerThatHangsForLongerThanTheTTLGivesNoHold(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	t.Run("TryLock", func(t *testing.T) {
		t.Parallel()
		s := startSite(t, 1)
		l := openLocker(t, ttl, s.Addrs()...)
		warmUp(t, l)
		late := faulttest.Lateness(t)
		s.Cluster[0].Stop()
		defer time.AfterFunc(2*ttl, s.Cluster[0].Continue).Stop()
		x, ok, err := dlock.TryAcquire(t.Context(), l, "c1")
		if ok && time.Since(x.ValidUntil()) > late() || !ok && err == nil {
			t.Errorf("TryAcquire = %v, %v; want an error, or a hold that is not over", ok, err)
		}
		if !ok {
			faulttest.Eventually(t, 10*time.Second, "the key is gone", func() bool { return s.count(t, "c1") == 0 })
		}
	})
	t.Run("Lock", func(t *testing.T) {
		t.Parallel()
		s := startSite(t, 1)
		l := openLocker(t, ttl, s.Addrs()...)
		warmUp(t, l)
		s.Cluster[0].Stop()
		leases := make(chan *dlock.Lease, 1)
		go func() {
			x, _ := dlock.Acquire(t.Context(), l, "c1")
			leases <- x
		}()
		select {
		case <-leases:
			t.Error("Acquire returned while the server hung")
		case <-time.After(2 * ttl):
		}
		s.Cluster[0].Continue()
		x := faulttest.Receive(t, "the lease", leases)
		if x == nil {
			t.Fatal("Acquire failed after the server went on")
		}
		if !x.Held() {
			t.Errorf("Acquire returned a hold that is over: %v", x.Err())
		}
		if keys := s.contenders(t, "c1"); x.Held() && (len(keys) != 1 || uint64(keys[0].CreateRevision) != x.Fence()/256) {
			t.Errorf("held with the fence %d, but the server has %v", x.Fence(), keys)
		}
	})
}

// C2
func TestAHolderThatWasStoppedKnowsItAtOnceAndItsFenceIsRefused(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	faulttest.StopHolder(t, "etcd", dsnOf(s.Addrs()...), "c2", openLocker(t, 30*time.Second, s.Addrs()...))
}

// C3. What concurrency.Session does in the same situation is logged beside it.
func TestALossIsToldBeforeTheServerFreesTheKey(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	slow := s.slowness(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var ours, sessions []time.Duration // how long after the key was gone
	for _, run := range []struct {
		ttl   time.Duration
		times int
	}{{2 * time.Second, 30}, {time.Second, 4}, {10 * time.Second, 2}} {
		for i := range run.times {
			key := fmt.Sprintf("c3-%v-%d", run.ttl, i)
			p := faultproxy.New(t, s.Cluster[0].Addr)
			x := faulttest.Hold(t, openLocker(t, run.ttl, p.Addr), key)
			phase := rand.N(min(2*run.ttl, 5*time.Second))
			wg.Go(func() {
				after := lossInTime(t, s, p, x, run.ttl, phase, slow)
				mu.Lock()
				defer mu.Unlock()
				ours = append(ours, after)
			})
			if run.ttl != 2*time.Second || i%3 > 0 {
				continue
			}
			wg.Go(func() {
				after := sessionLoss(t, s, "session-"+key, phase)
				mu.Lock()
				defer mu.Unlock()
				sessions = append(sessions, after)
			})
		}
	}
	wg.Wait()
	t.Logf("Done, counted from the moment when the key was gone from the server: dlock %v to %v, concurrency.Session %v to %v",
		slices.Min(ours), slices.Max(ours), slices.Min(sessions), slices.Max(sessions))
}

// lossInTime cuts a holder off at some time after its acquire, and returns how long after the key was gone its end was told: less than 0.
func lossInTime(
	t *testing.T, s *site, p *faultproxy.Proxy, x *dlock.Lease, ttl, phase time.Duration, slow func() time.Duration,
) time.Duration {
	gone := s.freed(t, x.Key())
	select {
	case <-x.Done():
		if slow() < ttl/10 { // else the machine is so busy that renewals are not answered in time
			t.Errorf("lost without a fault: %v", x.Err())
		}
		return -ttl
	case <-time.After(phase):
	}
	p.BlackHole()
	before := x.ValidUntil()
	timer := make(chan time.Time, 1) // how late a timer is on this machine now
	time.AfterFunc(time.Until(before), func() { timer <- time.Now() })
	var done, freed time.Time
	for done.IsZero() || freed.IsZero() {
		ended := x.Done()
		if !done.IsZero() {
			ended = nil
		}
		select {
		case <-ended:
			done = time.Now()
		case freed = <-gone:
		case <-time.After(3*ttl + 20*time.Second):
			t.Errorf("%v, phase %v: Done at %v, freed at %v: one of them never comes", ttl, phase, done, freed)
			return 0
		}
	}
	// A reply that was let through just before the cut may have moved the deadline; nothing moves it after the end.
	until := x.ValidUntil()
	if start := until.Add(marginOf(ttl) - ttl); done.Before(start.Add(ttl * 9 / 10)) {
		t.Errorf("%v, phase %v: Done %v after the last acknowledged renewal was sent, want at least 0.9 of it", ttl, phase, done.Sub(start))
	}
	if onTime := (<-timer).Add(10 * time.Millisecond); done.After(freed) && (done.After(onTime) || !until.Equal(before)) {
		t.Errorf("%v, phase %v: Done %v after the server freed the key", ttl, phase, done.Sub(freed))
	}
	return done.Sub(freed)
}

// sessionLoss is the same for a session of the concurrency package with a TTL of 2 s.
func sessionLoss(t *testing.T, s *site, key string, phase time.Duration) time.Duration {
	p := faultproxy.New(t, s.Cluster[0].Addr)
	session, err := concurrency.NewSession(etcdtest.NewClient(t, p.Addr), concurrency.WithTTL(2))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer session.Orphan()
	if err := concurrency.NewMutex(session, key).Lock(t.Context()); err != nil {
		t.Error(err)
		return 0
	}
	gone := s.freed(t, key)
	time.Sleep(phase)
	p.BlackHole()
	done := make(chan time.Time, 1)
	go func() {
		<-session.Done()
		done <- time.Now()
	}()
	freed := faulttest.Receive(t, "the end of the session's key", gone)
	return faulttest.Receive(t, "the session's Done", done).Sub(freed)
}

// C4
func TestTheDeadlineCountsFromTheSendingOfARenewal(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	s := startSite(t, 1)
	p := faultproxy.New(t, s.Cluster[0].Addr)
	l := openLocker(t, ttl, p.Addr)
	x := faulttest.Hold(t, l, "c4", dlock.WithoutRenewal())
	if err := x.Extend(t.Context(), ttl); err != nil { // opens whatever a renewal needs
		t.Fatal(err)
	}
	gone := s.freed(t, "c4")
	p.Set(faultproxy.Rules{HoldDown: true})
	sent := time.Now()
	time.AfterFunc(ttl*8/10, p.Heal)
	if err := x.Extend(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	replied := time.Now()
	if took := replied.Sub(sent); took < ttl*8/10 {
		t.Fatalf("the reply took %v, want a delay of %v", took, ttl*8/10)
	}
	until := x.ValidUntil()
	// Either the delayed reply counts, from its sending, or the driver asked once more after it.
	if d := until.Sub(sent); d > ttl && until.After(replied.Add(ttl)) {
		t.Errorf("held until %v after the sending, want %v", d, ttl-marginOf(ttl))
	}
	p.BlackHole()
	if at := faulttest.Receive(t, "the deletion of the key", gone); until.After(at) {
		t.Errorf("held for %v longer than at the server", until.Sub(at))
	}
}

// C5
func TestATTLIsRefusedBeforeAnythingIsSentOrRoundedUp(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	t.Run("the Locker refuses", func(t *testing.T) {
		t.Parallel()
		l, w := wiredLocker(t, time.Minute, s.Addrs()...)
		faulttest.RefuseTTLs(t, l)
		if n := w.requests.Load(); n > 0 {
			t.Errorf("%d requests were sent, want none", n)
		}
	})
	t.Run("the driver rounds up and says so, or writes nothing", func(t *testing.T) {
		t.Parallel()
		b := openBackend(t, s.Addrs()...)
		for _, ttl := range faulttest.OddTTLs() {
			s.roundedUp(t, b, ttl)
		}
	})
	t.Run("a Locker's odd TTL is not cut", func(t *testing.T) {
		t.Parallel()
		l := openLocker(t, time.Minute, s.Addrs()...)
		const ttl = 1500*time.Millisecond + 1
		before := time.Now()
		x := faulttest.Hold(t, l, "c5-odd", dlock.WithTTL(ttl), dlock.WithoutRenewal())
		after := time.Now()
		if until := x.ValidUntil(); until.Sub(before) < ttl-marginOf(ttl) || until.Sub(after) > 2*time.Second {
			t.Errorf("valid for %v, want from %v to 2s", until.Sub(before), ttl-marginOf(ttl))
		}
	})
}

// roundedUp acquires and renews with a TTL. Either there is an error and nothing was written, or the server keeps the key for what the driver says, which
// is no less than what it was asked for.
func (s *site) roundedUp(t *testing.T, b driver.Backend, ttl time.Duration) {
	t.Helper()
	c := faulttest.Claim("c5-"+ttl.String(), ttl)
	g, err := b.Acquire(t.Context(), c)
	if err != nil {
		if n := s.count(t, c.Key); n > 0 || errors.Is(err, driver.ErrHeld) {
			t.Errorf("TTL %v: %v, and the server has %d keys; want none", ttl, err, n)
		}
		return
	}
	keys := s.contenders(t, c.Key)
	if len(keys) != 1 && time.Since(g.Start) >= g.TTL { // the machine had something else to do
		s.roundedUp(t, b, ttl)
		return
	}
	if len(keys) != 1 {
		t.Fatalf("TTL %v: the server has %d keys, want 1", ttl, len(keys))
	}
	lease, err := s.witness.TimeToLive(t.Context(), clientv3.LeaseID(keys[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	if granted := time.Duration(lease.GrantedTTL) * time.Second; granted < g.TTL || g.TTL < ttl || g.TTL <= 0 {
		t.Errorf("TTL %v: the server keeps it for %v, and the driver says %v", ttl, granted, g.TTL)
	}
	if r, err := b.Renew(t.Context(), c); err != nil || r.TTL < ttl {
		t.Errorf("TTL %v: renewed by %v, %v; want no less", ttl, r.TTL, err)
	}
	if err := b.Release(t.Context(), c); err != nil {
		t.Errorf("TTL %v: %v", ttl, err)
	}
}
