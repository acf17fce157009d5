package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestWaitOfAFreeKeyIsAnAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		g := wait(t, b, claim("a")).granted(t)
		if g.TTL != ttl || !g.Start.Equal(time.Now()) || g.Fence == 0 {
			t.Errorf("Wait = %+v, want the TTL, a fence, and Start as it is", g)
		}
		time.Sleep(ttl / 2)
		again := wait(t, b, claim("a")).granted(t)
		if again.Fence != g.Fence || again.TTL != ttl || !again.Start.Equal(time.Now()) {
			t.Errorf("Wait by the holder = %+v, want fence %d and the TTL counted anew", again, g.Fence)
		}
		time.Sleep(ttl - 1)
		refuseAcquire(t, b, claim("b"))
	})
}

func TestReleaseHandsTheLockToTheFirstInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		first := acquire(t, b, claim("a"))
		w := wait(t, b, withTTL(claim("b"), 3*ttl))
		time.Sleep(ttl / 2)
		w.waits(t)
		release(t, b, claim("a"))
		refuseAcquire(t, b, claim("c"))
		g := w.granted(t)
		if g.Fence <= first.Fence || g.TTL != 3*ttl || !g.Start.Equal(time.Now()) {
			t.Errorf("Wait = %+v, want a higher fence than %d, TTL %v and Start at the hand-over, %v", g, first.Fence, 3*ttl, time.Now())
		}
		time.Sleep(3*ttl - 1)
		refuseAcquire(t, b, claim("c"))
		time.Sleep(time.Nanosecond)
		acquire(t, b, claim("c"))
	})
}

// In real time: a bubble's clock has no monotonic reading.
func TestStartOfAHandOverHasAMonotonicReading(t *testing.T) {
	b := memory.New()
	acquire(t, b, claim("a"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	grants := make(chan driver.Grant, 1)
	go func() {
		g, _ := b.Wait(ctx, claim("b"), func() {})
		grants <- g
	}()
	for queued := false; !queued; {
		info, err := b.Inspect(ctx, "k")
		if err != nil {
			t.Fatalf("Wait does not queue: %v", err)
		}
		queued = len(info.Waiters) == 1
	}
	before := time.Now()
	release(t, b, claim("a"))
	g := <-grants
	if !strings.Contains(g.Start.String(), "m=") || g.Start.Before(before) {
		t.Errorf("Start = %v, want a monotonic reading no earlier than %v", g.Start, before)
	}
}

func TestGrantsFollowTheOrderOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := open(t, "memory://fifo"), open(t, "memory://fifo")
		last := acquire(t, b, claim("holder")).Fence
		var calls []*call
		for i := range 20 {
			calls = append(calls, wait(t, []*memory.Backend{b, c}[i%2], claim(fmt.Sprint(i))))
		}
		release(t, b, claim("holder"))
		for i, w := range calls {
			g := w.granted(t)
			if g.Fence <= last {
				t.Errorf("grant %d has fence %d after %d, want it to rise", i, g.Fence, last)
			}
			last = g.Fence
			for _, later := range calls[i+1:] {
				later.waits(t)
			}
			time.Sleep(time.Second)
			release(t, b, claim(fmt.Sprint(i)))
		}
	})
}

func TestAcquireDoesNotOvertakeTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		abandon(t, b, claim("b"))
		w := wait(t, b, claim("c"))
		time.Sleep(ttl)
		refuseAcquire(t, b, claim("d"))
		release(t, b, claim("b"))
		refuseAcquire(t, b, claim("d"))
		w.granted(t)
		release(t, b, claim("c"))
		acquire(t, b, claim("d"))
	})
}

func TestAQueuedTokenThatAcquiresLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		abandon(t, b, claim("b"))
		refuseAcquire(t, b, claim("b"))
		time.Sleep(ttl + time.Second)
		g := acquire(t, b, claim("b"))
		info, err := b.Inspect(t.Context(), "k")
		if err != nil || info.Owner != "b" || info.Fence != g.Fence || info.TTL != ttl || info.Waiters != nil {
			t.Errorf("Inspect = %+v, %v; want b to hold it for the full TTL, and nobody to wait", info, err)
		}
		release(t, b, claim("b"))
		if got := memory.Keys(b); got != 0 {
			t.Errorf("the store has %d keys, want 0", got)
		}
	})
}

