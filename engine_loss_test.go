package dlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
	"github.com/dlock-go/dlock/internal/proc"
)

// deadline is S + T − m for a hold that was asked for at s.
func deadline(s time.Time, ttl time.Duration) time.Time {
	return s.Add(ttl - max(2*time.Millisecond, ttl/100))
}

func TestNobodyElseHoldsUntilTheDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a, b := named(t, t.Name()), named(t, t.Name())
		la, lb := open(t, a, dlock.Config{}), open(t, b, dlock.Config{})
		x := acquire(t, la, "k")
		a.on(refuse)
		y := acquire(t, lb, "k")
		if !time.Now().After(x.ValidUntil()) || x.Held() {
			t.Errorf("second holder at %v, the first one's ValidUntil is %v, Held %v", time.Now(), x.ValidUntil(), x.Held())
		}
		if y.Fence() <= x.Fence() {
			t.Errorf("fences %d, then %d; want them to rise", x.Fence(), y.Fence())
		}
	})
}

func TestDoneClosesAtTheDeadlineWithoutNetwork(t *testing.T) {
	for _, ttl := range []time.Duration{dlock.MinTTL, time.Second, 10 * time.Second, dlock.MaxTTL} {
		t.Run(ttl.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				l := open(t, n, dlock.Config{})
				begin := time.Now()
				x := acquire(t, l, "k", dlock.WithTTL(ttl))
				f, _ := hang(t)
				n.on(f)
				<-x.Done()
				if got, want := time.Now(), deadline(begin, ttl); !got.Equal(want) {
					t.Errorf("Done closed after %v, want %v", got.Sub(begin), want.Sub(begin))
				}
				wantErr(t, "Err", x.Err(), dlock.ErrOwnershipLost)
			})
		})
	}
}

func TestLossIsToldWhenTheStoreSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 9 * time.Second})
		x := acquire(t, l, "k")
		n.snatch(t, "k")
		begin := time.Now()
		<-x.Done()
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("loss was told after %v, want at the next renewal, within a third of the TTL", took)
		}
		wantErr(t, "Err", x.Err(), dlock.ErrOwnershipLost)
	})
}

func TestAFailedRenewalIsNoLoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 10 * time.Second})
		x := acquire(t, l, "k")
		n.on(refuse, opRenew)
		time.Sleep(8 * time.Second)
		if len(n.requests(opRenew)) < 2 {
			t.Fatalf("%d renewals were tried, want several", len(n.requests(opRenew)))
		}
		n.heal()
		time.Sleep(time.Minute)
		if !x.Held() {
			t.Errorf("the hold was lost though the network came back before the deadline: %v", x.Err())
		}
	})
}

func TestARenewalWhoseReplyIsLostMovesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 10 * time.Second})
		x := acquire(t, l, "k")
		before := x.ValidUntil()
		n.on(loseReply, opRenew)
		time.Sleep(9 * time.Second)
		if !x.ValidUntil().Equal(before) || !x.Held() {
			t.Errorf("ValidUntil moved by %v, Held %v; want 0s and true", x.ValidUntil().Sub(before), x.Held())
		}
		<-x.Done()
		if !time.Now().Equal(before) {
			t.Errorf("Done closed %v after the deadline", time.Since(before))
		}
	})
}

func TestAfterAPauseTheFirstLookIsRight(t *testing.T) {
	looks := map[string]func(x *dlock.Lease, ctx context.Context) bool{
		"Held":        func(x *dlock.Lease, _ context.Context) bool { return x.Held() },
		"Err":         func(x *dlock.Lease, _ context.Context) bool { return x.Err() == nil },
		"Context.Err": func(_ *dlock.Lease, ctx context.Context) bool { return ctx.Err() == nil },
	}
	pauses := map[string]func(x *dlock.Lease, d time.Duration){"stopped": (*dlock.Lease).Pause, "suspended": (*dlock.Lease).Suspend}
	for name, look := range looks {
		for kind, pause := range pauses {
			t.Run(name+"/"+kind, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					l := open(t, memory.New(), dlock.Config{DefaultTTL: time.Second})
					x := acquire(t, l, "k")
					ctx := x.Context(t.Context())
					if !look(x, ctx) {
						t.Fatal("not held before the pause")
					}
					pause(x, 2*time.Second)
					if look(x, ctx) {
						t.Error("the first look after the pause says held")
					}
					select {
					case <-x.Done():
					default:
						t.Error("Done is not closed after the first look")
					}
					wantErr(t, "the context's cause", context.Cause(ctx), dlock.ErrOwnershipLost)
					wantErr(t, "Unlock", x.Unlock(t.Context()), dlock.ErrOwnershipLost)
				})
			})
		}
	}
}

func TestALossIsForGood(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: 3 * time.Second})
		x := acquire(t, l, "k")
		n.on(slowReply(2*time.Second), opRenew) // the store renews, and says so too late
		<-x.Done()
		n.heal()
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if x.Held() {
				t.Fatal("held again after a loss")
			}
		}
	})
}

