package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// margin is how long before the end of its TTL a hold is no longer relied on.
func margin(ttl time.Duration) time.Duration { return max(2*time.Millisecond, ttl/100) }

// C1
func TestAServerThatHangsForLongerThanTheTTLGivesNoHold(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	t.Run("TryLock", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		l := locker(t, s.Addr, ttl)
		warm(t, l)
		s.Stop()
		ok, err := l.TryLock(t.Context(), "c1")
		s.Continue()
		if ok || err == nil {
			t.Errorf("TryLock = %v, %v; want an error", ok, err)
		}
		faulttest.Eventually(t, 2*time.Second, "the key is gone", func() bool { return s.value(t, "c1") == "" })
	})
	t.Run("Lock", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		l := locker(t, s.Addr, ttl)
		_ = faulttest.Hold(t, l, "c1").Unlock(t.Context())
		s.Stop()
		leases := make(chan *dlock.Lease, 1)
		go func() {
			x, _ := dlock.Acquire(t.Context(), l, "c1")
			leases <- x
		}()
		select {
		case <-leases:
			t.Error("Acquire returned while the server hung")
		case <-time.After(3 * ttl):
		}
		s.Continue()
		x := faulttest.Receive(t, "Acquire", leases)
		if x == nil {
			t.Fatal("Acquire failed after the server went on")
		}
		if !x.Held() {
			t.Errorf("Acquire returned a hold that is over: %v", x.Err())
		}
		// What the server did late counts from when it was asked.
		until, expiry := x.ValidUntil(), s.expiry(t, "c1")
		if until.After(expiry) {
			t.Errorf("held for %v longer than at the server", until.Sub(expiry))
		}
		if v := s.value(t, "c1"); x.Held() && !strings.Contains(v, strconv.FormatUint(x.Fence(), 10)) {
			t.Errorf("held with the fence %d, but the server has %q", x.Fence(), v)
		}
	})
}

// C2
func TestAHolderThatWasStoppedKnowsItAtOnceAndItsFenceIsRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	faulttest.StopHolder(t, "redis", dsn(s.Addr), "c2", locker(t, s.Addr, 30*time.Second))
}

// C3
func TestALossIsToldBeforeTheServerFreesTheKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	late := faulttest.Lateness(t)
	var wg sync.WaitGroup
	for _, run := range []struct {
		ttl   time.Duration
		times int
	}{{time.Second, 8}, {2 * time.Second, 6}, {10 * time.Second, 3}} {
		for i := range run.times {
			p := faultproxy.New(t, s.Addr)
			x := faulttest.Hold(t, locker(t, p.Addr, run.ttl), fmt.Sprint("c3-", run.ttl, i))
			wg.Go(func() { lossInTime(t, s, p, x, run.ttl, late) })
		}
	}
	wg.Wait()
}

// lossInTime cuts a holder off at some time after its acquire, and sees when it ends.
func lossInTime(t *testing.T, s *server, p *faultproxy.Proxy, x *dlock.Lease, ttl time.Duration, late func() time.Duration) {
	phase := rand.N(min(ttl, 4*time.Second))
	select {
	case <-x.Done():
		t.Errorf("lost without a fault: %v", x.Err())
		return
	case <-time.After(phase):
	}
	p.BlackHole()
	// A reply that was let through just before may still move the deadline, and then the key's expiry has moved with it.
	until, expiry := x.ValidUntil(), s.expiry(t, x.Key())
	if now := x.ValidUntil(); !now.Equal(until) {
		until, expiry = now, s.expiry(t, x.Key())
	}
	if until.After(expiry) {
		t.Errorf("%v, phase %v: held until %v after the server frees the key", ttl, phase, until.Sub(expiry))
	}
	timer := make(chan time.Time, 1) // how late a timer is on this machine now
	time.AfterFunc(time.Until(until), func() { timer <- time.Now() })
	select {
	case <-x.Done():
	case <-time.After(5 * ttl):
		t.Errorf("%v, phase %v: never Done", ttl, phase)
		return
	}
	done := time.Now()
	if start := until.Add(margin(ttl) - ttl); done.Before(start.Add(ttl * 9 / 10)) {
		t.Errorf("%v, phase %v: Done %v after the last acknowledged renewal was sent, want at least 0.9 of it", ttl, phase, done.Sub(start))
	}
	// On a machine that wakes everybody late Done is late, too, but by no more than that.
	if after := done.Sub(expiry); after > 0 && done.Sub(until) > late() && done.Sub(<-timer) > 10*time.Millisecond {
		t.Errorf("%v, phase %v: Done %v after the server freed the key, and %v after it was to be relied on", ttl, phase, after, done.Sub(until))
	}
}

