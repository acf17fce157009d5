package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// A1
func TestAnAcquireWhoseReplyIsLostIsNeverHeldByAnother(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for _, try := range []bool{true, false} {
		t.Run(fmt.Sprintf("try=%v", try), func(t *testing.T) {
			t.Parallel()
			p := faultproxy.New(t, s.Cluster[0].Addr)
			l := openLocker(t, 30*time.Second, p.Addr)
			warmUp(t, l)
			key := fmt.Sprint("a1-", try)
			p.Set(faultproxy.Rules{DropDown: true})
			type result struct {
				x   *dlock.Lease
				err error
			}
			got := make(chan result, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				if try {
					x, ok, err := dlock.TryAcquire(ctx, l, key)
					if !ok && err == nil {
						err = errors.New("TryAcquire said that another owner has the key")
					}
					got <- result{x, err}
					return
				}
				x, err := dlock.Acquire(ctx, l, key)
				got <- result{x, err}
			}()
			faulttest.Eventually(t, 10*time.Second, "the acquire is applied", func() bool { return s.count(t, key) == 1 })
			p.CutAndHeal()
			r := faulttest.Receive(t, "the acquire's result", got)
			if r.err != nil {
				t.Fatalf("%v: want the lease, which its token has", r.err)
			}
			if keys := s.contenders(t, key); len(keys) != 1 || !r.x.Held() {
				t.Errorf("held %v, and the server has %d keys; want true and 1", r.x.Held(), len(keys))
			}
		})
	}
}

// A3
func TestAReleaseThatIsRepeatedDoesNotTouchTheNextHolder(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	p := faultproxy.New(t, s.Cluster[0].Addr)
	a, b := openBackend(t, p.Addr), openBackend(t, s.Cluster[0].Addr)
	ca, cb := faulttest.Claim("a3", 30*time.Second), faulttest.Claim("a3", 30*time.Second)
	if _, err := a.Acquire(t.Context(), ca); err != nil {
		t.Fatal(err)
	}
	p.Set(faultproxy.Rules{DropDown: true})
	released := make(chan error, 1)
	go func() { released <- a.Release(context.Background(), ca) }()
	faulttest.Eventually(t, 10*time.Second, "the release is applied", func() bool { return s.count(t, "a3") == 0 })
	p.CutAndHeal()
	if err := faulttest.Receive(t, "Release", released); errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release whose reply was lost = %v: it cannot know that", err)
	}
	if _, err := b.Acquire(t.Context(), cb); err != nil {
		t.Fatal(err)
	}
	before := s.contenders(t, "a3")[0]
	if err := a.Release(t.Context(), ca); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release, repeated = %v, want ErrNotOwner", err)
	}
	if now := s.contenders(t, "a3"); len(now) != 1 || now[0].CreateRevision != before.CreateRevision {
		t.Errorf("the next holder's key was %v, and now there are %v", before, now)
	}
}

// A3. One claim after the other may have a key of the same name. A delete arrives when the next one has it.
func TestADeleteThatArrivesLateDoesNotTouchTheNextHolder(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for name, c := range map[string]struct {
		first func(ctx context.Context, send func(context.Context) error, giveUp func()) error // what the caller of the first delete is told, which arrives later
		again bool                                                                             // the release has to be repeated
	}{
		"its caller has given it up": {again: true, first: func(ctx context.Context, _ func(context.Context) error, giveUp func()) error {
			giveUp()
			<-ctx.Done()
			return ctx.Err()
		}},
		"a proxy has given it up, and the client has repeated it": {first: func(ctx context.Context, send func(context.Context) error, _ func()) error {
			time.Sleep(1100 * time.Millisecond)
			return send(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, w := dialWire(t, s.Addrs()...)
			b := etcddriver.New(client).(*etcddriver.Backend)
			t.Cleanup(func() { _ = b.Close() })
			ca, cb := faulttest.Claim("a3 "+name, 30*time.Second), faulttest.Claim("a3 "+name, 30*time.Second)
			if _, err := b.Acquire(t.Context(), ca); err != nil {
				t.Fatal(err)
			}
			late := make(chan func(context.Context) error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
				if !deletes(req) || len(late) > 0 {
					return send(ctx)
				}
				late <- send
				return c.first(ctx, send, cancel)
			})
			err := b.Release(ctx, ca)
			if c.again {
				if err == nil || errors.Is(err, driver.ErrNotOwner) {
					t.Fatalf("Release that is stuck = %v, want an unknown outcome", err)
				}
				err = b.Release(t.Context(), ca)
			}
			if err != nil {
				t.Fatal(err)
			}
			g, err := b.Acquire(t.Context(), cb)
			if err != nil {
				t.Fatal(err)
			}
			if err := (<-late)(t.Context()); err != nil {
				t.Fatal(err)
			}
			if keys := s.contenders(t, ca.Key); len(keys) != 1 || uint64(keys[0].CreateRevision) != g.Fence/256 {
				t.Errorf("the next holder has the fence %d, and the server %v", g.Fence, keys)
			}
		})
	}
}

