package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// G8
func TestAfterABlackHoleEverythingIsAsBeforeWhateverTimeoutsTheClientHas(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]goredis.Options{
		"the defaults":          {},
		"no deadlines at all":   {ReadTimeout: -2, WriteTimeout: -2},
		"deadlines far away":    {ReadTimeout: time.Hour, WriteTimeout: time.Hour, PoolTimeout: time.Hour, DialTimeout: time.Hour},
		"no timeouts":           {ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: -1},
		"no deadlines of reads": {ReadTimeout: -2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			p := faultproxy.New(t, s.Addr)
			o.Addr = p.Addr
			client := goredis.NewClient(&o)
			t.Cleanup(func() { _ = client.Close() })
			l, err := dlock.New(redisdriver.New(client), &dlock.Config{DefaultTTL: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			holder := locker(t, s.Addr, 30*time.Second)
			held := faulttest.Hold(t, holder, "g8-waited-for")
			waiter := make(chan error, 1)
			go func() {
				err := l.Lock(t.Context(), "g8-waited-for")
				waiter <- err
			}()
			faulttest.Eventually(t, patience, "it waits", func() bool { return s.waiting(t, "g8-waited-for") == 1 })
			cycles(t, l, 20, 2*time.Second)
			p.BlackHole()
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
						ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
						_, _ = dlock.Acquire(ctx, l, fmt.Sprint("g8-", i))
						cancel()
					}
				})
			}
			wg.Wait()
			if err := held.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			slow := s.slowness(t)
			p.Heal()
			healed := time.Now()
			faulttest.Within(t, func() time.Duration { return 2*time.Second + 20*slow() }, "cycles are as fast as before", func() bool {
				return worst(t, l) < 50*time.Millisecond+2*slow() // behind what is stuck a cycle takes 100ms and more
			})
			t.Logf("as fast as before %v after healing", time.Since(healed))
			if err := faulttest.Receive(t, "the lock that was waited for", waiter); err != nil {
				t.Errorf("Lock = %v", err)
			}
			if took := time.Since(healed); took > 5*time.Second+20*slow() { // it asks every 2s, and gives a question up after 2s
				t.Errorf("the waiter has the free lock %v after healing", took)
			}
			t.Logf("the waiter has the lock %v after healing, %d connections are open", time.Since(healed), p.Open())
			// Four for requests, and one each for renewals and messages.
			faulttest.Within(t, func() time.Duration { return 3*time.Second + 20*slow() }, "no connection is stuck", func() bool { return p.Open() <= 6 })
		})
	}
}

// cycles locks and unlocks n times.
func cycles(t testing.TB, l dlock.Locker, n int, limit time.Duration) {
	t.Helper()
	for i := range n {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		if err := dlock.Do(ctx, l, fmt.Sprint("cycle", i), func(context.Context) error { return nil }); err != nil {
			t.Errorf("a cycle: %v", err)
		}
		cancel()
	}
}

// worst returns how long the slowest of 20 cycles takes.
func worst(t testing.TB, l dlock.Locker) (took time.Duration) {
	t.Helper()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		began := time.Now()
		_ = dlock.Do(ctx, l, fmt.Sprint("cycle", i), func(context.Context) error { return nil })
		took = max(took, time.Since(began))
		cancel()
	}
	return took
}

// TestWhatNobodyWantsAnyMoreIsNotSent has the handshake stall until long after the clean-up has ended.
func TestWhatNobodyWantsAnyMoreIsNotSent(t *testing.T) {
	t.Parallel()
	const ttl, keys = 500 * time.Millisecond, 64
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	l := locker(t, p.Addr, ttl)
	warm(t, l) // it knows the server
	p.Set(faultproxy.Rules{HoldDown: true})
	s.do(t, "client", "kill", "type", "normal", "skipme", "yes")
	began := time.Now()
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, _, err := dlock.TryAcquire(ctx, l, fmt.Sprint("late-", i)); err == nil {
				t.Errorf("Acquire %d has succeeded", i)
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Until(began.Add(2500 * time.Millisecond)))
	m := s.monitor(t)
	p.Heal()
	time.Sleep(300 * time.Millisecond)
	if n := m.count(`"SET"`, `late-`, `"NX"`, "lua"); n > 0 {
		t.Errorf("%d of %d keys were locked after their clean-up had ended, want none", n, keys)
	}
}

// G8
func TestAClientWithoutTimeoutsThatIsSharedDoesNotGetStuck(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	redistest.StartReplica(t, s.Server)
	p := faultproxy.New(t, s.Addr)
	client := goredis.NewClient(&goredis.Options{Addr: p.Addr, ReadTimeout: -2, WriteTimeout: -2, PoolSize: 4})
	t.Cleanup(func() { _ = client.Close() })
	l, err := dlock.New(redisdriver.New(client, redisdriver.WithReplicas(1)), &dlock.Config{DefaultTTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	cycles(t, l, 3, patience)
	p.BlackHole()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, _ = dlock.Acquire(ctx, l, fmt.Sprint("g8-", i))
		})
	}
	wg.Wait()
	slow := s.slowness(t)
	p.Heal()
	healed := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := l.Lock(ctx, "g8"); err != nil {
		t.Fatalf("Lock = %v", err)
	}
	if took := time.Since(healed); took > 3*time.Second+20*slow() {
		t.Errorf("Lock took %v after healing", took)
	}
}
