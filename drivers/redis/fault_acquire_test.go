package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// A1
func TestAnAcquireWhoseReplyIsCutOffIsNeverHeldByAnother(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	slow := s.slowness(t)
	t.Run("TryLock reads its own token back", func(t *testing.T) {
		p := faultproxy.New(t, s.Addr)
		l := locker(t, p.Addr, 30*time.Second)
		warm(t, l)
		p.Set(faultproxy.Rules{CutAtReply: 1})
		x, ok, err := dlock.TryAcquire(t.Context(), l, "a1-try")
		if !ok || err != nil {
			t.Fatalf("TryAcquire = %v, %v; want the lease", ok, err)
		}
		if v := s.value(t, "a1-try"); !strings.Contains(v, fmt.Sprintf("-%d ", x.Fence())) {
			t.Errorf("the server has %q, want the fence %d", v, x.Fence())
		}
	})
	t.Run("Lock has it", func(t *testing.T) {
		p := faultproxy.New(t, s.Addr)
		l := locker(t, p.Addr, 30*time.Second)
		warm(t, l)
		faulttest.Hold(t, l, "a1-lock").Unlock(t.Context()) //nolint:errcheck // opens the subscription
		p.Set(faultproxy.Rules{CutAtReply: 1})
		if x := faulttest.Hold(t, l, "a1-lock"); !x.Held() {
			t.Error("the lease is not held")
		}
	})
	t.Run("the driver says that it does not know", func(t *testing.T) {
		p := faultproxy.New(t, s.Addr)
		b := backend(t, p.Addr)
		release(t, b, claimed(t, b, "warm"))
		c := faulttest.Claim("a1-backend", 30*time.Second)
		p.Set(faultproxy.Rules{CutAtReply: 1})
		_, err := b.Acquire(t.Context(), c)
		if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrPermanent) {
			t.Fatalf("Acquire = %v, want an error that is neither ErrHeld nor ErrPermanent", err)
		}
		v := s.value(t, c.Key)
		if !strings.HasPrefix(v, "d:"+c.Token) {
			t.Fatalf("the server has %q: the acquire was not applied", v)
		}
		if g := acquire(t, b, c); !strings.Contains(v, fmt.Sprintf("-%d ", g.Fence)) {
			t.Errorf("asked again, the fence is %d, want that of %q", g.Fence, v)
		}
	})
	t.Run("while the network stays down it is an error, and then the key goes", func(t *testing.T) {
		p := faultproxy.New(t, s.Addr)
		l := locker(t, p.Addr, 30*time.Second)
		warm(t, l)
		p.Set(faultproxy.Rules{CutAtReply: 1, Refuse: true})
		if ok, err := l.TryLock(t.Context(), "a1-down"); ok || err == nil {
			t.Fatalf("TryLock = %v, %v; want an error", ok, err)
		}
		if s.value(t, "a1-down") == "" {
			t.Fatal("the acquire was not applied")
		}
		p.Heal()
		soon(t, slow, "the key is gone", func() bool { return s.value(t, "a1-down") == "" })
	})
}

// soon waits for what must come true within a second, or with as much delay as slow has measured.
func soon(t *testing.T, slow func() time.Duration, what string, cond func() bool) {
	t.Helper()
	faulttest.Within(t, func() time.Duration { return time.Second + slow() }, what, cond)
}

// claimed acquires key for half a minute.
func claimed(t testing.TB, b driver.Backend, key string) driver.Claim {
	t.Helper()
	c := faulttest.Claim(key, 30*time.Second)
	acquire(t, b, c)
	return c
}

