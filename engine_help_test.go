package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestMain(m *testing.M) {
	if stopMe() {
		return
	}
	goleak.VerifyTestMain(m)
}

// virtual runs f in virtual time.
func virtual(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func open(tb testing.TB, b driver.Backend, cfg dlock.Config, opts ...dlock.Option) dlock.Locker {
	tb.Helper()
	l, err := dlock.New(b, &cfg, opts...)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

func acquire(t *testing.T, l dlock.Locker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	x, err := dlock.Acquire(t.Context(), l, key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return x
}

func lock(t *testing.T, l dlock.Locker, key string, opts ...dlock.LockOption) {
	t.Helper()
	if err := l.Lock(t.Context(), key, opts...); err != nil {
		t.Fatalf("Lock(%q): %v", key, err)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got error %v, want one matching %v", what, got, want)
	}
}

// within fails unless f returns in at most d.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if took := time.Since(begin); took > d {
		t.Errorf("%s took %v, want at most %v", what, took, d)
	}
}

var errNetwork = errors.New("connection reset")

type op string

const (
	opAcquire op = "acquire"
	opWait    op = "wait"
	opRenew   op = "renew"
	opBatch   op = "batch"
	opRelease op = "release"
	opPing    op = "ping"
)

// sent is one request that reached the network.
type sent struct {
	op    op
	key   string
	token string
	at    time.Time
}

// network is a memory store behind a network that the test controls. It is a remote backend for the engine: every call runs on its own.
type network struct {
	store *memory.Backend

	mu     sync.Mutex
	fault  fault
	log    []sent
	closed bool
}

// fault stands between a request and the store. It may call next, at any time, or not at all.
type fault func(ctx context.Context, o op, next func() error) error

// polled and single take capabilities away.
type polled struct{ *network }

func (polled) Wait(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, errors.ErrUnsupported
}

func newNetwork() *network { return &network{store: memory.New()} }

// named opens a client of the store with the given name.
func named(t *testing.T, name string) *network {
	t.Helper()
	b, err := memory.Driver{}.Open("memory://" + strings.ReplaceAll(name, "/", "."))
	if err != nil {
		t.Fatal(err)
	}
	return &network{store: b.(*memory.Backend)}
}

// on installs a fault for some operations; with none given, for all. nil: healthy.
func (n *network) on(f fault, ops ...op) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
	if f != nil && len(ops) > 0 {
		n.fault = func(ctx context.Context, o op, next func() error) error {
			if slices.Contains(ops, o) {
				return f(ctx, o, next)
			}
			return next()
		}
	}
}

func (n *network) heal() { n.on(nil) }

func (n *network) send(ctx context.Context, o op, c driver.Claim, next func() error) error {
	n.mu.Lock()
	n.log = append(n.log, sent{o, c.Key, c.Token, time.Now()})
	f := n.fault
	n.mu.Unlock()
	if f == nil {
		return next()
	}
	return f(ctx, o, next)
}

// requests returns what was sent, of the given kinds.
func (n *network) requests(ops ...op) []sent {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []sent
	for _, s := range n.log {
		if len(ops) == 0 || slices.Contains(ops, s.op) {
			list = append(list, s)
		}
	}
	return list
}

func (n *network) Acquire(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	err = n.send(ctx, opAcquire, c, func() (err error) { g, err = n.store.Acquire(context.WithoutCancel(ctx), c); return })
	return only(g, err)
}

func (n *network) Wait(ctx context.Context, c driver.Claim, queued func()) (g driver.Grant, err error) {
	err = n.send(ctx, opWait, c, func() (err error) { g, err = n.store.Wait(ctx, c, queued); return })
	return only(g, err)
}

func (n *network) Renew(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	err = n.send(ctx, opRenew, c, func() (err error) { g, err = n.store.Renew(context.WithoutCancel(ctx), c); return })
	return only(g, err)
}

