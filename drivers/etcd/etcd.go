package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/gather"
)

func init() { driver.Register("etcd", Driver{}) }

// Driver opens etcd clusters by DSN. It is registered as "etcd", and its zero value can be used without the registry.
type Driver struct{}

// Backend is a client of one etcd cluster.
type Backend struct {
	opt  options
	dial *dialer
	id   string // what the names of its keys end in

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	calls  sync.WaitGroup // under way, those in the background included
	pulse  pulse
	gate   gather.Gate[*request]
	limits limits
	stream atomic.Int64 // number of the stream that watches are on; see leaveStream

	mu     sync.Mutex
	closed bool
	slots  map[int64]*slot   // the leases, by TTL in seconds
	book   map[string]*entry // the keys that are in the store, or may be
	names  map[string]*entry // the same by name
	era    int               // of the names that are given now
	past   past
	late   int // keys that may yet arrive, and are deleted then; see sweepLate

	suspect func(key string) // nil: nobody wants to know; see WatchLosses
	anchor  anchor

	closeOnce sync.Once
	closeErr  error
}

var (
	_ driver.Waiter       = (*Backend)(nil)
	_ driver.BatchRenewer = (*Backend)(nil)
	_ driver.LossWatcher  = (*Backend)(nil)
	_ driver.Inspector    = (*Backend)(nil)
	_ driver.Breaker      = (*Backend)(nil)
	_ driver.Pinger       = (*Backend)(nil)
	_ driver.Doctor       = (*Backend)(nil)
	_ driver.CallModer    = (*Backend)(nil)
)

// CallMode is Interruptible: whatever a call waits for, it waits for the end of its context too.
func (b *Backend) CallMode() driver.CallMode { return driver.Interruptible }

type options struct{ namespace string }

// Option changes a Backend that New makes.
type Option func(*options)

// WithNamespace puts prefix in front of every key in the store, as it is: slashes in it are not escaped. Default: "".
func WithNamespace(prefix string) Option { return func(o *options) { o.namespace = prefix } }

// New returns a Backend on a client that the application already has, which stays open when the Backend is closed. It returns nil for a nil
// client; dlock.New then answers ErrConnectorNil.
func New(client *clientv3.Client, opts ...Option) driver.Backend {
	if client == nil {
		return nil
	}
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return newBackend(&dialer{client: client}, o)
}

func newBackend(d *dialer, o options) *Backend {
	b := &Backend{opt: o, dial: d, slots: map[int64]*slot{}, book: map[string]*entry{}, names: map[string]*entry{}}
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails; see crypto/rand
	b.id = hex.EncodeToString(raw[:])
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.limits.began = time.Now()
	b.pulse.opening = make(chan struct{}, 1)
	b.gate = b.newGate()
	return b
}

// background runs f until Close, with a time limit. b.mu is held.
func (b *Backend) background(limit time.Duration, f func(ctx context.Context)) {
	if b.closed {
		return
	}
	b.calls.Go(func() {
		ctx, cancel := context.WithTimeout(b.ctx, limit)
		defer cancel()
		f(ctx)
	})
}

const (
	closeWait  = 100 * time.Millisecond // for the calls under way, which Close has ended
	closeLimit = 300 * time.Millisecond // for all of it. The engine waits 400 ms for a Close, and nothing may be sent later
)

// Close ends the calls under way and revokes this client's leases, and with them whatever of its keys is still in the store. (The engine has
// ended every hold by then.) It takes a third of a second at most, and leaves a client open that New was given.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() { b.closeErr = b.close() })
	return b.closeErr
}

func (b *Backend) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	b.mu.Lock()
	b.closed = true
	var leases []clientv3.LeaseID
	for _, s := range b.slots {
		if l := s.lease; l != nil {
			leases = append(leases, l.id)
			l.dead = true
			l.timer.Stop()
			l.sentinel.stop()
		}
	}
	if b.anchor.idle != nil {
		b.anchor.idle.Stop()
	}
	b.mu.Unlock()
	b.gate.Close()
	b.cancel()
	quiet := make(chan struct{})
	go func() {
		b.calls.Wait()
		b.gate.Wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-time.After(closeWait):
	}
	b.revokeAll(ctx, leases)
	return b.dial.close()
}

// revokeAll revokes leases as far as the server answers before ctx ends. What it does not answer ends by itself.
func (b *Backend) revokeAll(ctx context.Context, leases []clientv3.LeaseID) {
	client := b.dial.made()
	if client == nil {
		return
	}
	var wg sync.WaitGroup
	for _, id := range leases {
		wg.Go(func() { _, _ = client.Revoke(ctx, id) })
	}
	wg.Wait()
}
