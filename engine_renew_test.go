package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestAHoldIsRenewedForAsLongAsItLasts(t *testing.T) {
	for name, b := range map[string]func() driver.Backend{
		"one by one": func() driver.Backend { return newNetwork() },
		"in batches": func() driver.Backend { return batched{newNetwork()} },
		"in place":   func() driver.Backend { return memory.New() },
	} {
		for _, ttl := range []time.Duration{dlock.MinTTL, time.Second, time.Hour} {
			t.Run(fmt.Sprint(name, " ", ttl), func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					l := open(t, b(), dlock.Config{})
					x := acquire(t, l, "k", dlock.WithTTL(ttl))
					time.Sleep(20 * ttl)
					if !x.Held() {
						t.Errorf("lost after 20 TTLs: %v", x.Err())
					}
				})
			})
		}
	}
}

func TestRenewalsGoOutAtAThirdOfTheTTL(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 9 * time.Second})
		last := time.Now()
		acquire(t, l, "k")
		time.Sleep(90 * time.Second)
		gaps := map[time.Duration]bool{}
		for _, s := range n.requests(opRenew) {
			gap := s.at.Sub(last)
			if gap > 3*time.Second || gap < 2*time.Second {
				t.Errorf("a renewal %v after the one before, want about 3s and not more", gap)
			}
			gaps[gap] = true
			last = s.at
		}
		if len(gaps) < 5 {
			t.Errorf("%d different gaps between renewals, want jitter", len(gaps))
		}
	})
}

func TestRenewIntervalReplacesTheThird(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 9 * time.Second, RenewInterval: time.Second})
		acquire(t, l, "k")
		time.Sleep(10 * time.Second)
		if got := len(n.requests(opRenew)); got < 10 || got > 13 {
			t.Errorf("%d renewals in 10 s, want one a second or little more", got)
		}
	})
}

func TestDueRenewalsGoOutTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, batched{n}, dlock.Config{DefaultTTL: 9 * time.Second})
		for i := range 500 {
			acquire(t, l, fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(27 * time.Second)
		if got := len(n.requests(opBatch)); got > 3*12 {
			t.Errorf("%d batches for 500 holds in 3 TTLs, want few", got)
		}
		if got := len(n.requests(opRenew)); got > 0 {
			t.Errorf("%d single renewals though the driver takes batches", got)
		}
	})
}

// goroutines counts them by their stacks. runtime.NumGoroutine adds up numbers that change meanwhile, and may count some that have just ended.
func goroutines() (n int, stacks string) {
	buf := make([]byte, 1<<20)
	stacks = string(buf[:runtime.Stack(buf, true)])
	return strings.Count(stacks, "\ngoroutine ") + 1, stacks
}

func TestHoldsNeedNoGoroutines(t *testing.T) {
	for name, b := range map[string]func() driver.Backend{
		"remote":   func() driver.Backend { return batched{newNetwork()} },
		"in place": func() driver.Backend { return memory.New() },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				l := open(t, b(), dlock.Config{})
				before, _ := goroutines()
				for i := range 10_000 {
					acquire(t, l, fmt.Sprint(i))
				}
				for range 300 {
					time.Sleep(37 * time.Millisecond)
					if n, stacks := goroutines(); n > before+5 {
						t.Fatalf("%d goroutines for 10,000 holds, want at most 5:\n%s", n-before, stacks)
					}
				}
			})
		})
	}
}

// attempt is when a renewal began and ended, and how long its context allowed.
type attempt struct{ began, ended, limit time.Time }

// outAt returns how many attempts were under way at the given moment.
func outAt(attempts []attempt, at time.Time) (n int) {
	for _, a := range attempts {
		if !a.began.After(at) && (a.ended.IsZero() || a.ended.After(at)) {
			n++
		}
	}
	return n
}

