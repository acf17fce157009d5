package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// queued starts a Wait and sees it in the queue.
func queued(t *testing.T, s *server, b driver.Waiter, c driver.Claim) <-chan granted {
	t.Helper()
	before := s.waiting(t, c.Key)
	ch := wait(t.Context(), b, c)
	faulttest.Eventually(t, 10*time.Second, "one more waits", func() bool { return s.waiting(t, c.Key) == before+1 })
	return ch
}

// D5
func TestAHandOverWhoseMessageIsLostIsFoundByAsking(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const ttl = 6 * time.Second // so that a waiter asks every two seconds
	holder := backend(t, s.Addr)
	begin := func(t *testing.T, key string) (*faultproxy.Proxy, driver.Claim, driver.Claim, <-chan granted) {
		p := faultproxy.New(t, s.Addr)
		b := backend(t, p.Addr)
		free := faulttest.Claim(key+"-free", ttl)
		within(t, 5*time.Second, "a free lock", wait(t.Context(), b, free)) // opens the subscription, after which everybody asks once more
		release(t, b, free)
		ca, cb := faulttest.Claim(key, time.Minute), faulttest.Claim(key, ttl)
		acquire(t, holder, ca)
		told := make(chan struct{})
		got := waitTold(t.Context(), b, cb, sync.OnceFunc(func() { close(told) }))
		faulttest.Receive(t, "the reply that it is in the queue", told)
		return p, ca, cb, got
	}
	t.Run("the server closes the subscription just before", func(t *testing.T) {
		_, ca, cb, got := begin(t, "d5-before")
		s.do(t, "client", "kill", "type", "pubsub")
		release(t, holder, ca)
		within(t, 2*time.Second, "the lock", got)
		release(t, holder, cb)
	})
	t.Run("the connections break while the message is on its way", func(t *testing.T) {
		slow := s.slowness(t)
		// With an engine: a request that is under way when its connection breaks is an error, and made again.
		p := faultproxy.New(t, s.Addr)
		l, ca := locker(t, p.Addr, ttl), faulttest.Claim("d5-cut", time.Minute)
		acquire(t, holder, ca)
		got := make(chan *dlock.Lease, 1)
		go func() {
			x, _ := dlock.Acquire(t.Context(), l, ca.Key)
			got <- x
		}()
		faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.waiting(t, ca.Key) == 1 })
		p.Set(faultproxy.Rules{DropDown: true})
		release(t, holder, ca)
		p.CutAll()
		p.Heal()
		healed := time.Now()
		if x := faulttest.Receive(t, "the lock", got); x == nil || !x.Held() {
			t.Error("the lock was not had")
		}
		// As a rule at once. But a new subscription whose confirmation is lost too goes unnoticed until the next re-assertion.
		if took := time.Since(healed); took > 2*time.Second+200*time.Millisecond+slow() {
			t.Errorf("it took %v, want at most 2s", took)
		}
	})
	t.Run("the message is lost and nobody notices", func(t *testing.T) {
		slow := s.slowness(t)
		p, ca, cb, got := begin(t, "d5-lost")
		subscribed := func() string { return s.do(t, "client", "list", "type", "pubsub").(string) }
		id, _, _ := strings.Cut(subscribed(), " ")
		p.Set(faultproxy.Rules{DropDown: true})
		release(t, holder, ca)
		faulttest.Eventually(t, time.Second, "the lock is handed over", func() bool { return strings.Contains(s.value(t, ca.Key), cb.Token) })
		faulttest.Eventually(t, time.Second, "the message is lost", func() bool { return p.Dropped() > 0 })
		p.Heal()
		healed := time.Now()
		g := within(t, 20*time.Second, "the lock, by the next re-assertion", got)
		if took := g.at.Sub(healed); took > 2*time.Second+200*time.Millisecond+slow() {
			t.Errorf("it took %v, want at most 2s", took)
		}
		faulttest.Eventually(t, 2*time.Second, "the subscription is made anew", func() bool {
			now := subscribed()
			return now != "" && !strings.Contains(now, id+" ")
		})
		release(t, holder, cb)
	})
}

