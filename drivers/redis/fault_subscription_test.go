package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// settle is longer than a message is awaited that did not come, and than it takes to subscribe anew.
const settle = 800 * time.Millisecond

// replicated is a server with a replica.
func replicated(t *testing.T) *server {
	t.Helper()
	s := startServer(t, "--repl-diskless-sync-delay", "0")
	redistest.StartReplica(t, s.Server)
	return s
}

// D9
func TestAHandOverThatIsConfirmedLateHasTheFenceOfWhatConfirmedIt(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	s := replicated(t)
	other := backend(t, s.Addr)
	// begin has the lock handed over to a waiter whose next request arrives only after the hand-over has expired and another owner has the lock.
	begin := func(t *testing.T, key string) (got <-chan granted, cw, next driver.Claim, between driver.Grant, heal func()) {
		b, requests, subscription := routed(t, s, redisdriver.WithReplicas(1))
		held := faulttest.Claim(key, time.Minute)
		cw, next = faulttest.Claim(key, ttl), faulttest.Claim(key, time.Minute)
		acquire(t, other, held)
		told := make(chan struct{}, 100)
		got = waitTold(t.Context(), b, cw, func() { told <- struct{}{} })
		faulttest.Receive(t, "the reply that it is in the queue", told)
		if subscription.Open() != 1 {
			t.Fatalf("%d connections go the way of the subscription, want 1", subscription.Open())
		}
		requests.Set(faultproxy.Rules{HoldUp: true})
		release(t, other, held)
		if !strings.Contains(s.value(t, key), cw.Token) {
			t.Fatal("the lock was not handed over")
		}
		faulttest.Eventually(t, 10*time.Second, "the hand-over has expired", func() bool { return s.value(t, key) == "" })
		return got, cw, next, acquire(t, other, next), requests.Heal
	}
	t.Run("the lock is free again", func(t *testing.T) {
		got, cw, next, between, heal := begin(t, "d9-free")
		release(t, other, next)
		heal()
		g := within(t, 10*time.Second, "the lock", got)
		if g.grant.Fence <= between.Fence {
			t.Errorf("the waiter was given the fence %d, but %d was given since", g.grant.Fence, between.Fence)
		}
		if v := s.value(t, cw.Key); !strings.Contains(v, fmt.Sprintf("%s-%d ", cw.Token, g.grant.Fence)) {
			t.Errorf("the waiter was given the fence %d, and the server has %q", g.grant.Fence, v)
		}
		release(t, other, cw)
	})
	t.Run("another owner has the lock", func(t *testing.T) {
		got, cw, next, between, heal := begin(t, "d9-held")
		heal()
		faulttest.Eventually(t, 10*time.Second, "it waits again", func() bool { return s.waiting(t, cw.Key) == 1 })
		release(t, other, next)
		if g := within(t, 10*time.Second, "the lock", got); g.grant.Fence <= between.Fence {
			t.Errorf("the waiter was given the fence %d, but %d was given since", g.grant.Fence, between.Fence)
		}
		release(t, other, cw)
	})
}

// D9
func TestAWaiterThatWasStoppedGetsARisingFenceWithReplicasToo(t *testing.T) {
	t.Parallel()
	const ttl = 900 * time.Millisecond
	s := replicated(t)
	other := backend(t, s.Addr)
	c0, c1 := faulttest.Claim("d9", time.Minute), faulttest.Claim("d9", time.Minute)
	acquire(t, other, c0)
	c := faulttest.StartWaiter(t, "redis", dsn(s.Addr, "replicas=1"), "d9", ttl)
	c.Line(t, "waiting")
	faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.waiting(t, "d9") == 1 })
	c.Stop()
	release(t, other, c0)
	faulttest.Eventually(t, 5*time.Second, "the hand-over has expired", func() bool { return s.value(t, "d9") == "" })
	g1 := acquire(t, other, c1)
	release(t, other, c1)
	c.Continue()
	var fence uint64
	if _, err := fmt.Sscan(c.Line(t, "fence"), &fence); err != nil || fence <= g1.Fence {
		t.Errorf("the waiter holds with the fence %d (%v), but %d was given since", fence, err, g1.Fence)
	}
}