func TestRenewalsRunBesideEachOtherAndAreTriedUntilTheDeadline(t *testing.T) {
	const ttl = 12 * time.Second
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: ttl})
		x := acquire(t, l, "k")
		end := x.ValidUntil()
		var mu sync.Mutex
		var attempts []*attempt
		n.on(func(ctx context.Context, _ op, _ func() error) error {
			a := &attempt{began: time.Now()}
			a.limit, _ = ctx.Deadline()
			mu.Lock()
			attempts = append(attempts, a)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			a.ended = time.Now()
			return ctx.Err()
		}, opRenew)
		<-x.Done()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(attempts) < 5 {
			t.Fatalf("%d attempts before the deadline, want several", len(attempts))
		}
		var all []attempt
		for _, a := range attempts {
			all = append(all, *a)
		}
		longest := time.Duration(0)
		for i, a := range all {
			if a.limit.Sub(a.began) > ttl/3 {
				t.Errorf("attempt %d may take %v, want at most a third of the TTL", i, a.limit.Sub(a.began))
			}
			if out := outAt(all, a.began); out > 3 {
				t.Errorf("%d renewals of one hold are out at the same time, want at most 3", out)
			}
			if a.began.After(end.Add(-ttl / 3)) {
				longest = max(longest, a.ended.Sub(a.began))
			}
			if i > 0 {
				left := end.Sub(all[i-1].began)
				want := max(min(ttl/6, left/3)+min(ttl/20, left/4), 2*time.Millisecond)
				if gap := a.began.Sub(all[i-1].began); gap > want+time.Millisecond {
					t.Errorf("attempt %d began %v after the one before, want at most %v", i, gap, want)
				}
			}
		}
		if longest < ttl/8 {
			t.Errorf("of the attempts in the last third of the TTL the longest had %v; a reconnect may need more", longest)
		}
		if last := all[len(all)-1]; end.Sub(last.began) > ttl/50 {
			t.Errorf("the last attempt was made %v before the deadline, want tries until then", end.Sub(last.began))
		}
	})
}

func TestARenewalThatHangsIsTriedAgain(t *testing.T) {
	for name, remote := range map[string]func(*network) driver.Backend{
		"one by one": func(n *network) driver.Backend { return n },
		"in batches": func(n *network) driver.Backend { return batched{n} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, remote(n), dlock.Config{DefaultTTL: 12 * time.Second})
				x := acquire(t, l, "k")
				var once sync.Once
				stuck, _ := hang(t)
				n.on(func(ctx context.Context, o op, next func() error) (err error) {
					first := false
					once.Do(func() { first = true })
					if first {
						return stuck(ctx, o, next)
					}
					return next()
				}, opRenew, opBatch)
				time.Sleep(time.Minute)
				if !x.Held() {
					t.Errorf("one renewal that never returned lost the lock: %v", x.Err())
				}
			})
		})
	}
}

func TestNoRenewalIsSentAfterUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 3 * time.Second})
		n.on(slow(20*time.Millisecond), opRelease)
		for i := range 200 {
			x := acquire(t, l, "k")
			time.Sleep(890*time.Millisecond + time.Duration(i)*time.Millisecond) // around the time of the renewal
			unlocked := time.Now()
			if err := x.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			for _, s := range n.requests(opRenew) {
				if s.at.After(unlocked) {
					t.Fatalf("a renewal was sent %v after Unlock was called", s.at.Sub(unlocked))
				}
			}
		}
	})
}

func TestSingleRenewalsAreSomeAtATime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 9 * time.Second})
		for i := range 300 {
			acquire(t, l, fmt.Sprint(i))
		}
		var mu sync.Mutex
		now, most := 0, 0
		n.on(func(_ context.Context, _ op, next func() error) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return next()
		}, opRenew)
		time.Sleep(4 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if most < 2 || most > 64 {
			t.Errorf("up to %d renewals at the same time, want some but at most 64", most)
		}
	})
}

// noBatch says that it cannot do what its type promises.
type noBatch struct{ *network }

func (noBatch) RenewBatch(_ context.Context, claims []driver.Claim) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	for i := range answers {
		answers[i].Err = errors.ErrUnsupported
	}
	return answers
}

func (noBatch) Wait(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, errors.ErrUnsupported
}

func (noBatch) Ping(context.Context) error { return errors.ErrUnsupported }