func (n *network) Release(ctx context.Context, c driver.Claim) error {
	return n.send(ctx, opRelease, c, func() error { return n.store.Release(context.WithoutCancel(ctx), c) })
}

func (n *network) Ping(ctx context.Context) error {
	return n.send(ctx, opPing, driver.Claim{}, func() error { return n.store.Ping(ctx) })
}

func (n *network) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	return n.store.Close()
}

func only(g driver.Grant, err error) (driver.Grant, error) {
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// batched is a network that renews in batches.
type batched struct{ *network }

func (b batched) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	var answers []driver.Renewal
	err := b.send(ctx, opBatch, driver.Claim{Key: fmt.Sprint(len(claims))}, func() error {
		answers = b.store.RenewBatch(context.WithoutCancel(ctx), claims)
		return nil
	})
	if err == nil {
		return answers
	}
	answers = make([]driver.Renewal, len(claims))
	for i := range answers {
		answers[i].Err = err
	}
	return answers
}

// The faults.

// refuse never reaches the store.
func refuse(context.Context, op, func() error) error { return errNetwork }

// loseReply reaches the store, and the answer does not come back.
func loseReply(_ context.Context, _ op, next func() error) error {
	_ = next()
	return errNetwork
}

// slow delays the request, and notices when ctx ends.
func slow(d time.Duration) fault {
	return func(ctx context.Context, _ op, next func() error) error {
		select {
		case <-time.After(d):
			return next()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// slowReply reaches the store at once and answers later, whatever ctx says.
func slowReply(d time.Duration) fault {
	return func(_ context.Context, _ op, next func() error) error {
		err := next()
		time.Sleep(d)
		return err
	}
}

// hang does not return before the test says so, whatever ctx says.
func hang(t *testing.T) (f fault, free func()) {
	ch := make(chan struct{})
	free = sync.OnceFunc(func() { close(ch) })
	t.Cleanup(free)
	return func(context.Context, op, func() error) error {
		<-ch
		return errNetwork
	}, free
}

// holder returns who has key in the store, by its fence; 0: nobody.
func (n *network) holder(t *testing.T, key string) uint64 {
	t.Helper()
	info, err := n.store.Inspect(context.Background(), key)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return info.Fence
}

// snatch takes key away from its holder in the store.
func (n *network) snatch(t *testing.T, key string) {
	t.Helper()
	if err := n.store.Break(context.Background(), key, n.holder(t, key)); err != nil {
		t.Fatalf("Break: %v", err)
	}
}

// plain is a network whose driver says no more than it must: no Start, no TTL where the store set just what was asked for, no Wait.
type plain struct{ polled }

func newPlain() (plain, *network) {
	n := newNetwork()
	return plain{polled{n}}, n
}

func (p plain) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := p.network.Acquire(ctx, c)
	return driver.Grant{Fence: g.Fence}, err
}

func (p plain) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := p.network.Renew(ctx, c)
	return driver.Grant{Fence: g.Fence}, err
}

// plainBatch is plain, and renews in batches.
type plainBatch struct{ plain }

func (p plainBatch) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	answers := batched{p.network}.RenewBatch(ctx, claims)
	for i := range answers {
		answers[i].Grant = driver.Grant{Fence: answers[i].Grant.Fence}
	}
	return answers
}

// mute stops a request until ctx ends, and never reaches the store.
func mute(ctx context.Context, _ op, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

// most counts how many requests are under way at the same time, each of which takes d.
func most(d time.Duration, max *atomic.Int32) fault {
	var now atomic.Int32
	return func(_ context.Context, _ op, next func() error) error {
		if m := now.Add(1); m > max.Load() {
			max.Store(m)
		}
		time.Sleep(d)
		now.Add(-1)
		return next()
	}
}

// releases returns how many releases were sent for key.
func (n *network) releases(key string) int {
	return len(slices.DeleteFunc(n.requests(opRelease), func(s sent) bool { return s.key != key }))
}