// D5
func TestAHandOverThatOvertakesTheReplyIsNotMissed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	other := backend(t, s.Addr)
	b, requests, _ := routed(t, s)
	free := faulttest.Claim("d5-free", time.Minute)
	within(t, 5*time.Second, "a free lock", wait(t.Context(), b, free)) // opens the subscription
	release(t, b, free)
	c0, cw := faulttest.Claim("d5", time.Minute), faulttest.Claim("d5", time.Minute)
	acquire(t, other, c0)
	slow := s.slowness(t)
	requests.Set(faultproxy.Rules{HoldDown: true})
	got := queued(t, s, b, cw)
	received := func() string {
		return s.do(t, "client", "list", "type", "pubsub").(string)
	}
	release(t, other, c0)
	faulttest.Eventually(t, 5*time.Second, "the message has left the server", func() bool { return strings.Contains(received(), "omem=0 ") })
	requests.Heal()
	began := time.Now()
	g := within(t, 5*time.Second, "the lock", got)
	if took := g.at.Sub(began); took > 500*time.Millisecond+slow() {
		t.Errorf("it took %v, want it at once: the message had come before the reply", took)
	}
	if g.grant.Start.After(began) {
		t.Error("the grant counts from after the hand-over")
	}
	release(t, other, cw)
}

// D6
func TestRequestsPerAcquisitionStayFlatAndTheOrderIsKept(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	few, many := crowd(t, s, 20), crowd(t, s, 200)
	t.Logf("requests per acquisition: %.2f with 20 waiters, %.2f with 200", few, many)
	if many > few+0.2 || many > 2.3 {
		t.Errorf("%.2f requests per acquisition with 200 waiters and %.2f with 20, want 2", many, few)
	}
}

