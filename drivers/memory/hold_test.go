package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestAKeyIsHeldByOneTokenAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		if g := acquire(t, b, claim("a")); g.TTL != ttl || g.Fence == 0 || g.Fences != 0 {
			t.Errorf("Acquire = %+v, want the TTL that was asked for and one fence", g)
		}
		refuseAcquire(t, b, claim("b"))
		release(t, b, claim("a"))
		acquire(t, b, claim("b"))
		refuseAcquire(t, b, claim("a"))
	})
}

func TestARefusedAcquireChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		refuseAcquire(t, b, withTTL(claim("b"), time.Hour))
		time.Sleep(ttl)
		acquire(t, b, claim("c"))
	})
}

func TestDifferentKeysShareNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		keys := []string{"k", "K", "k ", "k/", "k\x00", "k\xff", "{k}", "k:k", "%6b", "k\u00e9", "ke\u0301"}
		for _, key := range keys {
			acquire(t, b, withKey(claim("owner of "+key), key))
		}
		for _, key := range keys {
			release(t, b, withKey(claim("owner of "+key), key))
		}
	})
}

func TestAcquireByTheHolderCountsTheTTLAnewUnlessMoreIsLeftAndKeepsTheFence(t *testing.T) {
	for _, again := range []time.Duration{ttl / 5, 2 * ttl} {
		t.Run(again.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New()
				first := acquire(t, b, claim("a"))
				time.Sleep(ttl / 2)
				g := acquire(t, b, withTTL(claim("a"), again))
				want := max(again, ttl/2)
				if left := time.Until(g.Start.Add(g.TTL)); g.Fence != first.Fence || left != want {
					t.Errorf("the second Acquire = %+v with %v left, want fence %d and %v", g, left, first.Fence, want)
				}
				time.Sleep(want - 1)
				refuseAcquire(t, b, claim("b"))
				time.Sleep(time.Nanosecond)
				acquire(t, b, claim("b"))
			})
		})
	}
}

func TestAHoldExpiresWhenItsTTLHasPassedAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		first := acquire(t, b, claim("a"))
		time.Sleep(ttl - 1)
		refuseAcquire(t, b, claim("b"))
		time.Sleep(time.Nanosecond)
		if err := b.Release(t.Context(), claim("a")); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Release of an expired hold = %v, want ErrNotOwner", err)
		}
		if g := acquire(t, b, claim("a")); g.Fence <= first.Fence {
			t.Errorf("the fence after an expiry is %d, want more than %d", g.Fence, first.Fence)
		}
	})
}

func TestRenewMakesAHoldLastForItsTTLFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		first := acquire(t, b, claim("a"))
		time.Sleep(ttl / 2)
		g, err := b.Renew(t.Context(), withTTL(claim("a"), 3*ttl))
		if want := (driver.Grant{Fence: first.Fence, TTL: 3 * ttl, Start: time.Now()}); err != nil || g != want {
			t.Errorf("Renew = %+v, %v; want %+v", g, err, want)
		}
		time.Sleep(3*ttl - 1)
		refuseAcquire(t, b, claim("b"))
		time.Sleep(time.Nanosecond)
		acquire(t, b, claim("b"))
	})
}

func TestRenewNeverShortens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		first := acquire(t, b, claim("a"))
		time.Sleep(time.Second)
		g, err := b.Renew(t.Context(), withTTL(claim("a"), ttl/10))
		if err != nil || g != first {
			t.Errorf("Renew with a shorter TTL = %+v, %v; want the grant as it was, %+v", g, err, first)
		}
		time.Sleep(ttl - time.Second - 1)
		refuseAcquire(t, b, claim("b"))
	})
}

func TestRenewNeverCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		refuse := func(when string, c driver.Claim) {
			t.Helper()
			if g, err := b.Renew(t.Context(), c); !errors.Is(err, driver.ErrNotOwner) || g != (driver.Grant{}) {
				t.Errorf("Renew %s = %+v, %v; want ErrNotOwner", when, g, err)
			}
		}
		refuse("of a free key", claim("a"))
		acquire(t, b, claim("b"))
		refuse("of another's key", claim("a"))
		abandon(t, b, claim("a"))
		refuse("by one who waits", claim("a"))
		release(t, b, claim("a"))
		release(t, b, claim("b"))
		refuse("of a released key", claim("b"))
		acquire(t, b, claim("a"))
		time.Sleep(ttl)
		refuse("of an expired hold", claim("a"))
		if got := memory.Keys(b); got != 0 {
			t.Errorf("the store has %d keys, want 0", got)
		}
	})
}

