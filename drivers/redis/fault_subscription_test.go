package redis_test

import (
	"fmt"
	"strings"
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
		got = wait(driver.WithQueued(t.Context(), func() { told <- struct{}{} }), b, cw)
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
