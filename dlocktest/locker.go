package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// Locker is a real Locker on a store in memory, with the means to make things go wrong. It is a
// [dlock.LeaseLocker], so that whoever holds a lock through it, by dlock.Do, by Acquire or by plain
// Lock, sees what would be seen with a store in the network.
//
// Its methods may be called from any goroutine while the test runs. A Locker belongs to the
// testing/synctest bubble in which NewLocker was called, or to none, and so do its leases: its
// methods fail the test when they are called anywhere else.
type Locker struct {
	t      testing.TB
	inner  dlock.LeaseLocker
	dsn    string
	set    settings
	b      *faulty
	side   *memory.Backend // looks into the store, and never fails
	bubble string          // the synctest bubble that it belongs to

	mu     sync.Mutex
	leases map[string][]*dlock.Lease // those that Acquire and TryAcquire handed out, by key
}

var _ dlock.LeaseLocker = (*Locker)(nil)

// Option changes what NewLocker makes.
type Option func(*settings)

type settings struct {
	cfg     dlock.Config
	options []dlock.Option
}

// WithConfig makes the Locker behave by cfg, of which Driver is only a name for messages and DSN is
// ignored. Default: the zero Config.
func WithConfig(cfg dlock.Config) Option { return func(s *settings) { s.cfg = cfg } }

// WithOptions hands opts to dlock.New: a logger, a meter, a tracer. Default: none.
func WithOptions(opts ...dlock.Option) Option { return func(s *settings) { s.options = opts } }

// holderPatience is how long Lose and Expire wait for somebody to hold the key: the service under
// test may just have begun.
const holderPatience = 10 * time.Second

var stores atomic.Int64

// NewLocker returns a Locker on an empty store of its own, which is closed when the test is over.
// In a testing/synctest bubble its time is the bubble's: call NewLocker within the function that
// synctest.Test runs, with the t of that function.
func NewLocker(t testing.TB, opts ...Option) *Locker {
	t.Helper()
	var set settings
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	return newLocker(t, fmt.Sprintf("memory://dlocktest-%d", stores.Add(1)), set)
}

func newLocker(t testing.TB, dsn string, set settings) *Locker {
	t.Helper()
	l := &Locker{
		t: t, dsn: dsn, set: set, b: newFaulty(openMemory(t, dsn)), side: openMemory(t, dsn), bubble: bubble(),
		leases: map[string][]*dlock.Lease{},
	}
	l.b.blocks = true
	inner, err := dlock.New(l.b, &set.cfg, set.options...)
	if err != nil {
		t.Fatalf("dlocktest: NewLocker: %v", err)
	}
	l.inner = inner.(dlock.LeaseLocker)
	t.Cleanup(l.cleanUp)
	return l
}

// cleanUp closes l at the end of the test.
func (l *Locker) cleanUp() {
	if bubble() != l.bubble {
		l.t.Errorf("dlocktest: NewLocker was called in a testing/synctest bubble with a t from outside; " +
			"give it the t that synctest.Test hands over")
		return
	}
	l.b.slow(0)
	_ = l.inner.Close()
	_ = l.side.Close()
}

func openMemory(t testing.TB, dsn string) *memory.Backend {
	t.Helper()
	b, err := memory.Driver{}.Open(dsn)
	if err != nil {
		t.Fatalf("dlocktest: %v", err)
	}
	return b.(*memory.Backend)
}

// Peer returns another Locker on the same store, as another process would have it: to hold a key
// against the service under test, or to see that a key is free. What Fail, Slow, LoseReply, Lose
// and Expire do to one Locker they do not do to the other.
func (l *Locker) Peer() *Locker {
	l.t.Helper()
	if l.misplaced("Peer") != nil {
		return NewLocker(l.t) // on a store of its own, in order not to mix what belongs to two bubbles
	}
	return newLocker(l.t, l.dsn, l.set)
}