// crowd has n waiters of n/5 clients get a lock one after the other, and returns how many requests that took for each.
func crowd(t *testing.T, s *server, n int) float64 {
	key := fmt.Sprint("d6-", n)
	backends := make([]*redisdriver.Backend, n/5)
	for i := range backends {
		backends[i] = backend(t, s.Addr, "pool_size=2")
	}
	holder := backend(t, s.Addr)
	first := faulttest.Claim(key, time.Minute)
	acquire(t, holder, first)
	// The first wait of a client opens its subscription, which costs it one request more.
	for _, b := range backends {
		c := faulttest.Claim("d6-warm", time.Minute)
		within(t, 5*time.Second, "a free lock", wait(t.Context(), b, c))
		release(t, b, c)
	}
	before := s.calls(t, "evalsha")
	var order []int
	var asked int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		b, c := backends[i%len(backends)], faulttest.Claim(key, time.Minute)
		wg.Go(func() {
			began := time.Now()
			_, err := b.Wait(t.Context(), c, func() {})
			mu.Lock()
			order = append(order, i)
			asked += int(time.Since(began) / (2 * time.Second)) // whether it is still in the queue: that is upkeep
			mu.Unlock()
			if err == nil {
				err = b.Release(t.Context(), c)
			}
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
		faulttest.Eventually(t, 10*time.Second, "it is in the queue", func() bool { return s.waiting(t, key) == i+1 })
	}
	release(t, holder, first)
	wg.Wait()
	for i, who := range order {
		if who != i {
			t.Errorf("waiter %d came as number %d, want the order of arrival: %v", who, i, order)
			break
		}
	}
	return float64(s.calls(t, "evalsha")-before-1-asked) / float64(n)
}

// D7
func TestWaitersThatAreGoneAreSkipped(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	// setup makes a holder, one waiter that will be gone, and one that will not.
	type scene struct {
		s           *server
		holder      *redisdriver.Backend
		held, alive driver.Claim
		got         <-chan granted
	}
	setup := func(t *testing.T, goner func(s *server) func()) (sc scene, leave func()) {
		s := startServer(t)
		sc = scene{s: s, holder: backend(t, s.Addr), held: faulttest.Claim("d7", time.Minute), alive: faulttest.Claim("d7", ttl)}
		acquire(t, sc.holder, sc.held)
		leave = goner(s)
		faulttest.Eventually(t, 10*time.Second, "the first waits", func() bool { return s.waiting(t, "d7") == 1 })
		sc.got = queued(t, s, backend(t, s.Addr), sc.alive)
		return sc, leave
	}
	process := func(t *testing.T, leave func(*faulttest.Process)) func(s *server) func() {
		return func(s *server) func() {
			c := faulttest.StartWaiter(t, "redis", dsn(s.Addr), "d7", ttl)
			c.Line(t, "waiting")
			return func() { leave(c) }
		}
	}
	partitioned := func(t *testing.T) func(s *server) func() {
		return func(s *server) func() {
			p := faultproxy.New(t, s.Addr)
			ctx, cancel := context.WithCancel(context.Background())
			t.Cleanup(cancel)
			wait(ctx, backend(t, p.Addr), faulttest.Claim("d7", ttl))
			return p.BlackHole
		}
	}
	silence := func(t *testing.T, s *server) { // so long that the server knows; this is what the rule says, not a guess
		s.do(t, "ping") // from here on nothing that was sent before is still to be answered
		time.Sleep(ttl*8/10 + 50*time.Millisecond)
	}
	t.Run("dead", func(t *testing.T) {
		t.Parallel()
		sc, leave := setup(t, process(t, (*faulttest.Process).Kill))
		slow := sc.s.slowness(t)
		leave()
		faulttest.Eventually(t, 5*time.Second, "the server has noticed", func() bool {
			return strings.Count(sc.s.do(t, "client", "list", "type", "pubsub").(string), "\n") == 1
		})
		began := time.Now()
		release(t, sc.holder, sc.held)
		if took := within(t, patience, "the next has the lock", sc.got).at.Sub(began); took > 100*time.Millisecond+slow() {
			t.Errorf("it took %v, want it at once: nobody listened", took)
		}
		release(t, sc.holder, sc.alive)
	})
	for name, goner := range map[string]func(t *testing.T) func(s *server) func(){
		"hung":        func(t *testing.T) func(s *server) func() { return process(t, (*faulttest.Process).Stop) },
		"partitioned": partitioned,
	} {
		t.Run(name+" and silent", func(t *testing.T) {
			t.Parallel()
			sc, leave := setup(t, goner(t))
			slow := sc.s.slowness(t)
			leave()
			silence(t, sc.s)
			began := time.Now()
			release(t, sc.holder, sc.held)
			if took := within(t, patience, "the next has the lock", sc.got).at.Sub(began); took > 100*time.Millisecond+slow() {
				t.Errorf("it took %v, want it at once: the first was silent for 0.8 of its TTL", took)
			}
			release(t, sc.holder, sc.alive)
		})
		t.Run(name+" a moment ago", func(t *testing.T) {
			t.Parallel()
			sc, leave := setup(t, goner(t))
			slow := sc.s.slowness(t)
			leave()
			began := time.Now()
			release(t, sc.holder, sc.held)
			// The server cannot know, and the lock is given for a TTL to somebody who does not take it.
			if took := within(t, patience, "the next has the lock", sc.got).at.Sub(began); took > ttl+50*time.Millisecond+slow() {
				t.Errorf("it took %v, want at most the TTL of %v", took, ttl)
			}
			release(t, sc.holder, sc.alive)
		})
	}
}

// D7
func TestMoreDeadWaitersThanOneReleaseSkipsDoNotStrandTheQueue(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	s := startServer(t)
	holder, dead, alive := backend(t, s.Addr), backend(t, s.Addr), backend(t, s.Addr)
	held := faulttest.Claim("d7-many", time.Minute)
	acquire(t, holder, held)
	for i := range 150 {
		wait(t.Context(), dead, faulttest.Claim("d7-many", time.Minute))
		faulttest.Eventually(t, 5*time.Second, "it waits", func() bool { return s.waiting(t, "d7-many") == i+1 })
	}
	c := faulttest.Claim("d7-many", ttl)
	got := queued(t, s, alive, c)
	_ = dead.Close()
	faulttest.Eventually(t, 5*time.Second, "nobody listens for the dead ones", func() bool {
		return strings.Count(s.do(t, "client", "list", "type", "pubsub").(string), "\n") == 1
	})
	release(t, holder, held)
	within(t, 2*ttl, "the lock", got)
	release(t, alive, c)
}

// D8
func TestAHolderThatExpiresDoesNotStrandTheQueue(t *testing.T) {
	t.Parallel()
	t.Run("nobody else comes", func(t *testing.T) {
		t.Parallel()
		expiringHolders(t, false)
	})
	t.Run("newcomers try to get it", func(t *testing.T) {
		t.Parallel()
		expiringHolders(t, true)
	})
}

// expiringHolders has 32 wait for a lock whose holder, and some of those after it, are never heard of again.
func expiringHolders(t *testing.T, newcomers bool) {
	const ttl, n = 4 * time.Second, 32 // so long that nobody is taken for gone who is merely slow
	s := startServer(t)
	clients := make([]*redisdriver.Backend, 8)
	for i := range clients {
		clients[i] = backend(t, s.Addr)
	}
	const short = ttl * 5 / 6 // so that it expires when nobody is about to ask anyway
	dead := acquire(t, clients[0], faulttest.Claim("d8", time.Minute))
	type result struct {
		who   int
		fence uint64
	}
	results := make(chan result, 2*n)
	slow := s.slowness(t)
	var wg sync.WaitGroup
	join := func(who int) {
		b, c := clients[who%len(clients)], faulttest.Claim("d8", ttl)
		wg.Go(func() {
			g, err := b.Wait(t.Context(), c, func() {})
			if err != nil {
				t.Errorf("waiter %d: %v", who, err)
				return
			}
			results <- result{who, g.Fence}
			if who%16 == 5 { // it is not heard of again, either
				return
			}
			if err := b.Release(t.Context(), c); err != nil {
				t.Errorf("waiter %d: %v", who, err)
			}
		})
	}
	for i := range n {
		join(i)
		faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.waiting(t, "d8") == i+1 })
	}
	stop := func() {}
	if newcomers {
		stop = tryAgainAndAgain(t, s, clients[1])
		for i := range 4 {
			join(n + i) // behind the others
		}
	}
	began, err := s.admin.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	s.do(t, "pexpire", "d8", short.Milliseconds())
	wg.Wait()
	stop()
	close(results)
	last, i := uint64(began.Add(short-ttl).UnixMicro()), 0 // as if it had been granted for a whole TTL
	for r := range results {
		if r.who != i && i < n {
			t.Errorf("waiter %d came as number %d, want the order of arrival", r.who, i)
		}
		if r.fence <= max(last, dead.Fence) {
			t.Errorf("waiter %d has the fence %d after %d", r.who, r.fence, max(last, dead.Fence))
		}
		// The fence is the server's clock in microseconds at the grant.
		if idle := time.Duration(r.fence-last)*time.Microsecond - ttl; idle > 50*time.Millisecond+slow() {
			t.Errorf("the lock was idle for %v before waiter %d", idle, r.who)
		}
		last, i = r.fence, i+1
	}
}