// A2
func TestAnAcquireWhoseReplyTimesOutIsAnErrorAndIsCleanedUp(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	slow := s.slowness(t)
	for _, way := range []struct {
		name        string
		limit, read time.Duration // so long that the request arrives
		is          func(error) bool
	}{
		{"the caller's context ends", 2 * time.Second, 4 * time.Second, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{"the client's read times out", time.Minute, 2 * time.Second, func(err error) bool {
			var n net.Error
			return errors.As(err, &n) && n.Timeout()
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			p := faultproxy.New(t, s.Addr)
			l := locker(t, p.Addr, 30*time.Second, "read_timeout="+way.read.String())
			warm(t, l)
			p.Set(faultproxy.Rules{DropDown: true})
			ctx, cancel := context.WithTimeout(t.Context(), way.limit)
			defer cancel()
			key := "a2-" + way.limit.String()
			ok, err := l.TryLock(ctx, key)
			if ok || !way.is(err) || errors.Is(err, dlock.ErrNotAcquired) {
				t.Fatalf("TryLock = %v, %v; want a timeout", ok, err)
			}
			if s.value(t, key) == "" {
				t.Fatal("the acquire was not applied, or its release already was")
			}
			p.Heal()
			soon(t, slow, "the key is released in the background", func() bool { return s.value(t, key) == "" })
		})
	}
}

// A3
func TestARepeatedReleaseDoesNotTouchTheNextHolder(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := backend(t, s.Addr)
	t.Run("the driver", func(t *testing.T) {
		p := faultproxy.New(t, s.Addr)
		a := backend(t, p.Addr)
		ca := claimed(t, a, "a3-backend")
		p.Set(faultproxy.Rules{CutAtReply: 1})
		if err := a.Release(t.Context(), ca); err == nil || errors.Is(err, driver.ErrNotOwner) {
			t.Fatalf("Release = %v, want an unknown outcome", err)
		}
		claimed(t, b, "a3-backend")
		before := s.value(t, "a3-backend")
		if err := a.Release(t.Context(), ca); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Release, repeated = %v, want ErrNotOwner", err)
		}
		if now := s.value(t, "a3-backend"); now != before {
			t.Errorf("the next holder's value was %q, is %q", before, now)
		}
	})
	t.Run("Unlock", func(t *testing.T) {
		p := faultproxy.New(t, s.Addr)
		l := locker(t, p.Addr, 30*time.Second)
		x := faulttest.Hold(t, l, "a3")
		m := s.monitor(t)
		// The release is applied, its reply is lost, and what follows waits in the network.
		p.Set(faultproxy.Rules{HoldDown: true})
		unlocked := make(chan error, 1)
		go func() { unlocked <- x.Unlock(context.Background()) }()
		faulttest.Eventually(t, 5*time.Second, "the release is applied", func() bool { return s.value(t, "a3") == "" })
		claimed(t, b, "a3")
		before := s.value(t, "a3")
		p.Set(faultproxy.Rules{DropDown: true})
		p.CutAll()
		p.Heal()
		if err := faulttest.Receive(t, "Unlock", unlocked); errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock = %v: a release that was repeated cannot know that", err)
		}
		faulttest.Eventually(t, 5*time.Second, "the release is repeated", func() bool { return m.count("lua", `"LREM"`, companion("a3", "q")) > 0 })
		if now := s.value(t, "a3"); now != before {
			t.Errorf("the next holder's value was %q, is %q", before, now)
		}
	})
}

// A4
func TestARenewalWhoseReplyIsLostNeitherEndsNorExtendsTheHold(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const ttl = 3 * time.Second
	begin := func(t *testing.T, key string) (*faultproxy.Proxy, *dlock.Lease, time.Time) {
		p := faultproxy.New(t, s.Addr)
		x := faulttest.Hold(t, locker(t, p.Addr, ttl), key)
		until := x.ValidUntil()
		faulttest.Eventually(t, ttl, "a first renewal has made its connection", func() bool { return x.ValidUntil().After(until) })
		until = x.ValidUntil()
		p.Set(faultproxy.Rules{DropDown: true})
		lowest := s.pttl(t, key)
		faulttest.Eventually(t, ttl, "a renewal is applied", func() bool {
			now := s.pttl(t, key)
			lowest = min(lowest, now)
			return now > lowest+50*time.Millisecond
		})
		if !x.Held() || !x.ValidUntil().Equal(until) {
			t.Fatalf("held %v until %v, want true and %v: no renewal was acknowledged", x.Held(), x.ValidUntil(), until)
		}
		return p, x, until
	}
	t.Run("no answer until the end", func(t *testing.T) {
		t.Parallel()
		late := faulttest.Lateness(t)
		_, x, until := begin(t, "a4-end")
		now := faulttest.Ended(t, x, 5*ttl)
		if now.Before(until) || now.After(until.Add(10*time.Millisecond+late())) {
			t.Errorf("Done %v after ValidUntil, want at it", now.Sub(until))
		}
		if !errors.Is(x.Err(), dlock.ErrOwnershipLost) {
			t.Errorf("Err = %v, want ErrOwnershipLost", x.Err())
		}
	})
	t.Run("the network heals", func(t *testing.T) {
		t.Parallel()
		p, x, until := begin(t, "a4-heal")
		p.Heal()
		faulttest.Eventually(t, 2*ttl, "the hold outlives its first TTL", func() bool { return time.Now().After(until) })
		if !x.Held() {
			t.Errorf("lost: %v", x.Err())
		}
	})
}