// blocked is a dialler that can be stopped.
type blocked struct {
	on     atomic.Bool
	refuse atomic.Int32  // so many dials fail before
	tried  chan struct{} // somebody dials
	end    chan struct{}
	resume func()
}

func newBlocked() *blocked {
	d := &blocked{tried: make(chan struct{}, 100), end: make(chan struct{})}
	d.resume = sync.OnceFunc(func() { close(d.end) })
	return d
}

// before is called before a dial.
func (d *blocked) before() error {
	switch {
	case !d.on.Load():
	case d.refuse.Add(-1) >= 0:
		return errRefused
	default:
		d.tried <- struct{}{}
		<-d.end
	}
	return nil
}

var errRefused = errors.New("no connection")

// doubtful is a backend with the message of a hand-over lost, so that it soon doubts its subscription. It cannot dial any more.
func doubtful(t *testing.T, s *server, prepare func(b *redisdriver.Backend)) (subscription *faultproxy.Proxy, dials *blocked) {
	t.Helper()
	dials = newBlocked()
	b, _, subscription := routedAfter(t, s, dials.before)
	t.Cleanup(dials.resume)
	prepare(b)
	holder := backend(t, s.Addr)
	c0, cw := faulttest.Claim("lost", time.Minute), faulttest.Claim("lost", 3*time.Second)
	acquire(t, holder, c0)
	told := make(chan struct{}, 100)
	got := waitTold(t.Context(), b, cw, func() { told <- struct{}{} })
	faulttest.Receive(t, "the reply that it is in the queue", told)
	subscription.Set(faultproxy.Rules{DropDown: true})
	release(t, holder, c0)
	faulttest.Eventually(t, 5*time.Second, "the message is lost", func() bool { return subscription.Dropped() > 0 })
	subscription.Heal()
	dials.on.Store(true) // there are connections enough for asking
	within(t, 10*time.Second, "the lock, by asking", got)
	release(t, holder, cw)
	return subscription, dials
}

// D5
func TestASubscriptionThatCannotBeMadeAnewKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	acquire(t, backend(t, s.Addr), faulttest.Claim("busy", time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var b *redisdriver.Backend
	var got <-chan granted
	subscription, dials := doubtful(t, s, func(made *redisdriver.Backend) {
		b, got = made, wait(ctx, made, faulttest.Claim("busy", time.Minute))
		faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.waiting(t, "busy") == 1 })
	})
	subscription.CutAll()
	faulttest.Receive(t, "an attempt to connect", dials.tried)
	time.Sleep(settle) // whatever is done about it has begun

	late := faulttest.Lateness(t)
	began := time.Now()
	cancel()
	if g := faulttest.Receive(t, "the end of Wait", got); !errors.Is(g.err, context.Canceled) || g.at.Sub(began) > 100*time.Millisecond+late() {
		t.Errorf("Wait returned %v after the end of its context: %v", g.at.Sub(began), g.err)
	}
	began = time.Now()
	closed := make(chan struct{})
	go func() {
		_ = b.Close()
		close(closed)
	}()
	faulttest.Receive(t, "the end of Close", closed)
	if took := time.Since(began); took > time.Second+late() {
		t.Errorf("Close took %v", took)
	}
}

// D5
func TestASubscriptionInDoubtIsKeptUntilThereIsAnother(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, second := backend(t, s.Addr), backend(t, s.Addr)
	held, c1, c2 := faulttest.Claim("d5", time.Minute), faulttest.Claim("d5", time.Minute), faulttest.Claim("d5", time.Minute)
	acquire(t, holder, held)
	var first, next <-chan granted
	subscription, dials := doubtful(t, s, func(b *redisdriver.Backend) {
		first = queued(t, s, b, c1)
		next = queued(t, s, second, c2)
	})
	faulttest.Receive(t, "an attempt to connect", dials.tried)
	release(t, holder, held)
	within(t, 10*time.Second, "the first in line has the lock", first)
	dials.resume()
	faulttest.Eventually(t, 10*time.Second, "the old subscription is closed when there is another", func() bool { return subscription.Open() == 0 })
	release(t, holder, c1)
	within(t, 10*time.Second, "the second in line has the lock", next)
	release(t, holder, c2)
}

