package bench

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// runEtcdHeld is runHeld for etcd, on a server of its own: one that has to end thousands of leases is busy with it for a long time.
func runEtcdHeld(n int, ttl, d time.Duration) func(*testing.B, *target, contender) {
	return func(b *testing.B, _ *target, c contender) {
		t, pid := newEtcd(b)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		before := runtime.NumGoroutine()
		prefix := c.name + "-held-"
		k := newEtcdKeeper(b, c.clients(b, t, 1, ttl)[0], prefix)
		holdMany(ctx, b, k, n, prefix)
		measureHeld(b, t, k, d, before, func() time.Duration { return cpuOf(b, pid) })
	}
}

// newEtcdKeeper holds many locks by one client; their keys begin with prefix.
func newEtcdKeeper(b *testing.B, opened client, prefix string) keeper {
	switch opened := opened.(type) {
	case *etcdTxnClient:
		return &etcdCountKeeper{client: opened, c: opened.c, prefix: prefix}
	case *etcdSharedClient:
		return &etcdCountKeeper{client: opened, c: opened.c, prefix: prefix}
	case *etcdPerLockClient:
		return &etcdSessionKeeper{c: opened}
	case *etcdDlockClient:
		return &dlockKeeper{c: &opened.dlockClient}
	default:
		b.Fatalf("%T cannot keep locks", opened)
		return nil
	}
}

// etcdCountKeeper is for locks that share a lease: what the server has no more is lost.
type etcdCountKeeper struct {
	client
	c      *clientv3.Client
	prefix string
	held   atomic.Int64
}

func (k *etcdCountKeeper) keep(ctx context.Context, key string) error {
	_, err := k.lock(ctx, key)
	if err == nil {
		k.held.Add(1)
	}
	return err
}

func (k *etcdCountKeeper) lost() int {
	r, err := k.c.Get(context.Background(), k.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return int(k.held.Load())
	}
	return int(k.held.Load() - r.Count)
}

// etcdSessionKeeper has a session for each lock.
type etcdSessionKeeper struct {
	c *etcdPerLockClient

	mu   sync.Mutex
	held []*concurrency.Session
}

func (k *etcdSessionKeeper) keep(ctx context.Context, key string) error {
	s, _, err := k.c.session(ctx, key)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, s)
	return nil
}

func (k *etcdSessionKeeper) lost() (n int) {
	for _, s := range k.held {
		select {
		case <-s.Done():
			n++
		default:
		}
	}
	return n
}
