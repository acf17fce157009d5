package bench

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
)

// bareLoop is one loop that renews all locks, 500 in a script.
var bareLoop = contender{name: "bare-loop", open: openBare}

// keeper holds many locks.
type keeper interface {
	keep(ctx context.Context, key string) error // acquires, and renews from then on
	lost() int
}

// runHeld holds n locks for d, after all of them were acquired.
func runHeld(n int, ttl, d time.Duration) func(*testing.B, *target, contender) {
	return func(b *testing.B, t *target, c contender) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		var wg sync.WaitGroup
		before := runtime.NumGoroutine()
		b.Cleanup(func() { t.admin.FlushAll(context.Background()) })
		k := newKeeper(ctx, b, t, c, ttl, &wg)
		b.Cleanup(func() { // before the clients are closed
			cancel()
			wg.Wait()
		})
		holdMany(ctx, b, k, n, c.name+"-")
		measureHeld(b, t, k, d, before, func() time.Duration { return t.cpu(b) })
	}
}

// holdMany acquires n locks, whose keys begin with prefix.
func holdMany(ctx context.Context, b *testing.B, k keeper, n int, prefix string) {
	var next atomic.Int64
	var makers sync.WaitGroup
	for range poolSize {
		makers.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := k.keep(ctx, prefix+keyNumber(int(i))); err != nil {
					b.Errorf("acquire: %v", err)
					return
				}
			}
		})
	}
	makers.Wait()
}

// measureHeld reports what it takes to hold the locks of k for d. There were before goroutines without them, and server is the CPU time of the server.
func measureHeld(b *testing.B, t *target, k keeper, d time.Duration, before int, server func() time.Duration) {
	runtime.GC()
	clientCPU, serverCPU, requests := ownCPU(), server(), t.requests.Load()
	time.Sleep(d)
	clientCPU, serverCPU, requests = ownCPU()-clientCPU, server()-serverCPU, t.requests.Load()-requests
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	b.ReportMetric(float64(runtime.NumGoroutine()-before), "goroutines")
	b.ReportMetric(clientCPU.Seconds(), "client-cpu-s")
	b.ReportMetric(serverCPU.Seconds(), "server-cpu-s")
	b.ReportMetric((clientCPU + serverCPU).Seconds(), "cpu-s")
	b.ReportMetric(float64(requests)/d.Seconds(), "requests/s")
	b.ReportMetric(float64(mem.HeapInuse+mem.StackInuse)/(1<<20), "MB")
	b.ReportMetric(float64(k.lost()), "lost")
}

// newKeeper opens a client that holds many locks. What it starts ends with ctx, and is counted by wg.
func newKeeper(ctx context.Context, b *testing.B, t *target, c contender, ttl time.Duration, wg *sync.WaitGroup) keeper {
	opened := c.clients(b, t, 1, ttl)[0]
	switch opened := opened.(type) {
	case *bareClient:
		k := &loopKeeper{c: opened.c, ttl: ttl, tokens: map[string]string{}}
		wg.Go(func() { k.run(ctx) })
		return k
	case *redislockClient:
		return &redislockKeeper{c: opened, wg: wg}
	case *rueidislockClient:
		return &rueidislockKeeper{c: opened}
	case *dlockClient:
		return &dlockKeeper{c: opened}
	default:
		b.Fatalf("%s cannot keep locks", c.name)
		return nil
	}
}

// loopKeeper is the least that renewing takes.
type loopKeeper struct {
	c   *redis.Client
	ttl time.Duration
	bad atomic.Int64

	mu     sync.Mutex
	tokens map[string]string
}

var renewMany = redis.NewScript(`local lost = 0
for i, k in ipairs(KEYS) do
  if redis.call('GET', k) == ARGV[i + 1] then redis.call('PEXPIRE', k, ARGV[1]) else lost = lost + 1 end
end
return lost`)

func (k *loopKeeper) keep(ctx context.Context, key string) error {
	value := token()
	if err := k.c.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: k.ttl}).Err(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tokens[key] = value
	return nil
}

func (k *loopKeeper) run(ctx context.Context) {
	ticker := time.NewTicker(k.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		keys, args := []string{}, []any{k.ttl.Milliseconds()}
		send := func() {
			if len(keys) > 0 {
				n, _ := renewMany.Run(ctx, k.c, keys, args...).Int64()
				k.bad.Add(n)
			}
			keys, args = keys[:0], args[:1]
		}
		k.mu.Lock()
		for key, value := range k.tokens {
			if keys, args = append(keys, key), append(args, value); len(keys) == 500 {
				send()
			}
		}
		k.mu.Unlock()
		send()
	}
}

func (k *loopKeeper) lost() int { return int(k.bad.Load()) }

// redislockKeeper is what its users write: a goroutine for each lock.
type redislockKeeper struct {
	c   *redislockClient
	wg  *sync.WaitGroup
	bad atomic.Int64
}

func (k *redislockKeeper) keep(ctx context.Context, key string) error {
	l, err := k.c.l.Obtain(ctx, key, k.c.ttl, &redislock.Options{})
	if err != nil {
		return err
	}
	k.wg.Go(func() {
		ticker := time.NewTicker(k.c.ttl / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := l.Refresh(ctx, k.c.ttl, nil); err != nil && ctx.Err() == nil {
				k.bad.Add(1)
				return
			}
		}
	})
	return nil
}

func (k *redislockKeeper) lost() int { return int(k.bad.Load()) }

type rueidislockKeeper struct {
	c *rueidislockClient

	mu   sync.Mutex
	held []context.Context
}

func (k *rueidislockKeeper) keep(ctx context.Context, key string) error {
	held, _, err := k.c.l.WithContext(ctx, key)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, held)
	return nil
}

func (k *rueidislockKeeper) lost() (n int) {
	for _, ctx := range k.held {
		if ctx.Err() != nil {
			n++
		}
	}
	return n
}

type dlockKeeper struct {
	c *dlockClient

	mu   sync.Mutex
	held []*dlock.Lease
}

func (k *dlockKeeper) keep(ctx context.Context, key string) error {
	lease, err := dlock.Acquire(ctx, k.c.l, key)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, lease)
	return nil
}

func (k *dlockKeeper) lost() (n int) {
	for _, lease := range k.held {
		if !lease.Held() {
			n++
		}
	}
	return n
}