// tryAgainAndAgain has somebody try to get the lock who must not while others wait. It returns how to stop that.
func tryAgainAndAgain(t *testing.T, s *server, b *redisdriver.Backend) (stop func()) {
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; !stopped.Load(); time.Sleep(3 * time.Millisecond) {
			c := faulttest.Claim("d8", time.Second)
			if _, err := b.Acquire(context.Background(), c); err != nil {
				continue
			}
			if s.waiting(t, "d8") > 0 {
				t.Error("a newcomer got the lock although others waited")
			}
			_ = b.Release(context.Background(), c)
		}
	}()
	return func() {
		stopped.Store(true)
		<-done
	}
}

// routed is a backend whose requests and whose subscription go different ways.
func routed(t *testing.T, s *server, opts ...redisdriver.Option) (b *redisdriver.Backend, requests, subscription *faultproxy.Proxy) {
	t.Helper()
	return routedAfter(t, s, func() error { return nil }, opts...)
}

// routedAfter is routed, with something that is called before every dial, which fails if that does. A subscription that is made anew goes the way of the
// requests.
func routedAfter(t *testing.T, s *server, before func() error, opts ...redisdriver.Option) (b *redisdriver.Backend, requests, subscription *faultproxy.Proxy) {
	t.Helper()
	requests, subscription = faultproxy.New(t, s.Addr), faultproxy.New(t, s.Addr)
	var dials atomic.Int32
	client := goredis.NewClient(&goredis.Options{
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 20 * time.Second, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if err := before(); err != nil {
				return nil, err
			}
			addr := requests.Addr
			if dials.Add(1) == 2 {
				addr = subscription.Addr
			}
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	b = redisdriver.New(client, opts...).(*redisdriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	return b, requests, subscription
}

// D9
func TestAnOldHandOverIsDroppedByItsFence(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // it must be known to be alive when it is given the lock
	s := startServer(t)
	other := backend(t, s.Addr)
	b, requests, subscription := routed(t, s)
	c0, c1, cw := faulttest.Claim("d9", time.Minute), faulttest.Claim("d9", time.Minute), faulttest.Claim("d9", ttl)
	acquire(t, other, c0)
	got := queued(t, s, b, cw)
	if subscription.Open() != 1 {
		t.Fatalf("%d connections go the way of the subscription, want 1", subscription.Open())
	}
	// The waiter is given the lock, does not hear of it and is not heard of, and its time passes.
	subscription.Set(faultproxy.Rules{HoldDown: true})
	requests.Set(faultproxy.Rules{HoldUp: true})
	release(t, other, c0)
	if !strings.Contains(s.value(t, "d9"), cw.Token) {
		t.Fatal("the lock was not handed over")
	}
	faulttest.Eventually(t, patience, "the hand-over has expired", func() bool { return s.value(t, "d9") == "" })
	g1 := acquire(t, other, c1)
	// It asks again, and is told to queue.
	requests.Heal()
	faulttest.Eventually(t, 5*time.Second, "it waits again", func() bool { return s.waiting(t, "d9") == 1 })
	// The old message comes first on the subscription, and then the one that counts.
	subscription.Heal()
	release(t, other, c1)
	g := within(t, 5*time.Second, "the lock", got)
	if g.grant.Fence <= g1.Fence {
		t.Errorf("the waiter was given the fence %d, but %d was given since", g.grant.Fence, g1.Fence)
	}
	if g.grant.Start.IsZero() || !g.grant.Start.Add(g.grant.TTL).Before(s.expiry(t, "d9").Add(2*time.Millisecond)) {
		t.Errorf("the grant counts from %v, later than at the server", g.grant.Start)
	}
	release(t, other, cw)
}

// D9
func TestAHandOverThatComesAfterItsTimeIsNoHold(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // it must be known to be alive when it is given the lock
	s := startServer(t)
	other := backend(t, s.Addr)
	b, requests, subscription := routed(t, s)
	l, err := dlock.New(b, &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c0, c1 := faulttest.Claim("d9", time.Minute), faulttest.Claim("d9", time.Minute)
	acquire(t, other, c0)
	leases := make(chan *dlock.Lease, 1)
	go func() {
		x, err := dlock.Acquire(t.Context(), l, "d9")
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		leases <- x
	}()
	faulttest.Eventually(t, 5*time.Second, "it waits", func() bool { return s.waiting(t, "d9") == 1 })
	subscription.Set(faultproxy.Rules{HoldDown: true})
	requests.Set(faultproxy.Rules{HoldUp: true})
	release(t, other, c0)
	faulttest.Eventually(t, patience, "the hand-over has expired", func() bool { return s.value(t, "d9") == "" })
	g1 := acquire(t, other, c1)
	subscription.Heal()
	requests.Heal()
	faulttest.Eventually(t, 5*time.Second, "it waits again", func() bool { return s.waiting(t, "d9") == 1 })
	select {
	case x := <-leases:
		t.Fatalf("two have the lock: fences %d and %d", g1.Fence, x.Fence())
	default:
	}
	release(t, other, c1)
	if x := faulttest.Receive(t, "Acquire", leases); x == nil || x.Fence() <= g1.Fence || !x.Held() {
		t.Errorf("the waiter has %v, want a hold with a fence above %d", x, g1.Fence)
	}
}

// D9
func TestAWaiterThatWasStoppedWhenItWasGivenTheLockDoesNotHoldIt(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // it must be known to be alive when it is given the lock
	s := startServer(t)
	other := backend(t, s.Addr)
	c0, c1 := faulttest.Claim("d9", time.Minute), faulttest.Claim("d9", time.Minute)
	acquire(t, other, c0)
	c := faulttest.StartWaiter(t, "redis", dsn(s.Addr), "d9", ttl)
	c.Line(t, "waiting")
	faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.waiting(t, "d9") == 1 })
	c.Stop()
	release(t, other, c0)
	if s.value(t, "d9") == "" {
		t.Fatal("the lock was not handed over")
	}
	faulttest.Eventually(t, patience, "the hand-over has expired", func() bool { return s.value(t, "d9") == "" })
	g1 := acquire(t, other, c1)
	c.Continue()
	faulttest.Eventually(t, 5*time.Second, "it waits again", func() bool { return s.waiting(t, "d9") == 1 })
	release(t, other, c1)
	if fence, err := strconv.ParseUint(c.Line(t, "fence"), 10, 64); err != nil || fence <= g1.Fence {
		t.Errorf("the waiter holds with the fence %d (%v), but %d was given since", fence, err, g1.Fence)
	}
}

// TestALockThatOnlyDeadWaitersWantIsNotHeldByAnother has more of them than one request passes over.
func TestALockThatOnlyDeadWaitersWantIsNotHeldByAnother(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, dead := backend(t, s.Addr), backend(t, s.Addr)
	held := faulttest.Claim("k", time.Minute)
	acquire(t, holder, held)
	const many = 200
	for range many {
		wait(t.Context(), dead, faulttest.Claim("k", time.Minute))
	}
	faulttest.Eventually(t, 20*time.Second, "all of them wait", func() bool { return s.waiting(t, "k") == many })
	_ = dead.Close()
	faulttest.Eventually(t, 10*time.Second, "nobody listens for them", func() bool { return !strings.Contains(s.do(t, "client", "list", "type", "pubsub").(string), "\n") })
	s.do(t, "del", "k") // a release would pass over all of them
	if ok, err := locker(t, s.Addr, 10*time.Second).TryLock(t.Context(), "k"); !ok || err != nil {
		t.Errorf("TryLock of a lock that nobody holds = %v, %v; want true", ok, err)
	}
}
