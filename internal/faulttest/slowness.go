package faulttest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Slowness measures, from now to the end of the test, how long a server takes to answer anybody, this machine's lateness included. ask is a question to it, on
// a connection of its own.
func Slowness(t testing.TB, ask func(context.Context)) func() time.Duration {
	t.Helper()
	late := Lateness(t)
	began := time.Now()
	var worst, asked atomic.Int64 // the latter counts from began; negative: nothing is under way
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			at := time.Since(began)
			asked.Store(int64(at))
			ask(ctx)
			worst.Store(max(worst.Load(), int64(time.Since(began)-at)))
			asked.Store(-1)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return func() time.Duration {
		var underWay time.Duration // looked at first, as its end moves it to worst
		if at := asked.Load(); at >= 0 {
			underWay = time.Since(began) - time.Duration(at)
		}
		return late() + max(underWay, time.Duration(worst.Load()))
	}
}