// A5
func TestARenewalThatComesTooLateHasNoEffect(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	slow, direct := backend(t, p.Addr), backend(t, s.Addr)
	ca := faulttest.Claim("a5", time.Minute)
	acquire(t, slow, ca)
	p.Set(faultproxy.Rules{HoldUp: true})
	renewed := make(chan error, 1)
	go func() {
		_, err := slow.Renew(context.Background(), ca)
		renewed <- err
	}()
	faulttest.Eventually(t, 5*time.Second, "the renewal has a connection of its own", func() bool { return p.Open() >= 2 })
	release(t, direct, ca)
	cb := faulttest.Claim("a5", 10*time.Second)
	acquire(t, direct, cb)
	before := s.value(t, "a5")
	p.Heal()
	if err := faulttest.Receive(t, "Renew", renewed); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Renew = %v, want ErrNotOwner", err)
	}
	if now := s.value(t, "a5"); now != before {
		t.Errorf("the next holder's value was %q, is %q", before, now)
	}
	if left := s.pttl(t, "a5"); left > cb.TTL {
		t.Errorf("the next holder has %v left, want at most %v", left, cb.TTL)
	}
}

// B1
func TestACancelledAcquireReturnsAtOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	l := locker(t, p.Addr, 30*time.Second)
	warm(t, l)
	late, slow := faulttest.Lateness(t), s.slowness(t)
	keys := map[string]bool{}
	for i := range 200 {
		p.Set(faultproxy.Rules{DelayUp: rand.N(time.Millisecond), DelayDown: rand.N(time.Millisecond)})
		key := fmt.Sprint("b1-", i)
		keys[key] = true
		faulttest.CancelAcquire(t, l, key, rand.N(4*time.Millisecond), i%2 == 0, late)
	}
	p.Heal()
	allGone(t, s, keys, slow)
}

// B1
func TestACancelledAcquireLeavesNothingWhenTheNetworkHeals(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Rules{
		"replies vanish":  {DropDown: true},
		"all vanishes":    {DropDown: true, DropUp: true},
		"requests wait":   {HoldUp: true},
		"replies wait":    {HoldDown: true},
		"all of it waits": {HoldUp: true, HoldDown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			p := faultproxy.New(t, s.Addr)
			l := locker(t, p.Addr, 30*time.Second)
			warm(t, l)
			late, slow := faulttest.Lateness(t), s.slowness(t)
			keys := map[string]bool{}
			p.Set(fault)
			for i := range 6 {
				key := fmt.Sprint("b1-", i)
				keys[key] = true
				faulttest.CancelAcquire(t, l, key, 5*time.Millisecond+rand.N(50*time.Millisecond), i%2 == 0, late)
			}
			p.Heal()
			allGone(t, s, keys, slow)
		})
	}
}

