package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
)

// Contenders in etcd. Those that begin with "bare" are yardsticks, as in Redis.
var (
	etcdTxn     = contender{name: "bare-txn-delete", open: openEtcdTxn}
	etcdQueue   = contender{name: "bare-queue", open: openEtcdQueue}
	etcdPerLock = contender{name: "concurrency-session-per-lock", open: openEtcdPerLock}
	etcdShared  = contender{name: "concurrency-shared-session", open: openEtcdShared}
	etcdOurs    = contender{name: ours.name, open: openEtcdDlock}

	etcdLone   = []contender{etcdTxn, etcdPerLock, etcdShared, etcdOurs}   // of a key that nobody else wants
	etcdQueued = []contender{etcdQueue, etcdPerLock, etcdShared, etcdOurs} // of a key that other clients want
	etcdLocal  = []contender{etcdQueue, etcdPerLock, etcdOurs}             // of a key that other goroutines want: a shared session does not keep them apart
)

// leased is a client with a lease that is kept alive.
type leased struct {
	c      *clientv3.Client
	lease  clientv3.LeaseID
	cancel context.CancelFunc
}

func openLeased(tb testing.TB, t *target, ttl time.Duration) *leased {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &leased{c: t.etcd(tb), cancel: cancel}
	granted, err := l.c.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		tb.Fatal(err)
	}
	l.lease = granted.ID
	replies, err := l.c.KeepAlive(ctx, l.lease)
	if err != nil {
		tb.Fatal(err)
	}
	go func() {
		for range replies { // they must be taken away
		}
	}()
	return l
}

func (l *leased) close() {
	l.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = l.c.Revoke(ctx, l.lease)
	_ = l.c.Close()
}

// etcdTxnClient is the least that an uncontended lock takes: one transaction to make a key, one request to delete it. It does not wait.
type etcdTxnClient struct{ *leased }

func openEtcdTxn(tb testing.TB, t *target, ttl time.Duration) client {
	return &etcdTxnClient{openLeased(tb, t, ttl)}
}

func (c *etcdTxnClient) lock(ctx context.Context, key string) (func() error, error) {
	free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	r, err := c.c.Txn(ctx).If(free).Then(clientv3.OpPut(key, "", clientv3.WithLease(c.lease))).Commit()
	if err != nil {
		return nil, err
	}
	if !r.Succeeded {
		return nil, fmt.Errorf("key %q is taken", key)
	}
	return func() error { _, err := c.c.Delete(ctx, key); return err }, nil
}

// etcdQueueClient is concurrency.Mutex's queue with the watch done right: one that begins now, and a look after it has begun. It does not notice the loss of
// its lease, cleans nothing up and guards no delete.
type etcdQueueClient struct {
	*leased
	free chan int // numbers for keys. They are used again: etcd keeps a deleted key until it is compacted, and looks at it in every range
}

func openEtcdQueue(tb testing.TB, t *target, ttl time.Duration) client {
	c := &etcdQueueClient{openLeased(tb, t, ttl), make(chan int, poolSize)}
	for i := range poolSize {
		c.free <- i
	}
	return c
}

func (c *etcdQueueClient) lock(ctx context.Context, key string) (func() error, error) {
	number := <-c.free
	dir := key + "/"
	own := fmt.Sprintf("%s%x-%d", dir, c.lease, number)
	r, err := c.c.Txn(ctx).Then(
		clientv3.OpPut(own, "", clientv3.WithLease(c.lease)), clientv3.OpGet(dir, clientv3.WithFirstCreate()...)).Commit()
	if err != nil {
		return nil, err
	}
	if string(r.Responses[1].GetResponseRange().Kvs[0].Key) != own {
		if err := c.wait(ctx, dir, r.Header.Revision-1); err != nil {
			return nil, err
		}
	}
	return func() error {
		_, err := c.c.Delete(ctx, own)
		c.free <- number
		return err
	}, nil
}