func TestUnsupportedMeansAbsent(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, noBatch{n}, dlock.Config{DefaultTTL: 3 * time.Second})
		x := acquire(t, l, "k")
		time.Sleep(10 * time.Second)
		if !x.Held() || len(n.requests(opRenew)) == 0 {
			t.Errorf("held %v after %d single renewals", x.Held(), len(n.requests(opRenew)))
		}
		wantErr(t, "Ping", dlock.Ping(t.Context(), l), errors.ErrUnsupported)
		if len(n.requests(opAcquire)) != 1 {
			t.Errorf("%d acquires were sent, want 1", len(n.requests(opAcquire)))
		}
	})
}

// shortBatch answers fewer claims than it was asked.
type shortBatch struct{ batched }

func (b shortBatch) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	return b.batched.RenewBatch(ctx, claims)[1:]
}

func TestABatchAnswerOfTheWrongLengthIsAFailure(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, shortBatch{batched{newNetwork()}}, dlock.Config{DefaultTTL: 3 * time.Second})
		x, y := acquire(t, l, "x"), acquire(t, l, "y")
		end := x.ValidUntil()
		<-x.Done()
		<-y.Done()
		if !time.Now().Equal(end) {
			t.Errorf("lost %v from the deadline", time.Since(end))
		}
	})
}

func TestWithoutRenewalRunsOut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Second})
		begin := time.Now()
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		<-x.Done()
		if got := time.Since(begin); got != 990*time.Millisecond {
			t.Errorf("ran out after %v, want 990ms", got)
		}
		if len(n.requests(opRenew)) > 0 {
			t.Error("it was renewed")
		}
	})
}

func TestExtendLengthensAndNeverShortens(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 10 * time.Second})
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		first := x.ValidUntil()
		time.Sleep(time.Second)
		if err := x.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		// What is left is now counted from a later look at the store, so a smaller margin will do.
		if moved := x.ValidUntil().Sub(first); moved < 0 || moved > 100*time.Millisecond {
			t.Errorf("a shorter Extend moved the deadline by %v", moved)
		}
		if err := x.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got, want := x.ValidUntil(), deadline(time.Now(), time.Minute); !got.Equal(want) {
			t.Errorf("the deadline is %v from the one expected", got.Sub(want))
		}
		<-x.Done()
		if n.holder(t, "k") == 0 {
			t.Error("the store freed the key before the deadline")
		}
	})
}

func TestExtendedHoldsAreRenewedByTheNewTTL(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 3 * time.Second})
		x := acquire(t, l, "k")
		if err := x.Extend(t.Context(), 30*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if got := len(n.requests(opRenew)); !x.Held() || got > 40 {
			t.Errorf("held %v after %d renewals in 10 of the new TTLs", x.Held(), got)
		}
	})
}

func TestExtendTellsWhatWentWrong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 3 * time.Second})
		x := acquire(t, l, "k")
		wantErr(t, "TTL 0", x.Extend(t.Context(), 0), dlock.ErrInvalidTTL)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		before := len(n.requests())
		wantErr(t, "done ctx", x.Extend(done, time.Second), context.Canceled)
		if len(n.requests()) != before {
			t.Error("something was sent with a ctx that was done")
		}
		n.on(refuse, opRenew)
		wantErr(t, "failure", x.Extend(t.Context(), time.Second), errNetwork)
		if !x.Held() {
			t.Error("a failed Extend lost the lock")
		}
		n.heal()
		n.snatch(t, "k")
		wantErr(t, "snatched", x.Extend(t.Context(), time.Second), dlock.ErrOwnershipLost)
		if x.Held() {
			t.Error("held although the store said that it is not")
		}
		wantErr(t, "after a loss", x.Extend(t.Context(), time.Second), dlock.ErrOwnershipLost)
		y := acquire(t, l, "y")
		_ = y.Unlock(t.Context())
		wantErr(t, "after Unlock", y.Extend(t.Context(), time.Second), dlock.ErrLockNotHeld)
	})
}

func TestOfAHoldWhoseRenewalsNeverReturnThreeAreOut(t *testing.T) {
	const ttl = 12 * time.Second
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: ttl})
		x := acquire(t, l, "k")
		end := x.ValidUntil()
		stuck, _ := hang(t)
		n.on(stuck, opRenew)
		<-x.Done()
		if !time.Now().Equal(end) {
			t.Errorf("Done was closed %v after the deadline", time.Since(end))
		}
		reqs := n.requests(opRenew)
		if len(reqs) != 3 {
			t.Fatalf("%d renewals that do not return, want 3", len(reqs))
		}
		for i := 1; i < len(reqs); i++ {
			if gap := reqs[i].at.Sub(reqs[i-1].at); gap > ttl/6+ttl/20 {
				t.Errorf("attempt %d began %v after the one before", i, gap)
			}
		}
	})
}