// Lose takes key away from its holder and tells it so, as when an operator deletes the key. When
// Lose returns, the holder's Done is closed and the context of its Do or Lease has ended, with
// dlock.ErrOwnershipLost as its cause; its Unlock will answer the same, and the key is free. It
// ends one hold: should that be unlocked in the same moment, either its Unlock answers
// dlock.ErrOwnershipLost, or the next hold is lost.
//
// If nobody holds key through this Locker, Lose waits for somebody who does, and fails the test
// after ten seconds. What a [Locker.Peer] holds is lost by the Lose of that Peer.
func (l *Locker) Lose(key string) {
	l.t.Helper()
	if l.misplaced("Lose") != nil {
		return
	}
	x, claim := l.take(key, "Lose", cutGone)
	if x == nil {
		return
	}
	_ = l.side.Release(context.Background(), claim)
	for _, x := range l.sharing(x) {
		// Whatever comes of the extension, the holder learns of the loss from the answer, or else
		// from the next renewal.
		_ = x.Extend(context.Background(), l.ttl())
		<-x.Done()
	}
}

// Expire lets the hold of key run out, as when the store cannot be reached for longer than the TTL:
// no renewal succeeds any more, and Expire returns when the deadline has passed. The holder has
// then been told as by Lose, and the key is free. In a synctest bubble this takes no time; in real
// time it takes what is left of the TTL. A holder that unlocks meanwhile has not seen its lock
// expire, and that fails the test.
//
// If nobody holds key through this Locker, Expire waits for somebody who does, and fails the test
// after ten seconds. What a [Locker.Peer] holds expires by the Expire of that Peer.
func (l *Locker) Expire(key string) {
	l.t.Helper()
	if l.misplaced("Expire") != nil {
		return
	}
	x, claim := l.take(key, "Expire", cutSilent)
	if x == nil {
		return
	}
	var end error
	for _, x := range l.sharing(x) {
		<-x.Done()
		if end = x.Err(); errors.Is(end, dlock.ErrOwnershipLost) {
			break
		}
	}
	_ = l.side.Release(context.Background(), claim)
	if !errors.Is(end, dlock.ErrOwnershipLost) {
		l.t.Errorf("dlocktest: Expire(%q): the hold did not expire, it ended before: %v", key, end)
		return // and the Unlock that ended it, which may be under way, still gets no answer
	}
	l.b.answer(claim)
}

// Fail makes every call to the store fail with err, until Fail(nil). Locks that are held are lost
// when their TTL has passed. An err made by driver.Permanent is one that Lock does not try to
// outlast.
func (l *Locker) Fail(err error) {
	l.t.Helper()
	if l.misplaced("Fail") == nil {
		l.b.fail(err)
	}
}

// Slow makes every call to the store take d, until Slow(0). The store applies a request halfway:
// what is given up on before then never happens, and after that happens unseen. Renewals are calls
// too: locks are kept while d is a tenth of their TTL, and lost when d is all of it. Lose and
// Expire are not slowed down.
func (l *Locker) Slow(d time.Duration) { l.b.slow(d) }

// LoseReply makes the store's next reply get lost: the request is applied, and the call fails as if
// the connection had broken before the reply came. Lock and TryLock find out what became of it; an
// Unlock may have to return an error that is not dlock.ErrOwnershipLost, although the lock is free.
// Replies to renewals, which come and go by themselves, are not counted: nobody can see that one
// was lost. Called n times, it loses the next n.
func (l *Locker) LoseReply() { l.b.loseReply() }

// Held reports whether anybody holds key, through this Locker or through a Peer.
func (l *Locker) Held(key string) bool {
	l.t.Helper()
	return l.misplaced("Held") == nil && l.held(key)
}

func (l *Locker) held(key string) bool {
	info, err := l.side.Inspect(context.Background(), l.storeKey(key))
	return err == nil && info.Fence != 0
}

func (l *Locker) storeKey(key string) string { return l.set.cfg.Prefix + key }

// ttl is one that the Locker accepts.
func (l *Locker) ttl() time.Duration {
	if l.set.cfg.DefaultTTL != 0 {
		return l.set.cfg.DefaultTTL
	}
	return 10 * time.Second
}

