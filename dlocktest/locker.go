package dlocktest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/drivers/memory"
)

// Locker is a real Locker on a store in memory, with the means to make things go wrong. It is a [dlock.LeaseLocker], so that whoever
// holds a lock through it, by dlock.Do, by Acquire or by plain Lock, sees what would be seen with a store in the network.
//
// Its methods may be called from any goroutine while the test runs.
type Locker struct {
	t     testing.TB
	inner dlock.LeaseLocker
	dsn   string
	set   settings
	b     *faulty
	side  *memory.Backend // looks into the store, and never fails

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

// WithConfig makes the Locker behave by cfg, of which Driver is only a name for messages and DSN is ignored. Default: the zero Config.
func WithConfig(cfg dlock.Config) Option { return func(s *settings) { s.cfg = cfg } }

// WithOptions hands opts to dlock.New: a logger, a meter, a tracer. Default: none.
func WithOptions(opts ...dlock.Option) Option { return func(s *settings) { s.options = opts } }

// holderPatience is how long Lose and Expire wait for somebody to hold the key: the service under test may just have begun.
const holderPatience = 10 * time.Second

var stores atomic.Int64

// NewLocker returns a Locker on an empty store of its own, which is closed when the test is over. In a testing/synctest bubble its time is the bubble's.
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
	l := &Locker{t: t, dsn: dsn, set: set, b: newFaulty(openMemory(t, dsn)), side: openMemory(t, dsn), leases: map[string][]*dlock.Lease{}}
	inner, err := dlock.New(l.b, &set.cfg, set.options...)
	if err != nil {
		t.Fatalf("dlocktest: NewLocker: %v", err)
	}
	l.inner = inner.(dlock.LeaseLocker)
	t.Cleanup(func() {
		_ = inner.Close()
		_ = l.side.Close()
	})
	return l
}

func openMemory(t testing.TB, dsn string) *memory.Backend {
	t.Helper()
	b, err := memory.Driver{}.Open(dsn)
	if err != nil {
		t.Fatalf("dlocktest: %v", err)
	}
	return b.(*memory.Backend)
}

// Peer returns another Locker on the same store, as another process would have it: to hold a key against the service under test, or to
// see that a key is free. What Fail does to one it does not do to the other.
func (l *Locker) Peer() *Locker {
	l.t.Helper()
	return newLocker(l.t, l.dsn, l.set)
}

// Lose takes key away from its holder and tells it so, as when an operator deletes the key. When Lose returns, the holder's Done is closed and the
// context of its Do or Lease has ended, with dlock.ErrOwnershipLost as its cause; its Unlock will answer the same, and the key is free.
//
// If nobody holds key through this Locker, Lose waits for somebody who does, and fails the test after ten seconds.
func (l *Locker) Lose(key string) {
	l.t.Helper()
	x := l.await(key, "Lose")
	if x == nil {
		return
	}
	l.b.cut(l.storeKey(key), cutGone)
	l.drop(key)
	// Whatever comes of the extension, the holder learns of the loss from the answer.
	_ = x.Extend(context.Background(), l.ttl())
}

// Expire lets the hold of key run out, as when the store cannot be reached for longer than the TTL: no renewal succeeds any more, and Expire
// returns when the deadline has passed. The holder has then been told as by Lose, and the key is free. In a synctest bubble this takes no time; in
// real time it takes what is left of the TTL.
//
// If nobody holds key through this Locker, Expire waits for somebody who does, and fails the test after ten seconds.
func (l *Locker) Expire(key string) {
	l.t.Helper()
	x := l.await(key, "Expire")
	if x == nil {
		return
	}
	l.b.cut(l.storeKey(key), cutSilent)
	<-x.Done()
	l.drop(key)
}

// Fail makes every call to the store fail with err, until Fail(nil). Locks that are held are lost when their TTL has passed. An err made by
// driver.Permanent is one that Lock does not try to outlast.
func (l *Locker) Fail(err error) { l.b.fail(err) }

// Held reports whether anybody holds key, through this Locker or through a Peer.
func (l *Locker) Held(key string) bool {
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

// drop removes the hold of key from the store.
func (l *Locker) drop(key string) {
	if c, ok := l.b.holder(l.storeKey(key)); ok {
		_ = l.side.Release(context.Background(), c)
	}
}

// await returns the lease of whoever holds key.
func (l *Locker) await(key, op string) *dlock.Lease {
	l.t.Helper()
	for end := time.Now().Add(holderPatience); ; time.Sleep(time.Millisecond) {
		if x := l.lease(key); x != nil {
			return x
		}
		if time.Now().After(end) {
			l.t.Errorf("dlocktest: %s(%q): nobody holds it", op, key)
			return nil
		}
	}
}

// lease returns the lease of whoever holds key, nil if nobody does.
func (l *Locker) lease(key string) *dlock.Lease {
	if x, ok := dlock.LeaseOf(l.inner, key); ok && x.Held() {
		return x
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.leases[key] {
		if x.Held() {
			return x
		}
	}
	return nil
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
	return l.inner.Lock(ctx, key, opts...)
}

// TryLock implements [dlock.Locker].
func (l *Locker) TryLock(ctx context.Context, key string, opts ...dlock.LockOption) (bool, error) {
	return l.inner.TryLock(ctx, key, opts...)
}

// Unlock implements [dlock.Locker].
func (l *Locker) Unlock(ctx context.Context, key string) error { return l.inner.Unlock(ctx, key) }

// Close implements [dlock.Locker]. It is called when the test is over.
func (l *Locker) Close() error { return l.inner.Close() }

// Acquire implements [dlock.LeaseLocker].
func (l *Locker) Acquire(ctx context.Context, key string, opts ...dlock.LockOption) (*dlock.Lease, error) {
	x, err := l.inner.Acquire(ctx, key, opts...)
	l.note(x)
	return x, err
}

// TryAcquire implements [dlock.LeaseLocker].
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...dlock.LockOption) (*dlock.Lease, bool, error) {
	x, ok, err := l.inner.TryAcquire(ctx, key, opts...)
	l.note(x)
	return x, ok, err
}

// Unwrap returns the Locker behind l: dlock.LeaseOf and dlock.Ping look for it.
func (l *Locker) Unwrap() dlock.Locker { return l.inner }