// D5
func TestAWaitThatBeginsWhileTheSubscriptionIsMadeAnewDoesNotFail(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dials := newBlocked()
	b, _, subscription := routedAfter(t, s, dials.before)
	t.Cleanup(dials.resume)
	free := faulttest.Claim("d5-free", time.Minute)
	within(t, 10*time.Second, "a free lock", wait(t.Context(), b, free)) // opens the subscription
	dials.refuse.Store(1)                                                // the client library tries once more before it says that the connection broke
	dials.on.Store(true)
	subscription.CutAll()
	faulttest.Receive(t, "an attempt to connect", dials.tried)
	c := faulttest.Claim("d5", time.Minute)
	got := wait(t.Context(), b, c)
	select {
	case g := <-got:
		t.Errorf("Wait returned before there was a subscription: %v", g.err)
	case <-time.After(100 * time.Millisecond):
		dials.resume()
		within(t, 10*time.Second, "the lock", got)
	}
}

// subscribers are the ids of the connections that subscribe.
func (s *server) subscribers(t *testing.T) (ids []string) {
	t.Helper()
	for line := range strings.Lines(s.do(t, "client", "list", "type", "pubsub").(string)) {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	return ids
}

// D5
func TestANewSubscriptionIsNotBlamedForWhatTheOneBeforeLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder := backend(t, s.Addr)
	b, _, subscription := routed(t, s)
	c0, cw := faulttest.Claim("d5", time.Minute), faulttest.Claim("d5", time.Minute)
	acquire(t, holder, c0)
	told := make(chan struct{}, 100)
	got := waitTold(t.Context(), b, cw, func() { told <- struct{}{} })
	faulttest.Receive(t, "the reply that it is in the queue", told)
	subscription.Set(faultproxy.Rules{HoldDown: true})
	release(t, holder, c0)
	if !strings.Contains(s.value(t, "d5"), cw.Token) {
		t.Fatal("the lock was not handed over")
	}
	subscription.CutAll()
	within(t, 10*time.Second, "the lock, by asking when the subscription is made anew", got)
	var before []string
	faulttest.Eventually(t, 10*time.Second, "there is one subscription", func() bool {
		before = s.subscribers(t)
		return len(before) == 1
	})
	time.Sleep(settle)
	if after := s.subscribers(t); len(after) != 1 || after[0] != before[0] {
		t.Errorf("the subscription %v was replaced by %v", before, after)
	}
	release(t, holder, cw)
}

// D8
func TestALockThatAWaiterTakesItselfCostsNoSubscription(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(s *server, key string){
		"the holder expired": func(s *server, key string) {
			acquire(t, backend(t, s.Addr), faulttest.Claim(key, 200*time.Millisecond))
		},
		"the holder was a foreign one": func(s *server, key string) { s.do(t, "set", key, "foreign", "px", 200) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			b := backend(t, s.Addr)
			free := faulttest.Claim("free", time.Minute)
			within(t, 10*time.Second, "a free lock", wait(t.Context(), b, free)) // opens the subscription
			release(t, b, free)
			before := s.calls(t, "subscribe")
			for i := range 5 {
				c := faulttest.Claim(fmt.Sprint("d8-", i), 10*time.Second)
				hold(s, c.Key)
				within(t, 10*time.Second, "the lock of the holder that is gone", wait(t.Context(), b, c))
				release(t, b, c)
			}
			time.Sleep(settle)
			if n := s.calls(t, "subscribe") - before; n != 0 {
				t.Errorf("%d further subscriptions were made although all messages came", n)
			}
		})
	}
}