// take takes key from whoever holds it through this Locker, and returns its lease and claim. A hold
// that is unlocked meanwhile is left alone, and the next one is taken. Without a holder take fails
// the test and returns nil.
func (l *Locker) take(key, op string, how cut) (*dlock.Lease, driver.Claim) {
	l.t.Helper()
	for end := time.Now().Add(holderPatience); ; time.Sleep(time.Millisecond) {
		for _, x := range l.known(key) {
			if c, ok := l.takeFrom(x, how); ok {
				return x, c
			}
		}
		if time.Now().Before(end) {
			continue
		}
		if l.held(key) {
			l.t.Errorf("dlocktest: %s(%q): nobody holds it through this Locker, but a Peer does; "+
				"call %s of that Peer", op, key, op)
		} else {
			l.t.Errorf("dlocktest: %s(%q): nobody holds it", op, key)
		}
		return nil, driver.Claim{}
	}
}

// takeFrom takes its key from the holder of x, and from nobody else.
func (l *Locker) takeFrom(x *dlock.Lease, how cut) (driver.Claim, bool) {
	if !x.Held() {
		return driver.Claim{}, false
	}
	return l.b.take(l.storeKey(x.Key()), x.Fence(), how)
}

// sharing returns x and the other leases of the same hold: a Reentrant Locker may have locked
// again.
func (l *Locker) sharing(x *dlock.Lease) []*dlock.Lease {
	others := slices.DeleteFunc(l.known(x.Key()), func(o *dlock.Lease) bool { return o == x || o.Fence() != x.Fence() })
	return append(others, x)
}

// known returns the leases of key that may be held.
func (l *Locker) known(key string) []*dlock.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	leases := slices.Clone(l.leases[key])
	if x, ok := dlock.LeaseOf(l.inner, key); ok {
		leases = append(leases, x)
	}
	return leases
}

// note keeps x for lease, and forgets those of its key that have ended.
func (l *Locker) note(x *dlock.Lease) {
	if x == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := []*dlock.Lease{x}
	for _, old := range l.leases[x.Key()] {
		if old.Held() {
			kept = append(kept, old)
		}
	}
	l.leases[x.Key()] = kept
}

// Lock implements [dlock.Locker].
func (l *Locker) Lock(ctx context.Context, key string, opts ...dlock.LockOption) error {
	l.t.Helper()
	if err := l.misplaced("Lock"); err != nil {
		return err
	}
	return l.inner.Lock(ctx, key, opts...)
}

// TryLock implements [dlock.Locker].
func (l *Locker) TryLock(ctx context.Context, key string, opts ...dlock.LockOption) (bool, error) {
	l.t.Helper()
	if err := l.misplaced("TryLock"); err != nil {
		return false, err
	}
	return l.inner.TryLock(ctx, key, opts...)
}

// Unlock implements [dlock.Locker].
func (l *Locker) Unlock(ctx context.Context, key string) error {
	l.t.Helper()
	if err := l.misplaced("Unlock"); err != nil {
		return err
	}
	return l.inner.Unlock(ctx, key)
}

// Close implements [dlock.Locker]. It is called when the test is over.
func (l *Locker) Close() error {
	l.t.Helper()
	if err := l.misplaced("Close"); err != nil {
		return err
	}
	return l.inner.Close()
}

// Acquire implements [dlock.LeaseLocker].
func (l *Locker) Acquire(ctx context.Context, key string, opts ...dlock.LockOption) (*dlock.Lease, error) {
	l.t.Helper()
	if err := l.misplaced("Acquire"); err != nil {
		return nil, err
	}
	x, err := l.inner.Acquire(ctx, key, opts...)
	l.note(x)
	return x, err
}

// TryAcquire implements [dlock.LeaseLocker].
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...dlock.LockOption) (*dlock.Lease, bool, error) {
	l.t.Helper()
	if err := l.misplaced("TryAcquire"); err != nil {
		return nil, false, err
	}
	x, ok, err := l.inner.TryAcquire(ctx, key, opts...)
	l.note(x)
	return x, ok, err
}

// Unwrap returns the Locker behind l: dlock.LeaseOf and dlock.Ping look for it.
func (l *Locker) Unwrap() dlock.Locker {
	l.t.Helper()
	if l.misplaced("Unwrap") != nil {
		return nil
	}
	return l.inner
}