// wait returns when no key in dir was created at revision rev or before.
func (c *etcdQueueClient) wait(ctx context.Context, dir string, rev int64) error {
	for {
		before, err := c.c.Get(ctx, dir, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(rev))...)
		if err != nil || len(before.Kvs) == 0 {
			return err
		}
		if err := c.gone(ctx, string(before.Kvs[0].Key), rev); err != nil {
			return err
		}
	}
}

// gone returns when key is not there, or was created after revision rev: by somebody who comes later.
func (c *etcdQueueClient) gone(ctx context.Context, key string, rev int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := c.c.Watch(ctx, key, clientv3.WithFilterPut())
	r, err := c.c.Get(ctx, key, clientv3.WithMaxCreateRev(rev), clientv3.WithKeysOnly())
	if err != nil || len(r.Kvs) == 0 {
		return err
	}
	for e := range events {
		if err := e.Err(); err != nil {
			return err
		}
		if len(e.Events) > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// etcdPerLockClient has a session for each lock, as the concurrency package asks for.
type etcdPerLockClient struct {
	c   *clientv3.Client
	ttl time.Duration
}

func openEtcdPerLock(tb testing.TB, t *target, ttl time.Duration) client {
	return &etcdPerLockClient{t.etcd(tb), ttl}
}

func (c *etcdPerLockClient) lock(ctx context.Context, key string) (func() error, error) {
	_, unlock, err := c.session(ctx, key)
	return unlock, err
}

// session is lock that also returns the session, which tells of a loss.
func (c *etcdPerLockClient) session(ctx context.Context, key string) (*concurrency.Session, func() error, error) {
	s, err := concurrency.NewSession(c.c, concurrency.WithTTL(int(c.ttl/time.Second)), concurrency.WithContext(ctx))
	if err != nil {
		return nil, nil, err
	}
	m := concurrency.NewMutex(s, key)
	if err := m.Lock(ctx); err != nil {
		_ = s.Close()
		return nil, nil, err
	}
	return s, func() error {
		err := m.Unlock(ctx)
		_ = s.Close()
		return err
	}, nil
}

func (c *etcdPerLockClient) close() { _ = c.c.Close() }

// etcdSharedClient has one session for all its locks. Two of its goroutines must not want the same key: both would have it.
type etcdSharedClient struct {
	c *clientv3.Client
	s *concurrency.Session
}

func openEtcdShared(tb testing.TB, t *target, ttl time.Duration) client {
	c := t.etcd(tb)
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		tb.Fatal(err)
	}
	return &etcdSharedClient{c, s}
}

func (c *etcdSharedClient) lock(ctx context.Context, key string) (func() error, error) {
	m := concurrency.NewMutex(c.s, key)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return func() error { return m.Unlock(ctx) }, nil
}

func (c *etcdSharedClient) close() {
	_ = c.s.Close()
	_ = c.c.Close()
}

// etcdDlockClient locks as dlock does in Redis, on another backend.
type etcdDlockClient struct {
	dlockClient
	etcd *clientv3.Client
}

func openEtcdDlock(tb testing.TB, t *target, ttl time.Duration) client {
	c := t.etcd(tb)
	l, err := dlock.New(etcddriver.New(c), &dlock.Config{DefaultTTL: ttl, Owner: "bench"})
	if err != nil {
		tb.Fatal(err)
	}
	return &etcdDlockClient{dlockClient{l: l}, c}
}

func (c *etcdDlockClient) close() {
	_ = c.l.Close()
	_ = c.etcd.Close()
}

// TestEtcdContendersLock proves that each contender does what is measured: of many holders one at a time.
func TestEtcdContendersLock(t *testing.T) {
	t.Parallel()
	server, _ := newEtcd(t)
	for _, c := range etcdQueued {
		t.Run(c.name, func(t *testing.T) {
			inside, worst := exclusion(t, "k-"+c.name, 5, c.clients(t, server, 4, defaultTTL)...)
			if worst != 1 || inside != 20 {
				t.Errorf("%d holds, of which %d at the same time; want 20 and 1", inside, worst)
			}
		})
	}
}
