package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// scenario is something that is measured, and those whom it is measured of.
type scenario struct {
	name       string
	contenders []contender
	run        func(b *testing.B, t *target, c contender)
	main       string // the metric that ratios are made of
}

var scenarios = []scenario{
	{"A", slices.Concat([]contender{bare, barePiped}, peers, []contender{ours}), runA, "ops/s"},
	{"B", slices.Concat([]contender{bare, barePiped}, peers, []contender{ours}), runB, "ops/s"},
	{"C0", slices.Concat([]contender{bare, bareToken}, peers, []contender{ours}), runC(0), "ops/s"},
	{"C1", slices.Concat([]contender{bare, bareToken}, peers, []contender{ours}), runC(time.Millisecond), "ops/s"},
	{"Idle", slices.Concat([]contender{bare, bareToken}, peers, []contender{ours}), runIdle, "requests/s/waiter"},
	{"D", slices.Concat([]contender{bare, bareToken}, peers, []contender{ours}), runD, "p50-ms"},
	{"E", slices.Concat([]contender{bare, bareToken}, peers, []contender{ours}), runE, "ops/s"},
	{"G", slices.Concat([]contender{bare}, peers, []contender{ours}), runG, "beyond-ttl-ms"},
	{"Held10k", []contender{bareLoop, redislock5, rueidisDefault, ours}, runHeld(10_000, 3*time.Second, 10*time.Second), "cpu-s"},
}

func BenchmarkA(b *testing.B)       { benchmark(b, "A") }
func BenchmarkB(b *testing.B)       { benchmark(b, "B") }
func BenchmarkC0(b *testing.B)      { benchmark(b, "C0") }
func BenchmarkC1(b *testing.B)      { benchmark(b, "C1") }
func BenchmarkIdle(b *testing.B)    { benchmark(b, "Idle") }
func BenchmarkD(b *testing.B)       { benchmark(b, "D") }
func BenchmarkE(b *testing.B)       { benchmark(b, "E") }
func BenchmarkG(b *testing.B)       { benchmark(b, "G") }
func BenchmarkHeld10k(b *testing.B) { benchmark(b, "Held10k") }

func benchmark(b *testing.B, name string) {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	t := newTarget(b)
	for _, c := range scenarios[i].contenders {
		b.Run(c.name, func(b *testing.B) { scenarios[i].run(b, t, c) })
	}
}

// patience is how long a contender may take for one run: some lose a wake-up now and then, and would wait for ever.
const patience = time.Minute

// cycle locks and unlocks once, and returns how long it took to get the lock.
func cycle(ctx context.Context, b *testing.B, c client, key string, inside time.Duration) time.Duration {
	began := time.Now()
	unlock, err := c.lock(ctx, key)
	if err != nil {
		b.Errorf("lock: %v", err)
		return 0
	}
	waited := time.Since(began)
	if inside > 0 {
		time.Sleep(inside)
	}
	if err := unlock(); err != nil {
		b.Errorf("unlock: %v", err)
	}
	return waited
}

// runA is one goroutine that locks and unlocks a key that nobody else wants.
func runA(b *testing.B, t *target, c contender) { crowd(b, t, c, 1, 1, distinct, 0) }

// runB is 64 goroutines of one client with a key each.
func runB(b *testing.B, t *target, c contender) { crowd(b, t, c, 64, 1, distinct, 0) }

// runC is 32 clients that all want one key.
func runC(inside time.Duration) func(*testing.B, *target, contender) {
	return func(b *testing.B, t *target, c contender) { crowd(b, t, c, 32, 32, common, inside) }
}

// runE is 64 goroutines of one client that all want one key.
func runE(b *testing.B, t *target, c contender) { crowd(b, t, c, 64, 1, common, 0) }

const (
	distinct = false
	common   = true
)