func TestAGrantThatComesTooLateIsNotHeld(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Second, MaxRetries: 3})
		late := true
		n.on(func(_ context.Context, o op, next func() error) error {
			err := next()
			if o == opAcquire && late {
				late = false
				time.Sleep(1020 * time.Millisecond) // the limit, and a reply on the heels of it
			}
			return err
		})
		x := acquire(t, l, "k")
		if !x.Held() {
			t.Error("a lease that is not held was returned")
		}
		tokens := map[string]bool{}
		for _, s := range n.requests(opAcquire) {
			tokens[s.token] = true
		}
		if len(tokens) != 2 {
			t.Errorf("%d tokens were used, want a new one after the late grant", len(tokens))
		}
	})
}

func TestOnceATokenWasReleasedItDoesNotAcquire(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, polled{n}, dlock.Config{DefaultTTL: time.Second})
		n.on(func(_ context.Context, o op, next func() error) error {
			err := next()
			if o == opAcquire && len(n.requests(opAcquire)) < 5 {
				time.Sleep(1020 * time.Millisecond)
			}
			return err
		})
		acquire(t, l, "k")
		released := map[string]bool{}
		for _, s := range n.requests() {
			if s.op == opRelease {
				released[s.token] = true
			} else if released[s.token] {
				t.Errorf("%s with a token that a release was sent for", s.op)
			}
		}
		if len(released) == 0 {
			t.Error("nothing was released; the test shows nothing")
		}
	})
}

func TestContextEndsWithTheReason(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		ends := map[string]struct {
			end  func(x *dlock.Lease)
			want error
		}{
			"loss":   {func(x *dlock.Lease) { n.snatch(t, x.Key()); <-x.Done() }, dlock.ErrOwnershipLost},
			"unlock": {func(x *dlock.Lease) { _ = x.Unlock(t.Context()) }, dlock.ErrLockNotHeld},
			"zclose": {func(*dlock.Lease) { _ = l.Close() }, dlock.ErrClosed},
		}
		for _, name := range []string{"loss", "unlock", "zclose"} {
			x := acquire(t, l, name)
			ctx := x.Context(t.Context())
			child, cancel := context.WithTimeout(ctx, time.Hour)
			ends[name].end(x)
			<-child.Done()
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("%s: ctx.Err() is %v, want Canceled", name, ctx.Err())
			}
			wantErr(t, name+": cause", context.Cause(child), ends[name].want)
			wantErr(t, name+": Err", x.Err(), ends[name].want)
			late := x.Context(t.Context())
			wantErr(t, name+": cause of a context made afterwards", context.Cause(late), ends[name].want)
			cancel()
		}
	})
}

func TestTheParentEndsALeaseContextAndLeavesTheHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, memory.New(), dlock.Config{})
		x := acquire(t, l, "k")
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := x.Context(parent)
		why := errors.New("enough")
		cancel(why)
		synctest.Wait()
		wantErr(t, "cause", context.Cause(ctx), why)
		if !x.Held() {
			t.Error("the hold ended with the parent of one of its contexts")
		}
	})
}

// stopMe is the child of TestAStoppedProcessKnowsWhenItWakes: it holds a lock for 300ms without looking, and says what it sees first when told to
// look.
func stopMe() bool {
	if os.Getenv("DLOCK_TEST_STOP_ME") == "" {
		return false
	}
	l, err := dlock.New(memory.New(), &dlock.Config{DefaultTTL: 300 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	x, err := dlock.Acquire(context.Background(), l, "k")
	if err != nil {
		panic(err)
	}
	began, last := time.Now(), time.Now()
	fmt.Println("held", x.Held())
	// The parent stops this process anywhere from here on, and continues it later than the TTL.
	for last.Sub(began) < 20*time.Second {
		now := time.Now()
		if now.Sub(last) > 500*time.Millisecond {
			fmt.Println("held", x.Held())
			return true
		}
		last = now
	}
	fmt.Println("never stopped")
	return true
}

func TestAStoppedProcessKnowsWhenItWakes(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DLOCK_TEST_STOP_ME=1", "GOCOVERDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	if got := lines.Text(); got != "held true" {
		t.Fatalf("child says %q before the pause", got)
	}
	if err := proc.Stop(cmd.Process); err != nil {
		t.Fatal(err)
	}
	time.Sleep(900 * time.Millisecond)
	if err := proc.Continue(cmd.Process); err != nil {
		t.Fatal(err)
	}
	lines.Scan()
	if got := strings.TrimSpace(lines.Text()); got != "held false" {
		t.Errorf("the first look after the pause says %q, want held false", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWithoutAStartTheDeadlineCountsFromTheSending(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: time.Second})
		n.on(slowReply(300*time.Millisecond), opAcquire)
		begin := time.Now()
		x := acquire(t, l, "k", dlock.WithoutRenewal())
		if got, want := x.ValidUntil(), deadline(begin, time.Second); !got.Equal(want) {
			t.Errorf("ValidUntil is %v after the sending, want %v", got.Sub(begin), want.Sub(begin))
		}
		n.on(slowReply(200*time.Millisecond), opRenew)
		begin = time.Now()
		if err := x.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		if got, want := x.ValidUntil(), deadline(begin, time.Second); !got.Equal(want) {
			t.Errorf("ValidUntil is %v after the sending of Extend, want %v", got.Sub(begin), want.Sub(begin))
		}
	})
}

func TestWithoutAStartARenewalCountsFromItsSending(t *testing.T) {
	for name, remote := range map[string]func(p plain) driver.Backend{
		"one by one": func(p plain) driver.Backend { return p },
		"in batches": func(p plain) driver.Backend { return plainBatch{p} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p, n := newPlain()
				l := open(t, remote(p), dlock.Config{DefaultTTL: 6 * time.Second})
				x := acquire(t, l, "k")
				n.on(slowReply(500*time.Millisecond), opRenew, opBatch)
				time.Sleep(2900 * time.Millisecond)
				renewals := n.requests(opRenew, opBatch)
				if len(renewals) != 1 {
					t.Fatalf("%d renewals were sent in half a TTL, want 1", len(renewals))
				}
				if got, want := x.ValidUntil(), deadline(renewals[0].at, 6*time.Second); !got.Equal(want) {
					t.Errorf("ValidUntil is %v after the renewal's sending, want %v", got.Sub(renewals[0].at), want.Sub(renewals[0].at))
				}
			})
		})
	}
}