// batchLimits is a network that notes how long each batch may take, and keeps slow ones until then.
type batchLimits struct {
	*network
	t    *testing.T
	slow string // batches with this key do not answer
	seen map[string]int
}

func (b *batchLimits) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	end, _ := ctx.Deadline()
	limit, stuck := time.Until(end), false
	b.mu.Lock()
	for _, c := range claims {
		b.seen[c.Key]++
		stuck = stuck || c.Key == b.slow
		if limit > c.TTL/3 {
			b.t.Errorf("a batch with %q may take %v, want at most a third of its TTL, %v", c.Key, limit, c.TTL/3)
		}
		if limit < c.TTL/24 {
			b.t.Errorf("a batch with %q may take only %v, as if its TTL were not %v", c.Key, limit, c.TTL)
		}
	}
	b.mu.Unlock()
	if stuck {
		<-ctx.Done()
		answers := make([]driver.Renewal, len(claims))
		for i := range answers {
			answers[i].Err = ctx.Err()
		}
		return answers
	}
	return b.store.RenewBatch(context.WithoutCancel(ctx), claims)
}

func TestABatchHasOneTimeLimitThatSuitsAll(t *testing.T) {
	for range 20 {
		virtual(t, func(t *testing.T) {
			b := &batchLimits{network: newNetwork(), t: t, seen: map[string]int{}}
			l := open(t, b, dlock.Config{})
			acquire(t, l, "30s", dlock.WithTTL(30*time.Second))
			acquire(t, l, "1s", dlock.WithTTL(time.Second))
			acquire(t, l, "15s", dlock.WithTTL(15*time.Second))
			time.Sleep(2 * time.Second)
			acquire(t, l, "9s", dlock.WithTTL(9*time.Second))
			time.Sleep(30 * time.Second)
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.seen) != 4 {
				t.Errorf("renewals of %v, want of all four", b.seen)
			}
		})
	}
}

func TestABatchInFlightDoesNotHoldUpThoseDueWithIt(t *testing.T) {
	for range 20 { // which of the two goes first is left to chance
		virtual(t, func(t *testing.T) {
			b := &batchLimits{network: newNetwork(), t: t, slow: "long", seen: map[string]int{}}
			l := open(t, b, dlock.Config{})
			acquire(t, l, "long", dlock.WithTTL(30*time.Second))
			short := acquire(t, l, "short", dlock.WithTTL(time.Second))
			time.Sleep(20 * time.Second)
			if !short.Held() {
				t.Errorf("a hold was lost while the renewal of another was under way: %v", short.Err())
			}
		})
	}
}

func TestAHoldThatEndsBeforeItsRenewalIsSentIsNotRenewed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 9 * time.Second})
		leases := map[string]*dlock.Lease{}
		for i := range 100 { // more than are renewed at the same time
			x := acquire(t, l, fmt.Sprint(i))
			leases[x.Key()] = x
		}
		n.on(slowReply(500*time.Millisecond), opRenew)
		for len(n.requests(opRenew)) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		for _, s := range n.requests(opRenew) {
			delete(leases, s.key)
		}
		unlocked := time.Now()
		for _, x := range leases {
			_ = x.Unlock(t.Context())
		}
		time.Sleep(9 * time.Second)
		for _, s := range n.requests(opRenew) {
			if leases[s.key] != nil {
				t.Fatalf("a renewal was sent %v after Unlock was called", s.at.Sub(unlocked))
			}
		}
	})
}

func TestCallsLeftBehindDoNotHoldUpRenewals(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 3 * time.Second})
		x := acquire(t, l, "held")
		stuck, _ := hang(t)
		n.on(stuck, opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range dlock.MaxAbandoned {
			wg.Go(func() { _, _ = l.TryLock(ctx, fmt.Sprint(i)) })
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if !x.Held() {
			t.Errorf("the application's calls that hang kept the renewals out: %v", x.Err())
		}
	})
}

func TestAShorterExtendLeavesTheDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, _ := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: 10 * time.Second})
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		before := x.ValidUntil()
		if err := x.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		if got := x.ValidUntil(); !got.Equal(before) {
			t.Errorf("the deadline moved by %v", got.Sub(before))
		}
	})
}

func TestAnExtendOfUnknownOutcomeIsCleanedUpForItsTTL(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 6 * time.Second})
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		n.on(loseReply, opRenew)
		wantErr(t, "Extend", x.Extend(t.Context(), time.Minute), errNetwork)
		n.on(refuse, opRelease)
		wantErr(t, "Unlock", x.Unlock(t.Context()), errNetwork)
		time.Sleep(30 * time.Second) // longer than the TTL that is known
		if n.holder(t, "k") == 0 {
			t.Fatal("the store has let go; the test shows nothing")
		}
		n.heal()
		time.Sleep(time.Second)
		if n.holder(t, "k") != 0 {
			t.Error("the token is in the store a second after the network healed")
		}
	})
}

func TestAnExtendThatIsOvertakenByUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		x := acquire(t, l, "k")
		n.on(slowReply(time.Second), opRenew)
		extended := make(chan error, 1)
		go func() { extended <- x.Extend(t.Context(), time.Minute) }()
		time.Sleep(100 * time.Millisecond)
		if err := x.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Extend", <-extended, dlock.ErrLockNotHeld)
		wantErr(t, "Err", x.Err(), dlock.ErrLockNotHeld)
		time.Sleep(2 * time.Minute)
		wantErr(t, "Err", x.Err(), dlock.ErrLockNotHeld)
	})
}

// pastGrants answers a renewal from one that it made before, and says so, unless that is too old.
type pastGrants struct {
	*network
	ttl, old time.Duration
	start    time.Time
}

func (b *pastGrants) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	time.Sleep(time.Millisecond)
	g, err := b.network.Renew(ctx, c)
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.start) > b.old {
		b.start = time.Now()
	}
	g.Start, g.TTL = b.start, b.ttl
	return g, err
}

func TestARenewalThatIsAnsweredFromThePastIsNotDueAgainAtOnce(t *testing.T) {
	const ttl = 20 * time.Second
	for name, c := range map[string]struct {
		old, interval, extend time.Duration // extend by so much first
		most                  int           // renewals in a TTL
		lost                  bool
	}{
		"an interval shorter than what may be past": {old: ttl / 6, interval: time.Second, most: 40},
		"Extend by less than is left":               {old: ttl - 3*time.Second, extend: 3 * time.Second, most: 40},
		"nothing but the past":                      {old: time.Hour, interval: ttl / 10, most: 50, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := &pastGrants{network: newNetwork(), ttl: ttl, old: c.old, start: time.Now()}
				l := open(t, n, dlock.Config{DefaultTTL: ttl, RenewInterval: c.interval})
				x := acquire(t, l, "k")
				if c.extend > 0 {
					if err := x.Extend(t.Context(), c.extend); err != nil {
						t.Fatal(err)
					}
				}
				for range 3 {
					before := len(n.requests(opRenew))
					time.Sleep(ttl)
					if got := len(n.requests(opRenew)) - before; got > c.most || got < 2 && !c.lost {
						t.Errorf("%d renewals in %v, want some, and at most %d", got, ttl, c.most)
					}
				}
				if x.Held() == c.lost {
					t.Errorf("held %v: %v", x.Held(), x.Err())
				}
			})
		})
	}
}

func TestFailuresAreCountedInARow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		var log strings.Builder
		l := open(t, n, dlock.Config{DefaultTTL: 3 * time.Second}, dlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		acquire(t, l, "k")
		for range 3 {
			var once sync.Once
			n.on(func(_ context.Context, _ op, next func() error) (err error) {
				once.Do(func() { err = errNetwork })
				if err != nil {
					return err
				}
				return next()
			}, opRenew)
			time.Sleep(3 * time.Second)
		}
		_ = l.Close()
		if got := strings.Count(log.String(), "failures=1"); got != 3 || strings.Contains(log.String(), "failures=2") {
			t.Errorf("%d single failures were logged, want 3:\n%s", got, &log)
		}
	})
}