// C4
func TestTheDeadlineCountsFromTheSendingOfARenewal(t *testing.T) {
	t.Parallel()
	const ttl, delay = 20 * time.Second, 2 * time.Second
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	l := locker(t, p.Addr, ttl, "read_timeout=30s")
	first := faulttest.Hold(t, l, "c4-warm")
	if err := first.Extend(t.Context(), ttl); err != nil { // makes the connection for renewals
		t.Fatal(err)
	}
	_ = first.Unlock(t.Context())
	x := faulttest.Hold(t, l, "c4", dlock.WithoutRenewal())
	p.Set(faultproxy.Rules{DelayDown: delay})
	late := faulttest.Lateness(t)
	sent := time.Now()
	if err := x.Extend(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(sent); took < delay {
		t.Fatalf("the reply took %v, want a delay of %v", took, delay)
	}
	until := x.ValidUntil()
	if expiry := s.expiry(t, "c4"); until.After(expiry) {
		t.Errorf("held for %v longer than at the server", until.Sub(expiry))
	}
	if d := until.Sub(sent); d < ttl-margin(ttl) || d > ttl+late() {
		t.Errorf("held until %v after the sending, want %v", d, ttl-margin(ttl))
	}
}

// C5
func TestATTLIsRefusedBeforeAnythingIsSentOrRoundedUp(t *testing.T) {
	t.Parallel()
	t.Run("the Locker refuses", func(t *testing.T) {
		t.Parallel()
		s := listenSilently(t)
		l := locker(t, s.addr, time.Minute)
		faulttest.RefuseTTLs(t, l)
		if n := s.accepted.Load(); n > 0 {
			t.Errorf("%d connections were made, want none", n)
		}
	})
	t.Run("the driver rounds up and says so, or writes nothing", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		s.longest = 1 << 62
		b := backend(t, s.Addr)
		for _, ttl := range faulttest.OddTTLs() {
			roundedUp(t, s, b, ttl)
		}
	})
	t.Run("a Locker's odd TTL is not cut", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		l := locker(t, s.Addr, time.Minute)
		const ttl = 1500*time.Millisecond + 1
		before := time.Now()
		x := faulttest.Hold(t, l, "c5", dlock.WithTTL(ttl), dlock.WithoutRenewal())
		if d := x.ValidUntil().Sub(before); d < ttl-margin(ttl) {
			t.Errorf("valid for %v, want at least %v", d, ttl-margin(ttl))
		}
		if left := s.pttl(t, "c5"); left > 1501*time.Millisecond {
			t.Errorf("the server keeps it for %v, want at most 1501ms", left)
		}
	})
}

// roundedUp acquires and renews with a TTL. Either there is an error and nothing was written, or the server keeps the key for what the driver says, which
// is no less than what it was asked for.
func roundedUp(t *testing.T, s *server, b driver.Backend, ttl time.Duration) {
	t.Helper()
	ctx := context.Background()
	key := "c5-" + ttl.String()
	c := faulttest.Claim(key, ttl)
	g, err := b.Acquire(ctx, c)
	if err != nil {
		if v := s.value(t, key); v != "" || errors.Is(err, driver.ErrHeld) {
			t.Errorf("TTL %v: %v, and the server has %q; want nothing", ttl, err, v)
		}
	} else {
		if left := s.pttl(t, key); left == -1*time.Millisecond || left > g.TTL {
			t.Errorf("TTL %v: the server keeps it for %v, and the driver said %v", ttl, left, g.TTL)
		}
		if g.TTL < ttl || ttl <= 0 {
			t.Errorf("TTL %v: the driver says %v, want no less", ttl, g.TTL)
		}
	}
	if ttl < time.Second { // it has expired, or there was none
		return
	}
	if r, err := b.Renew(ctx, c); err == nil && r.TTL < ttl {
		t.Errorf("TTL %v: renewed by %v, want no less", ttl, r.TTL)
	}
	_ = b.Release(ctx, c)
}