func TestAGrantAfterALongWaitCountsFromItsStart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{}), open(t, other, dlock.Config{})
		theirs := acquire(t, lo, "k")
		time.AfterFunc(time.Minute, func() { _ = theirs.Unlock(t.Context()) })
		begin := time.Now()
		x := acquire(t, l, "k")
		if got, want := x.ValidUntil(), deadline(begin.Add(time.Minute), 10*time.Second); !got.Equal(want) {
			t.Errorf("ValidUntil is %v from S + T - m, where S is the grant's Start", got.Sub(want))
		}
		if got := len(n.requests(opWait)); got != 1 {
			t.Errorf("%d requests for one long wait, want 1", got)
		}
	})
}

// coarse is a store that counts whole seconds.
type coarse struct{ *network }

func (b coarse) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	c.TTL = (c.TTL + time.Second - 1).Truncate(time.Second)
	g, err := b.network.Acquire(ctx, c)
	return driver.Grant{Fence: g.Fence, TTL: c.TTL}, err
}

func TestTheDeadlineCountsWhatTheStoreReallySet(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, coarse{newNetwork()}, dlock.Config{MaxRetries: 1})
		begin := time.Now()
		x := acquire(t, l, "k", dlock.WithTTL(1200*time.Millisecond))
		if got, want := x.ValidUntil(), deadline(begin, 2*time.Second); !got.Equal(want) {
			t.Errorf("ValidUntil is %v after the sending, want %v", got.Sub(begin), want.Sub(begin))
		}
	})
}

func TestAContextMadeAfterAPauseIsOver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, memory.New(), dlock.Config{DefaultTTL: time.Second})
		x := acquire(t, l, "k")
		x.Pause(2 * time.Second)
		ctx := x.Context(t.Context())
		select {
		case <-ctx.Done():
		default:
			t.Error("Done is open")
		}
	})
}

func TestAnAnswerAfterTheDeadlineSavesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: 12 * time.Second})
		x := acquire(t, l, "k")
		n.on(slowReply(time.Second), opRenew)
		for len(n.requests(opRenew)) == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		x.Pause(8 * time.Second) // beyond the deadline, and not beyond what the renewal would give
		time.Sleep(1500 * time.Millisecond)
		if x.Held() {
			t.Error("a renewal that was confirmed after the deadline brought the hold back")
		}
	})
}

func TestAContextThatEndedIsForgotten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, memory.New(), dlock.Config{})
		x := acquire(t, l, "k")
		for range 100 {
			parent, cancel := context.WithCancel(t.Context())
			_ = x.Context(parent)
			cancel()
		}
		synctest.Wait()
		if got := x.Contexts(); got != 0 {
			t.Errorf("a long hold keeps %d contexts that ended", got)
		}
	})
}

// regranted is a store that gave the key to the same token once more, after it was taken away.
type regranted struct {
	*network
	again atomic.Bool
}

func (r *regranted) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := r.network.Renew(ctx, c)
	if r.again.Load() {
		g.Fence++
	}
	return g, err
}

func TestARenewalOfAnotherGrantIsALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := &regranted{network: newNetwork()}
		l := open(t, b, dlock.Config{})
		x := acquire(t, l, "k")
		time.Sleep(time.Minute)
		if !x.Held() {
			t.Fatal(x.Err())
		}
		b.again.Store(true)
		time.Sleep(4 * time.Second)
		wantErr(t, "Err", x.Err(), dlock.ErrOwnershipLost)
	})
}