// crowd has n goroutines share b.N cycles.
func crowd(b *testing.B, t *target, c contender, n, clients int, oneKey bool, inside time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list := c.clients(b, t, clients, defaultTTL)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = c.name + "-" + keyNumber(i)
		if oneKey {
			keys[i] = c.name + "-common"
		}
		c.prepare(t, keys[i])
	}
	var wg sync.WaitGroup
	for i := range n { // connect, and make the scripts known
		wg.Go(func() { cycle(ctx, b, list[i%clients], keys[i], 0) })
	}
	wg.Wait()
	counts := make([]int, n)
	waits := make([][]time.Duration, n)
	var left atomic.Int64
	left.Store(int64(b.N))
	before, client, server := t.requests.Load(), ownCPU(), t.cpu(b)
	b.ResetTimer()
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 && !b.Failed() {
				waits[i] = append(waits[i], cycle(ctx, b, list[i%clients], keys[i], inside))
				counts[i]++
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	b.StopTimer()
	client, server = ownCPU()-client, t.cpu(b)-server
	all := slices.Sorted(slices.Values(slices.Concat(waits...)))
	b.ReportMetric(float64(len(all))/took.Seconds(), "ops/s")
	b.ReportMetric(float64(t.requests.Load()-before)/float64(len(all)), "requests/op")
	b.ReportMetric(millis(percentile(all, 0.99)), "p99-wait-ms")
	b.ReportMetric(float64(client.Microseconds())/float64(len(all)), "client-µs/op")
	b.ReportMetric(float64(server.Microseconds())/float64(len(all)), "server-µs/op")
	if n > 1 {
		b.ReportMetric(jain(counts), "jain")
	}
}

// runIdle counts the requests of 32 clients that wait for a key which another one holds.
func runIdle(b *testing.B, t *target, c contender) {
	const waiters, settle, window = 32, 2500 * time.Millisecond, 4 * time.Second // by then everybody has asked again, and the server knows the scripts
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list := c.clients(b, t, waiters+1, defaultTTL)
	key := c.name + "-idle"
	c.prepare(t, key)
	unlock, err := list[waiters].lock(ctx, key)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, l := range list[:waiters] {
		wg.Go(func() {
			if done, err := l.lock(ctx, key); err == nil {
				_ = done()
			}
		})
	}
	time.Sleep(settle)
	before := t.requests.Load()
	time.Sleep(window)
	n := t.requests.Load() - before
	_ = unlock()
	wg.Wait()
	b.ReportMetric(float64(n)/window.Seconds()/waiters, "requests/s/waiter")
}

// runD hands over a lock that is held until others wait for it, at any phase of their polling.
func runD(b *testing.B, t *target, c contender) {
	handOver(b, t, c, 20*time.Millisecond, 30*time.Millisecond)
}

// handOver measures from the call of unlock until another client's lock has returned, of a lock that is held for least to most.
func handOver(b *testing.B, t *target, c contender, least, most time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list := c.clients(b, t, 2, defaultTTL)
	key := c.name + "-handover"
	c.prepare(t, key)
	unlock, err := list[0].lock(ctx, key)
	if err != nil {
		b.Fatal(err)
	}
	var all []time.Duration
	for i := range b.N {
		next := lockLater(ctx, list[(i+1)%2], key)
		time.Sleep(least + rand.N(most-least))
		released := time.Now()
		if err := unlock(); err != nil {
			b.Fatal(err)
		}
		g := <-next
		if g.err != nil {
			b.Fatal(g.err)
		}
		all = append(all, g.at.Sub(released))
		unlock = g.unlock
	}
	_ = unlock()
	slices.Sort(all)
	b.ReportMetric(millis(percentile(all, 0.5)), "p50-ms")
	b.ReportMetric(millis(percentile(all, 0.99)), "p99-ms")
}

// locked is what came of a lock.
type locked struct {
	unlock func() error
	at     time.Time
	err    error
}

func lockLater(ctx context.Context, c client, key string) <-chan locked {
	ch := make(chan locked, 1)
	go func() {
		unlock, err := c.lock(ctx, key)
		ch <- locked{unlock, time.Now(), err}
	}()
	return ch
}
