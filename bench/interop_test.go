package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
)

// foreigners lock plain keys with values of their own. What they do not wait for, they try.
var foreigners = []struct {
	contender
	try func(ctx context.Context, c *redis.Client, key string) (unlock func() error, ok bool, err error)
}{
	{redislock5, func(ctx context.Context, c *redis.Client, key string) (func() error, bool, error) {
		l, err := redislock.Obtain(ctx, c, key, defaultTTL, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil, false, nil
		}
		return func() error { return l.Release(ctx) }, err == nil, err
	}},
	{redsync5, func(ctx context.Context, c *redis.Client, key string) (func() error, bool, error) {
		m := redsync.New(redsyncredis.NewPool(c)).NewMutex(key, redsync.WithTries(1), redsync.WithExpiry(defaultTTL))
		err := m.TryLockContext(ctx)
		if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
			return nil, false, nil
		}
		return func() error { _, err := m.UnlockContext(ctx); return err }, err == nil, err
	}},
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestForeignHoldExcludesDlock(t *testing.T) {
	t.Parallel()
	server := newTarget(t)
	for _, f := range foreigners {
		t.Run(f.name, func(t *testing.T) {
			ctx := limited(t)
			key := "held-by-" + f.name
			unlock, ok, err := f.try(ctx, server.admin, key)
			if !ok || err != nil {
				t.Fatalf("%s: %v, %v; want a free key locked", f.name, ok, err)
			}
			value := server.admin.Get(ctx, key).Val()
			l := openDlock(t, server, defaultTTL).(*dlockClient)
			t.Cleanup(l.close)
			if ok, err := l.l.TryLock(ctx, key); ok || err != nil {
				t.Errorf("TryLock = %v, %v; want false", ok, err)
			}
			got := make(chan error, 1)
			go func() { got <- l.l.Lock(ctx, key) }()
			time.Sleep(200 * time.Millisecond) // it has asked more than once by then
			select {
			case err := <-got:
				t.Fatalf("Lock = %v while another has the key", err)
			default:
			}
			if after := server.admin.Get(ctx, key).Val(); after != value {
				t.Errorf("the foreign value was %q and is %q, want it as it was", value, after)
			}
			released := time.Now()
			if err := unlock(); err != nil {
				t.Errorf("%s could not unlock: %v", f.name, err)
			}
			if err := <-got; err != nil {
				t.Errorf("Lock = %v after the key was released", err)
			}
			t.Logf("%v from the foreign release to the grant", time.Since(released).Round(time.Millisecond))
		})
	}
}

func TestHoldOfDlockExcludesForeigners(t *testing.T) {
	t.Parallel()
	server := newTarget(t)
	l := openDlock(t, server, 6*time.Second).(*dlockClient)
	t.Cleanup(l.close)
	for _, f := range foreigners {
		t.Run(f.name, func(t *testing.T) {
			ctx := limited(t)
			key := "wanted-by-" + f.name
			lease, err := dlock.Acquire(ctx, l.l, key)
			if err != nil {
				t.Fatal(err)
			}
			for until := lease.ValidUntil(); !lease.ValidUntil().After(until); time.Sleep(20 * time.Millisecond) { // over a renewal
				if _, ok, err := f.try(ctx, server.admin, key); ok || err != nil {
					t.Fatalf("%s: %v, %v; want the key refused", f.name, ok, err)
				}
			}
			if err := lease.Unlock(ctx); err != nil {
				t.Errorf("Unlock = %v", err)
			}
			unlock, ok, err := f.try(ctx, server.admin, key)
			if !ok || err != nil {
				t.Fatalf("%s: %v, %v; want the free key locked", f.name, ok, err)
			}
			if err := unlock(); err != nil {
				t.Error(err)
			}
		})
	}
}

// exclusion has every client lock key a number of times, on a goroutine of its own, and returns the number of holds and the greatest number at one time.
func exclusion(t *testing.T, key string, times int, clients ...client) (holds, worst int) {
	t.Helper()
	ctx := limited(t)
	var inside, most, total atomic.Int64
	unguarded := 0 // the race detector watches it
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for range times {
				unlock, err := c.lock(ctx, key)
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				n := inside.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				unguarded++
				time.Sleep(100 * time.Microsecond)
				inside.Add(-1)
				total.Add(1)
				if err := unlock(); err != nil {
					t.Errorf("unlock: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if int64(unguarded) != total.Load() {
		t.Errorf("of %d steps of an unguarded counter %d are left", total.Load(), unguarded)
	}
	return int(total.Load()), int(most.Load())
}

func TestMixedContentionExcludes(t *testing.T) {
	t.Parallel()
	server := newTarget(t)
	const each, times = 6, 20
	for _, f := range foreigners {
		t.Run(f.name, func(t *testing.T) {
			var clients []client
			clients = append(clients, f.clients(t, server, each, defaultTTL)...)
			clients = append(clients, ours.clients(t, server, each, defaultTTL)...)
			holds, worst := exclusion(t, "mixed-"+f.name, times, clients...)
			if worst != 1 || holds != 2*each*times {
				t.Errorf("%d holds, of which %d at the same time; want %d and 1", holds, worst, 2*each*times)
			}
		})
	}
}

// TestForeignValuesAreNeverWrittenTo lets dlock do everything it can to a key that it does not understand.
func TestForeignValuesAreNeverWrittenTo(t *testing.T) {
	t.Parallel()
	server := newTarget(t)
	ctx := limited(t)
	const t1, t2 = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	for i, value := range []string{
		"", "x", t1, "d:", "d:" + t1, "d:" + t1 + "-", "d:" + t1 + "?17 owner", "d:" + t1 + "-owner", "D:" + t1 + "-17 owner",
		"redislock-22-characters", "\x00\r\n$5",
	} {
		for _, expires := range []bool{false, true} {
			key := fmt.Sprintf("foreign-%d-%v", i, expires)
			var ttl time.Duration
			if expires {
				ttl = time.Hour
			}
			if err := server.admin.Set(ctx, key, value, ttl).Err(); err != nil {
				t.Fatal(err)
			}
			before := server.admin.PTTL(ctx, key).Val()
			meddle(ctx, t, server, driver.Claim{Key: key, Token: t2, Owner: "me", TTL: 5 * time.Second})
			after := server.admin.PTTL(ctx, key).Val()
			if got, err := server.admin.Get(ctx, key).Result(); err != nil || got != value {
				t.Errorf("the foreign value was %q and is %q, %v", value, got, err)
			}
			if after > before || before-after > time.Minute {
				t.Errorf("the foreign value %q had %v left and has %v", value, before, after)
			}
		}
	}
}

// meddle makes every call that could change a lock. None of them may succeed.
func meddle(ctx context.Context, t *testing.T, server *target, c driver.Claim) {
	t.Helper()
	b := redisdriver.New(server.admin).(*redisdriver.Backend)
	defer func() { _ = b.Close() }()
	if _, err := b.Acquire(ctx, c); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire = %v, want ErrHeld", err)
	}
	if _, err := b.Renew(ctx, c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Renew = %v, want ErrNotOwner", err)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := b.Wait(waiting, c, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v, want it to wait", err)
	}
	if err := b.Release(ctx, c); err != nil {
		t.Errorf("Release of a place in the queue = %v", err)
	}
	if err := b.Release(ctx, c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release = %v, want ErrNotOwner", err)
	}
	for _, fence := range []uint64{0, 17} {
		if err := b.Break(ctx, c.Key, fence); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Break = %v, want ErrNotOwner", err)
		}
	}
}
