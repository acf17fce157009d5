package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// vanished puts waiters into the queue for whom nobody listens: processes that have just died.
func (s *server) vanished(t testing.TB, key string, n int) {
	t.Helper()
	now := time.Now().UnixMicro()
	pipe := s.admin.Pipeline()
	for i := range n {
		token := fmt.Sprintf("%032x", i+1)
		pipe.RPush(t.Context(), companion(key, "q"), token)
		pipe.HSet(t.Context(), companion(key, "w"), token, fmt.Sprintf("%d 30000 dlock:nobody dead", now))
	}
	pipe.PExpire(t.Context(), companion(key, "q"), time.Minute)
	pipe.PExpire(t.Context(), companion(key, "w"), time.Minute)
	pipe.Set(t.Context(), companion(key, "f"), fmt.Sprint("w", now), time.Minute)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// G5
func TestAFreeLockBehindVanishedWaitersIsHadAtOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{130, 400, 1000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			s := startServer(t)
			l := locker(t, s.Addr, 10*time.Second)
			if err := l.Lock(t.Context(), "warm"); err != nil {
				t.Fatal(err)
			}
			slow := s.slowness(t)
			s.vanished(t, "g5", n)
			before, began := s.calls(t, "evalsha"), time.Now()
			if err := l.Lock(limited(t, time.Minute), "g5"); err != nil {
				t.Fatal(err)
			}
			took, asked := time.Since(began), s.calls(t, "evalsha")-before
			t.Logf("%d vanished waiters: %v", n, took)
			if took > 100*time.Millisecond+time.Duration(asked)*slow() {
				t.Errorf("it took %v, want at most 100ms", took)
			}
			if asked > n/64+3 {
				t.Errorf("it took %d requests, want at most %d", asked, n/64+3)
			}
			if n := s.waiting(t, "g5"); n != 0 {
				t.Errorf("%d are left in the queue", n)
			}
		})
	}
}

// G5
func TestAReleaseGoesOnUntilSomebodyIsFoundAlive(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, b := backend(t, s.Addr), backend(t, s.Addr)
	for name, free := range map[string]func(c driver.Claim, g driver.Grant) error{
		"release": func(c driver.Claim, _ driver.Grant) error { return holder.Release(t.Context(), c) },
		"break":   func(c driver.Claim, g driver.Grant) error { return holder.Break(t.Context(), c.Key, g.Fence) },
	} {
		t.Run(name, func(t *testing.T) {
			slow := s.slowness(t)
			c, w := faulttest.Claim(name, 30*time.Second), faulttest.Claim(name, 30*time.Second)
			g := acquire(t, holder, c)
			s.vanished(t, name, 1000)
			got := queued(t, s, b, w)
			began := time.Now()
			if err := free(c, g); err != nil {
				t.Fatal(err)
			}
			took := within(t, patience, "the lock", got).at.Sub(began)
			t.Logf("behind 1000 vanished waiters: %v", took)
			if took > 100*time.Millisecond+1000/64*slow() {
				t.Errorf("it took %v, want at most 100ms", took)
			}
			release(t, b, w)
		})
	}
}

// lateEnqueue is a request of a waiter to enter the queue that was long in the network.
func (s *server) lateEnqueue(t testing.TB, b *redisdriver.Backend, c driver.Claim) {
	t.Helper()
	ttl := c.TTL.Milliseconds()
	err := s.admin.Eval(t.Context(), redisdriver.AcquireScript(), []string{c.Key}, "d:"+c.Token, c.Owner, ttl, ttl+301_000, redisdriver.Channel(b)).Err()
	if err != nil {
		t.Fatal(err)
	}
}

// G6
func TestAnEnqueueThatArrivesAfterItsCleanUpIsWithdrawn(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	s := startServer(t)
	holder, b, other := backend(t, s.Addr), backend(t, s.Addr), backend(t, s.Addr)
	held, orphan, next := faulttest.Claim("g6", time.Minute), faulttest.Claim("g6", ttl), faulttest.Claim("g6", ttl)
	acquire(t, holder, held)
	ctx, cancel := context.WithCancel(t.Context())
	gone := wait(ctx, b, orphan)
	faulttest.Eventually(t, patience, "it waits", func() bool { return s.waiting(t, "g6") == 1 })
	cancel()
	<-gone
	release(t, b, orphan)

	slow := s.slowness(t)
	s.lateEnqueue(t, b, orphan)
	got := queued(t, s, other, next)
	began := time.Now()
	release(t, holder, held)
	took := within(t, patience, "the lock", got).at.Sub(began)
	t.Logf("the next one waits for %v", took)
	if took > 200*time.Millisecond+slow() {
		t.Errorf("the next one had the lock after %v, want at once", took)
	}
	release(t, other, next)
	if n := s.do(t, "exists", "g6", companion("g6", "q"), companion("g6", "w")); n != int64(0) {
		t.Errorf("%v keys are left", n)
	}
}

// G6
func TestATokenBetweenTwoAttemptsIsNotWithdrawn(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	s := startServer(t)
	holder, b := backend(t, s.Addr), backend(t, s.Addr)
	held, c := faulttest.Claim("g6", time.Minute), faulttest.Claim("g6", ttl)
	acquire(t, holder, held)
	ctx, cancel := context.WithCancel(t.Context())
	gone := wait(ctx, b, c)
	faulttest.Eventually(t, patience, "it waits", func() bool { return s.waiting(t, "g6") == 1 })
	cancel()
	<-gone // with an error, after which the engine may call Wait again
	published := s.calls(t, "publish")
	release(t, holder, held)
	if s.calls(t, "publish") == published {
		t.Fatal("no message was sent")
	}
	// The message has come when a later one on the same channel has.
	free, other := faulttest.Claim("other", ttl), faulttest.Claim("other", ttl)
	acquire(t, holder, free)
	got := queued(t, s, b, other)
	release(t, holder, free)
	within(t, patience, "the other lock", got)
	if v := s.value(t, "g6"); !strings.Contains(v, c.Token) {
		t.Errorf("the lock has %q, want the token that is between two attempts", v)
	}
	within(t, patience, "the lock", wait(t.Context(), b, c))
	release(t, b, c)
}

// G6
func TestAnOrphanIsNotWithdrawnAfterClose(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, b := backend(t, s.Addr), backend(t, s.Addr)
	held, c := faulttest.Claim("g6", time.Minute), faulttest.Claim("g6", 20*time.Second)
	acquire(t, holder, held)
	ctx, cancel := context.WithCancel(t.Context())
	gone := wait(ctx, b, c)
	faulttest.Eventually(t, patience, "it waits", func() bool { return s.waiting(t, "g6") == 1 })
	cancel()
	<-gone
	release(t, b, c)
	s.lateEnqueue(t, b, c)
	before := s.calls(t, "evalsha")
	s.Stop()
	released := make(chan error, 1)
	go func() { released <- holder.Release(t.Context(), held) }() // the message comes when the server goes on
	closed := make(chan struct{})
	go func() {
		_ = b.Close()
		close(closed)
	}()
	faulttest.Receive(t, "Close", closed)
	s.Continue()
	if err := faulttest.Receive(t, "the release", released); err != nil {
		t.Fatal(err)
	}
	if n := s.calls(t, "evalsha") - before; n != 1 {
		t.Errorf("%d requests since Close, want the release alone", n)
	}
}