// B1
func TestManyCancelledAcquiresDoNotBarTheWayForTheirCleanUp(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	l := locker(t, p.Addr, 30*time.Second)
	late, slow := faulttest.Lateness(t), s.slowness(t)
	all := func(prefix string, f func(key string)) map[string]bool {
		var wg sync.WaitGroup
		keys := map[string]bool{}
		for i := range 12 {
			key := fmt.Sprint(prefix, i)
			keys[key] = true
			wg.Go(func() { f(key) })
		}
		wg.Wait()
		return keys
	}
	p.Set(faultproxy.Rules{DelayDown: 5 * time.Millisecond}) // so that several connections are made
	all("warm-", func(key string) { _ = faulttest.Hold(t, l, key).Unlock(t.Context()) })
	p.Set(faultproxy.Rules{DropDown: true})
	keys := all("b1-", func(key string) { faulttest.CancelAcquire(t, l, key, 20*time.Millisecond, true, late) })
	p.Heal()
	allGone(t, s, keys, slow)
	x := faulttest.Hold(t, l, "b1-after")
	if err := x.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func allGone(t *testing.T, s *server, keys map[string]bool, slow func() time.Duration) {
	t.Helper()
	var left int
	soon(t, slow, "all keys are gone, and nobody waits", func() bool {
		left = 0
		for key := range keys {
			if s.value(t, key) != "" || s.waiting(t, key) > 0 {
				left++
			}
		}
		return left == 0
	})
}

// B2
func TestAContextThatIsDoneSendsNothing(t *testing.T) {
	t.Parallel()
	s := listenSilently(t)
	l := locker(t, s.addr, time.Second)
	b := backend(t, s.addr)
	faulttest.UseDoneContext(t, l, b)
	if n, bytes := s.accepted.Load(), s.bytes.Load(); n > 0 || bytes > 0 {
		t.Errorf("%d connections were made and %d bytes sent, want none", n, bytes)
	}
}

// B3
func TestCancellingTheContextOfAnAcquireDoesNotEndTheHold(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l := openLocker(t, dsn(s.Addr), dlock.Config{DefaultTTL: 20 * time.Second, RenewInterval: 200 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	x, err := dlock.Acquire(ctx, l, "b3")
	if err != nil {
		t.Fatal(err)
	}
	first := x.ValidUntil()
	cancel()
	// One renewal may have been under way.
	faulttest.Eventually(t, 10*time.Second, "renewals go on", func() bool { return x.ValidUntil().After(first.Add(time.Second)) })
	if !x.Held() || s.value(t, "b3") == "" {
		t.Errorf("held %v, the server has %q", x.Held(), s.value(t, "b3"))
	}
}

// B4
func TestUnlockWithACancelledContextIsStillSent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l := locker(t, s.Addr, 30*time.Second)
	x := faulttest.Hold(t, l, "b4")
	m, slow := s.monitor(t), s.slowness(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.Unlock(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Unlock = %v, want nil or the context's error", err)
	}
	if x.Held() {
		t.Error("held after Unlock")
	}
	soon(t, slow, "the key is gone", func() bool { return s.value(t, "b4") == "" })
	faulttest.Eventually(t, patience, "the witness has seen the release", func() bool { return m.count("lua", `"DEL" "b4"`) == 1 })
}

// B5
func TestAWaiterThatGivesUpLeavesTheQueueAndDelaysNobody(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, first, second := locker(t, s.Addr, 30*time.Second), locker(t, s.Addr, 30*time.Second), locker(t, s.Addr, 30*time.Second)
	x := faulttest.Hold(t, holder, "b5")
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- first.Lock(ctx, "b5") }()
	faulttest.Eventually(t, 5*time.Second, "the first waits", func() bool { return s.waiting(t, "b5") == 1 })
	next := make(chan *dlock.Lease, 1)
	go func() {
		y, _ := dlock.Acquire(t.Context(), second, "b5")
		next <- y
	}()
	faulttest.Eventually(t, 5*time.Second, "the second waits", func() bool { return s.waiting(t, "b5") == 2 })
	slow := s.slowness(t)
	cancel()
	if err := faulttest.Receive(t, "Lock", gaveUp); !errors.Is(err, context.Canceled) || !errors.Is(err, dlock.ErrNotAcquired) {
		t.Errorf("Lock = %v, want ErrNotAcquired and context.Canceled", err)
	}
	soon(t, slow, "one is left in the queue, and known to wait", func() bool {
		return s.waiting(t, "b5") == 1 && s.do(t, "hlen", companion("b5", "w")) == int64(1)
	})
	began := time.Now()
	if err := x.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	y := faulttest.Receive(t, "Acquire", next)
	if took := time.Since(began); y == nil || took > 100*time.Millisecond+slow() {
		t.Errorf("the second had %v after %v, want it at once", y, took)
	}
	if n := s.do(t, "exists", companion("b5", "q"), companion("b5", "w")); n != int64(0) {
		t.Errorf("%v keys of the queue are left, want none", n)
	}
}

// B6
func TestACallUnderWayAtCloseIsToldOfIt(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	b := backend(t, p.Addr)
	acquire(t, b, faulttest.Claim("b6-warm", time.Second))
	p.BlackHole()
	answer := make(chan error, 1)
	go func() {
		_, err := b.Acquire(context.Background(), faulttest.Claim("b6", time.Second))
		answer <- err
	}()
	faulttest.Eventually(t, 5*time.Second, "the request is sent", func() bool { return p.Dropped() > 0 })
	_ = b.Close()
	err := faulttest.Receive(t, "the answer", answer)
	if err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the backend is closed") {
		t.Errorf("the call under way returned %v, want that the backend is closed", err)
	}
}

// B6
func TestCloseEndsEverythingAndNothingIsSentAfterwards(t *testing.T) {
	t.Parallel()
	const ttl = 900 * time.Millisecond
	for name, fault := range faulttest.CloseFaults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			p := faultproxy.New(t, s.Addr)
			claimed(t, backend(t, s.Addr), "busy")
			var m *monitor
			faulttest.CloseInUse(t, faulttest.Closing{
				Locker: locker(t, p.Addr, ttl), Proxy: p,
				Waits:  func() bool { return s.waiting(t, "busy") == 1 },
				Closed: func() { m = s.monitor(t) },
			}, fault)
			if fault.HoldUp {
				return // what was sent before Close may arrive at any time
			}
			p.Heal()
			// A renewal that somebody forgot would come within the TTL.
			time.Sleep(ttl)
			if n := m.count(`"evalsha"`) + m.count(`"eval"`) + m.count(`"subscribe"`); n > 0 {
				t.Errorf("%d requests were sent after Close, want none: %q", n, m.lines)
			}
		})
	}
}