// A3. The key is lost while its release is on its way, and so another claim may have one before that arrives.
func TestAReleaseThatIsOnItsWayDoesNotTouchTheNextHolder(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client).(*etcddriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	ca, cb := faulttest.Claim("a3", 30*time.Second), faulttest.Claim("a3", 30*time.Second)
	if _, err := b.Acquire(t.Context(), ca); err != nil {
		t.Fatal(err)
	}
	sent, deliver := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		if deletes(req) {
			once.Do(func() { close(sent) })
			<-deliver
		}
		return send(ctx)
	})
	released := make(chan error, 1)
	go func() { released <- b.Release(context.Background(), ca) }()
	faulttest.Receive(t, "the release", sent)
	if _, err := s.witness.Delete(t.Context(), string(s.contenders(t, "a3")[0].Key)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(t.Context(), ca); !errors.Is(err, driver.ErrNotOwner) {
		t.Fatalf("Renew of a key that is gone = %v, want ErrNotOwner", err)
	}
	g, err := b.Acquire(t.Context(), cb)
	if err != nil {
		t.Fatal(err)
	}
	close(deliver)
	if err := faulttest.Receive(t, "Release", released); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release = %v, want ErrNotOwner", err)
	}
	if keys := s.contenders(t, "a3"); len(keys) != 1 || uint64(keys[0].CreateRevision) != g.Fence/256 {
		t.Errorf("the next holder has the fence %d, and the server %v", g.Fence, keys)
	}
	if err := b.Release(t.Context(), cb); err != nil {
		t.Error(err)
	}
}

// A6. The driver asks again when it gets no answer, and the first request arrives when all is over: the engine knows nothing of it.
func TestARequestThatWasRepeatedLeavesNothingWhenItArrivesLate(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			t.Parallel()
			key := fmt.Sprint("a6-", held)
			addr := s.Cluster[0].Addr
			l, w := wiredLocker(t, time.Minute, addr, strings.Replace(addr, "127.0.0.1", "localhost", 1))
			warmUp(t, l)
			faulttest.Hold(t, l, "a6 keeps the lease "+key)
			o, c := openBackend(t, addr), faulttest.Claim(key, time.Minute)
			if held {
				acquired(t, o, c)
			}
			late := make(chan func(context.Context) error, 1)
			w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
				if len(putsOf(req, key)) == 0 || len(late) > 0 {
					return send(ctx)
				}
				late <- send
				<-ctx.Done()
				return ctx.Err()
			})
			x, ok, err := dlock.TryAcquire(bounded(t), l, key)
			switch {
			case err != nil || ok == held:
				t.Fatalf("TryAcquire = %v, %v, and held by another is %v", ok, err, held)
			case held:
				err = o.Release(bounded(t), c)
			default:
				err = x.Unlock(bounded(t))
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := faulttest.Receive(t, "the first request", late)(bounded(t)); err != nil {
				t.Fatal(err)
			}
			faulttest.Eventually(t, 10*time.Second, "the key that nobody wants is gone", func() bool { return s.count(t, key) == 0 })
		})
	}
}