func TestACancelledWaitSaysThatItWasQueuedAndStaysInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		queued := false
		_, err := b.Wait(ctx, claim("b"), func() { queued = true })
		if !errors.Is(err, context.DeadlineExceeded) || !queued {
			t.Errorf("Wait = %v, queued %v; want ctx's error and true", err, queued)
		}
		refuteToken(t, err.Error())
		if took := time.Since(start); took != time.Second {
			t.Errorf("Wait returned after %v, want 1s", took)
		}
		info, _ := b.Inspect(t.Context(), "k")
		if got := fmt.Sprint(info.Waiters); got != "[b]" {
			t.Errorf("the queue is %s, want [b]", got)
		}
		release(t, b, claim("b"))
		if info, _ = b.Inspect(t.Context(), "k"); info.Waiters != nil || info.Owner != "a" {
			t.Errorf("after Release the lock is %+v, want a to hold it and nobody to wait", info)
		}
	})
}

func TestReleaseAfterACancelledWaitPassesOnWhatItWasGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		abandon(t, b, claim("b"))
		w := wait(t, b, claim("c"))
		release(t, b, claim("a"))
		w.waits(t)
		release(t, b, claim("b"))
		w.granted(t)
	})
}

func TestALockHandedToACancelledWaiterExpiresAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		abandon(t, b, withTTL(claim("b"), 2*ttl))
		w := wait(t, b, claim("c"))
		release(t, b, claim("a"))
		start := time.Now()
		time.Sleep(2*ttl - 1)
		w.waits(t)
		time.Sleep(time.Nanosecond)
		if g := w.granted(t); !g.Start.Equal(start.Add(2 * ttl)) {
			t.Errorf("Start = %v, want the end of the cancelled waiter's hold, %v", g.Start, start.Add(2*ttl))
		}
	})
}

func TestWhatIsDueAtAnExpiryHappensThenThoughNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		abandon(t, b, claim("b"))
		abandon(t, b, claim("c"))
		start := time.Now()
		time.Sleep(2*ttl + time.Second)
		info, _ := b.Inspect(t.Context(), "k")
		if info.Owner != "c" || !info.Since.Equal(start.Add(2*ttl)) || info.TTL != ttl-time.Second {
			t.Errorf("after a and b expired the lock is %+v, want c to hold it since %v", info, start.Add(2*ttl))
		}
		time.Sleep(ttl - time.Second)
		acquire(t, b, claim("d"))
	})
}

func TestASecondWaitKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		abandon(t, b, claim("b"))
		c := wait(t, b, claim("c"))
		again := wait(t, b, withTTL(claim("b"), 2*ttl))
		release(t, b, claim("a"))
		if g := again.granted(t); g.TTL != 2*ttl {
			t.Errorf("Wait = %+v, want the TTL of the latest call, %v", g, 2*ttl)
		}
		c.waits(t)
		release(t, b, claim("b"))
		c.granted(t)
	})
}

func TestTwoWaitsOfOneTokenGetTheSameGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		w1, w2 := wait(t, b, claim("b")), wait(t, b, claim("b"))
		release(t, b, claim("a"))
		if g1, g2 := w1.granted(t), w2.granted(t); g1 != g2 {
			t.Errorf("the grants are %+v and %+v, want them equal", g1, g2)
		}
		release(t, b, claim("b"))
		acquire(t, b, claim("c"))
	})
}

func TestAWaitWhoseClaimIsReleasedReturnsAnErrorOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		w := wait(t, b, claim("b"))
		release(t, b, claim("b"))
		err := w.failed(t)
		if errors.Is(err, driver.ErrHeld) || !strings.HasPrefix(err.Error(), "memory: ") {
			t.Errorf("Wait = %v, want an error of the driver's own", err)
		}
		release(t, b, claim("a"))
		if got := memory.Keys(b); got != 0 {
			t.Errorf("the store has %d keys, want 0", got)
		}
	})
}