func TestRenewBatchAnswersEachClaimAsRenewWould(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		held := acquire(t, b, withKey(claim("a"), "held"))
		long := acquire(t, b, withTTL(withKey(claim("a"), "long"), time.Hour))
		acquire(t, b, withKey(claim("b"), "another's"))
		time.Sleep(time.Second)
		got := b.RenewBatch(t.Context(), []driver.Claim{
			withKey(claim("a"), "free"), withKey(claim("a"), "held"), withKey(claim("a"), "another's"), withKey(claim("a"), "long"),
		})
		now := time.Now()
		want := []driver.Renewal{
			{Err: driver.ErrNotOwner},
			{Grant: driver.Grant{Fence: held.Fence, TTL: ttl, Start: now}},
			{Err: driver.ErrNotOwner},
			{Grant: long},
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("renewal %d = %+v, want %+v", i, got[i], want[i])
			}
		}
		if n := len(b.RenewBatch(t.Context(), nil)); n != 0 {
			t.Errorf("RenewBatch of nothing has %d answers, want 0", n)
		}
	})
}

func TestReleaseOfWhatIsNotThereChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		refuse := func(when string, c driver.Claim) {
			t.Helper()
			if err := b.Release(t.Context(), c); !errors.Is(err, driver.ErrNotOwner) {
				t.Errorf("Release %s = %v, want ErrNotOwner", when, err)
			}
		}
		refuse("of a free key", claim("a"))
		acquire(t, b, claim("a"))
		refuse("of another's key", claim("b"))
		refuseAcquire(t, b, claim("b"))
		release(t, b, claim("a"))
		refuse("for the second time", claim("a"))
	})
}

func TestReleaseAndRenewIgnoreOwnerAndReleaseIgnoresTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		bare := driver.Claim{Key: "k", Token: claim("a").Token}
		if _, err := b.Renew(t.Context(), bare); err != nil {
			t.Errorf("Renew by token alone = %v, want nil", err)
		}
		release(t, b, bare)
	})
}

func TestFencesRiseOverGrantsKeysStoresAndDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last uint64
		for _, dsn := range []string{"memory://fences", "memory://fences", "memory://other", ""} {
			b := open(t, dsn)
			for range 3 {
				g := acquire(t, b, claim("a"))
				if g.Fence <= last {
					t.Errorf("fence %d in %q follows %d, want it to rise", g.Fence, dsn, last)
				}
				last = g.Fence
				release(t, b, claim("a"))
			}
			_ = b.Close()
		}
	})
}

func TestFencesAreNoLessThanTheClock(t *testing.T) {
	start := uint64(time.Now().UnixMicro())
	if g := acquire(t, memory.New(), claim("a")); g.Fence < start {
		t.Errorf("fence %d, want at least the time in microseconds, %d", g.Fence, start)
	}
}

func TestNothingIsLeftOfAKeyThatNobodyHoldsOrWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, b, claim("a"))
		w := wait(t, b, claim("b"))
		abandon(t, b, claim("c"))
		release(t, b, claim("c"))
		release(t, b, claim("a"))
		w.granted(t)
		release(t, b, claim("b"))
		if got := memory.Keys(b); got != 0 {
			t.Errorf("the store has %d keys, want 0", got)
		}
	})
}

func TestKeysThatExpireUnseenDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		for i := range 10_000 {
			acquire(t, b, withTTL(withKey(claim("a"), time.Duration(i).String()), time.Second))
			time.Sleep(100 * time.Millisecond)
		}
		if got := memory.Keys(b); got > 100 {
			t.Errorf("the store has %d keys of which 10 are held, want about as many", got)
		}
	})
}

func TestACtxThatIsDoneAtEntryChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		held := acquire(t, b, withKey(claim("a"), "held"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for what, err := range everyMethod(ctx, b, withKey(claim("a"), "held"), held.Fence) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s with a cancelled ctx = %v, want context.Canceled", what, err)
			}
		}
		everyMethod(ctx, b, claim("a"), 0)
		if got := memory.Keys(b); got != 1 {
			t.Errorf("the store has %d keys, want 1", got)
		}
		if info, _ := b.Inspect(t.Context(), "held"); info.TTL != ttl {
			t.Errorf("the hold is %+v, want it as it was", info)
		}
	})
}

// everyMethod calls each method but Close and returns its error.
func everyMethod(ctx context.Context, b *memory.Backend, c driver.Claim, fence uint64) map[string]error {
	errs := map[string]error{}
	_, errs["Acquire"] = b.Acquire(ctx, c)
	_, errs["Wait"] = b.Wait(ctx, c, func() {})
	_, errs["Renew"] = b.Renew(ctx, c)
	errs["RenewBatch"] = b.RenewBatch(ctx, []driver.Claim{c})[0].Err
	errs["Release"] = b.Release(ctx, c)
	_, errs["Inspect"] = b.Inspect(ctx, c.Key)
	errs["Break"] = b.Break(ctx, c.Key, fence)
	errs["Ping"] = b.Ping(ctx)
	for _, err := range b.List(ctx, "") {
		errs["List"] = err
	}
	return errs
}

func TestAcquireAndReleaseAllocateAtMostTwice(t *testing.T) {
	b, ctx, c := memory.New(), t.Context(), claim("a")
	got := testing.AllocsPerRun(100, func() {
		_, _ = b.Acquire(ctx, c)
		_ = b.Release(ctx, c)
	})
	if got > 2 {
		t.Errorf("Acquire and Release allocate %v times, want at most 2", got)
	}
}