// deletes reports whether req may delete a key.
func deletes(req any) bool {
	switch req := req.(type) {
	case *pb.DeleteRangeRequest:
		return true
	case *pb.TxnRequest:
		return slices.ContainsFunc(req.Success, func(op *pb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
	default:
		return false
	}
}

// A6
func TestALeaderKilledDuringAcquiresLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	s := startSite(t, 3)
	l := openLocker(t, 30*time.Second, s.Addrs()...)
	warmUp(t, l)
	const workers, each = 20, 10
	var had, failed, busy sync.Map
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			for i := range each {
				key := fmt.Sprintf("a6-%d-%d", w, i)
				// What comes to a member without a leader is dropped there, and answered after five seconds.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				x, ok, err := dlock.TryAcquire(ctx, l, key)
				switch {
				case ok:
					had.Store(key, x)
				case err != nil:
					failed.Store(key, err)
				default:
					busy.Store(key, true)
				}
				cancel()
				time.Sleep(rand.N(200 * time.Millisecond))
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	kills := 0
	for over := false; !over; {
		leader := s.Leader(t)
		leader.Kill()
		kills++
		s.Leader(t)
		if err := leader.Run(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			over = true
		case <-time.After(500*time.Millisecond + rand.N(500*time.Millisecond)):
		}
	}
	s.Leader(t)
	holds := map[string]*dlock.Lease{}
	had.Range(func(key, x any) bool { holds[key.(string)] = x.(*dlock.Lease); return true })
	errs := 0
	failed.Range(func(any, any) bool { errs++; return true })
	busy.Range(func(key, _ any) bool {
		t.Errorf("%v: another owner has it, said TryAcquire, but nobody else wants it", key)
		return true
	})
	t.Logf("%d leaders killed during %d acquires: %d had, %d failed", kills, workers*each, len(holds), errs)
	for key, x := range holds {
		if keys := s.contenders(t, key); !x.Held() || len(keys) != 1 || uint64(keys[0].CreateRevision) != x.Fence()/256 {
			t.Errorf("%s: held %v with fence %d, and the server has %v", key, x.Held(), x.Fence(), keys)
		}
	}
	orphans := func() (n int) {
		names, err := s.left(t.Context(), "a6-")
		if err != nil {
			return -1
		}
		return len(names) - len(holds)
	}
	faulttest.Eventually(t, 10*time.Second, "every key that nobody was given is gone", func() bool { return orphans() == 0 })
}

// B1. It does not run beside other tests, which would leave too little of the machine for some hundred releases a second.
func TestACancelledAcquireReturnsAtOnceAndLeavesNothing(t *testing.T) {
	s := startSite(t, 1)
	p := faultproxy.New(t, s.Cluster[0].Addr)
	l := openLocker(t, 30*time.Second, p.Addr)
	warmUp(t, l)
	late := faulttest.Lateness(t)
	for i := range 200 {
		p.Set(faultproxy.Rules{DelayUp: rand.N(time.Millisecond), DelayDown: rand.N(time.Millisecond)})
		faulttest.CancelAcquire(t, l, fmt.Sprint("b1-", i), rand.N(6*time.Millisecond), i%2 == 0, late)
	}
	p.Heal()
	s.allGone(t, "b1-", late)
}

// B1
func TestACancelledAcquireLeavesNothingWhenTheNetworkHeals(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Rules{
		"replies vanish": {DropDown: true},
		"all vanishes":   {DropDown: true, DropUp: true},
		"requests wait":  {HoldUp: true},
		"replies wait":   {HoldDown: true},
		"all waits":      {HoldUp: true, HoldDown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSite(t, 1)
			p := faultproxy.New(t, s.Cluster[0].Addr)
			l := openLocker(t, 30*time.Second, p.Addr)
			warmUp(t, l)
			late := faulttest.Lateness(t)
			p.Set(fault)
			for i := range 6 {
				faulttest.CancelAcquire(t, l, fmt.Sprint("b1-", i), 5*time.Millisecond+rand.N(50*time.Millisecond), i%2 == 0, late)
			}
			p.Heal()
			if fault.DropUp || fault.DropDown { // a stream with a hole in it is not one: such a connection ends
				p.CutAll()
			}
			s.allGone(t, "b1-", late)
			if err := faulttest.Hold(t, l, "b1-after").Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// allGone sees that no key is left within a second that begins with prefix, or somewhat later if the server is slow to answer.
func (s *site) allGone(t *testing.T, prefix string, late func() time.Duration) {
	t.Helper()
	var slowest time.Duration
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		asked := time.Now()
		names, err := s.left(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 0 {
			return
		}
		slowest = max(slowest, time.Since(asked))
		if limit := time.Second + late() + 10*slowest; asked.Sub(began) > limit {
			t.Fatalf("after %v %d keys are left, the first of them %q", limit, len(names), names[0])
		}
	}
}

// B2
func TestAContextThatIsDoneSendsNothing(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	c, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(c).(*etcddriver.Backend)
	l, err := dlock.New(etcddriver.New(c), &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	faulttest.UseDoneContext(t, l, b)
	if n := w.requests.Load(); n > 0 {
		t.Errorf("%d requests were sent, want none", n)
	}
}

// B3
func TestCancellingTheContextOfAnAcquireDoesNotEndTheHold(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	const ttl = 3 * time.Second
	l := openLocker(t, ttl, s.Addrs()...)
	ctx, cancel := context.WithCancel(t.Context())
	x, err := dlock.Acquire(ctx, l, "b3")
	if err != nil {
		t.Fatal(err)
	}
	first := x.ValidUntil()
	cancel()
	faulttest.Eventually(t, 5*ttl, "renewals move the deadline by more than a TTL", func() bool { return x.ValidUntil().After(first.Add(ttl)) })
	if n := s.count(t, "b3"); !x.Held() || n != 1 {
		t.Errorf("held %v, the server has %d keys", x.Held(), n)
	}
}

// B4
func TestUnlockWithACancelledContextIsStillSent(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	l := openLocker(t, 30*time.Second, s.Addrs()...)
	x := faulttest.Hold(t, l, "b4")
	gone := s.freed(t, "b4")
	late := faulttest.Lateness(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	called := time.Now()
	if err := x.Unlock(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Unlock = %v, want nil or the context's error", err)
	}
	if x.Held() {
		t.Error("held after Unlock")
	}
	if took := faulttest.Receive(t, "the deletion of the key", gone).Sub(called); took > 2*time.Second+late() {
		t.Errorf("the key was deleted after %v, want it at once", took)
	}
}

// B5
func TestAWaiterThatGivesUpLeavesTheQueueAndDelaysNobody(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	holder, first, second := openLocker(t, 30*time.Second, s.Addrs()...), openLocker(t, 30*time.Second, s.Addrs()...), openLocker(t, 30*time.Second, s.Addrs()...)
	x := faulttest.Hold(t, holder, "b5")
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	before := s.watchers(t)
	go func() { gaveUp <- first.Lock(ctx, "b5") }()
	faulttest.Eventually(t, 10*time.Second, "the first waits", func() bool { return s.count(t, "b5") == 2 && s.watchers(t) >= before+2 })
	next := make(chan *dlock.Lease, 1)
	go func() {
		y, _ := dlock.Acquire(t.Context(), second, "b5")
		next <- y
	}()
	faulttest.Eventually(t, 10*time.Second, "the second waits", func() bool { return s.count(t, "b5") == 3 && s.watchers(t) >= before+4 })
	slow := s.slowness(t)
	cancel()
	if err := faulttest.Receive(t, "Lock", gaveUp); !errors.Is(err, context.Canceled) || !errors.Is(err, dlock.ErrNotAcquired) {
		t.Errorf("Lock = %v, want ErrNotAcquired and context.Canceled", err)
	}
	var counting time.Duration // of the watches, which takes a busy server long
	watchers := func() int {
		began := time.Now()
		defer func() { counting = max(counting, time.Since(began)) }()
		return s.watchers(t)
	}
	soon := func() time.Duration { return time.Second + 2*slow() + 2*counting }
	faulttest.Within(t, soon, "its entry and its watches are gone", func() bool { return s.count(t, "b5") == 2 && watchers() <= before+3 })
	began := time.Now()
	if err := x.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	y := faulttest.Receive(t, "Acquire", next)
	if took := time.Since(began); y == nil || took > 100*time.Millisecond+2*slow() {
		t.Errorf("the second had %v after %v, want it at once", y, took)
	}
	faulttest.Within(t, soon, "no watch of the waiters is left, but for one that may keep a client's stream open", func() bool {
		return watchers() <= before+2
	})
}

// B6
func TestCloseEndsEverythingAndNothingIsWrittenAfterwards(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	for name, fault := range faulttest.CloseFaults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSite(t, 1)
			p := faultproxy.New(t, s.Cluster[0].Addr)
			l, w := wiredLocker(t, ttl, p.Addr)
			if _, err := openBackend(t, s.Addrs()...).Acquire(t.Context(), faulttest.Claim("busy", time.Minute)); err != nil {
				t.Fatal(err)
			}
			var sent int64
			began := faulttest.CloseInUse(t, faulttest.Closing{
				Locker: l, Proxy: p,
				Waits:  func() bool { return s.count(t, "busy") == 2 },
				Closed: func() { sent = w.requests.Load() - w.watches.Load() },
			}, fault)
			p.Heal()
			// A renewal that somebody forgot would come within the TTL, and what nobody renews is gone soon after it.
			faulttest.Eventually(t, 3*ttl+5*time.Second, "all keys of the Locker are gone", func() bool {
				return s.count(t, "held")+s.count(t, "flying")+s.count(t, "unlocking") == 0 && s.count(t, "busy") == 1 && time.Since(began) > ttl
			})
			// The client makes watches again and ends them on its own account. Nothing is written by that.
			if n := w.requests.Load() - w.watches.Load() - sent; n > 0 {
				t.Errorf("%d requests were sent after Close, want none", n)
			}
		})
	}
}

// B6. The engine waits 400 ms for a Backend, and then returns without it.
func TestABackendThatReachesNobodyIsClosedInTime(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	for name, fault := range map[string]faultproxy.Rules{"all vanishes": {DropUp: true, DropDown: true}, "connections are shut": {CutAtReply: 1, Refuse: true}} {
		p := faultproxy.New(t, s.Cluster[0].Addr)
		b := openBackend(t, p.Addr)
		if _, err := b.Acquire(t.Context(), faulttest.Claim("b6 "+name, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
		late := faulttest.Lateness(t)
		p.Set(fault)
		began := time.Now()
		_ = b.Close()
		if took := time.Since(began); took > 400*time.Millisecond+late() {
			t.Errorf("%s: Close took %v, want at most 400ms", name, took)
		}
	}
}