func TestTheFirstInLineGetsTheLockAtTheHoldersExpiry(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, b *memory.Backend) // made 1 s after the holder a acquired
		after  time.Duration                         // when b gets it, counted from a's acquire
	}{
		{"untouched", func(*testing.T, *memory.Backend) {}, ttl},
		{"renewed", func(t *testing.T, b *memory.Backend) {
			if _, err := b.Renew(t.Context(), claim("a")); err != nil {
				t.Fatal(err)
			}
		}, ttl + time.Second},
		{"acquired anew for longer", func(t *testing.T, b *memory.Backend) {
			acquire(t, b, withTTL(claim("a"), 5*ttl))
		}, 5*ttl + time.Second},
		{"acquired anew for less", func(t *testing.T, b *memory.Backend) {
			acquire(t, b, withTTL(claim("a"), time.Second))
		}, ttl},
		{"with a shorter hold in between", func(t *testing.T, b *memory.Backend) {
			info, _ := b.Inspect(t.Context(), "k")
			if err := b.Break(t.Context(), "k", info.Fence); err != nil {
				t.Fatal(err)
			}
		}, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New()
				start := time.Now()
				acquire(t, b, claim("a"))
				abandon(t, b, withTTL(claim("short"), 2*time.Second))
				if c.name != "with a shorter hold in between" {
					release(t, b, claim("short"))
				}
				w, next := wait(t, b, claim("b")), wait(t, b, claim("c"))
				time.Sleep(time.Second)
				c.change(t, b)
				synctest.Wait()
				time.Sleep(time.Until(start.Add(c.after)) - 1)
				w.waits(t)
				time.Sleep(time.Nanosecond)
				g := w.granted(t)
				if want := start.Add(c.after); !g.Start.Equal(want) || !w.at.Equal(want) {
					t.Errorf("b got it at %v and Wait returned at %v, want both at %v", g.Start.Sub(start), w.at.Sub(start), c.after)
				}
				time.Sleep(ttl - 1)
				next.waits(t)
				time.Sleep(time.Nanosecond)
				next.granted(t)
			})
		})
	}
}

func TestExpiryIsNoticedWithoutTheFirstInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		first, second := wait(t, b, claim("b")), wait(t, b, claim("c"))
		first.cancel()
		_ = first.failed(t)
		release(t, b, claim("b"))
		time.Sleep(ttl)
		second.granted(t)
	})
}

// The counter is not protected but by the lock: the race detector and the sum both tell when two hold it at once.
func TestManyGoroutinesExcludeEachOther(t *testing.T) {
	const workers, rounds = 16, 200
	var counter int
	var fence uint64
	var wg sync.WaitGroup
	clients := []*memory.Backend{open(t, "memory://stress"), open(t, "memory://stress")}
	soon, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a Wait that nobody wakes fails
	defer cancel()
	for i := range workers {
		wg.Go(func() {
			b := clients[i%2]
			for j := range rounds {
				c := withTTL(claim(fmt.Sprintf("%d-%d", i, j)), time.Minute)
				if j%5 == 4 { // gives up soon, and cleans up like the engine
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Microsecond)
					_, err := b.Wait(ctx, c, func() {})
					cancel()
					if err != nil {
						err = b.Release(t.Context(), c)
						if err != nil && !errors.Is(err, driver.ErrNotOwner) {
							t.Errorf("Release after a cancelled Wait = %v", err)
						}
						continue
					}
				} else if _, err := b.Wait(soon, c, func() {}); err != nil {
					t.Errorf("Wait = %v, want a grant", err)
					return
				}
				g, err := b.Renew(t.Context(), c)
				if err != nil || g.Fence <= fence {
					t.Errorf("Renew = %+v, %v; want a fence above %d", g, err, fence)
				}
				counter, fence = counter+1, g.Fence
				if err := b.Release(t.Context(), c); err != nil {
					t.Errorf("Release = %v, want nil", err)
				}
			}
		})
	}
	wg.Wait()
	if low, high := workers*rounds*4/5, workers*rounds; counter < low || counter > high {
		t.Errorf("counter = %d, want %d to %d", counter, low, high)
	}
	if got := memory.Keys(clients[0]); got != 0 {
		t.Errorf("the store has %d keys, want 0", got)
	}
}
