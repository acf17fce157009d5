package etcd

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Inspector]. Info.Since stays zero, as etcd does not know it.
func (b *Backend) Inspect(ctx context.Context, key string) (driver.Info, error) {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return driver.Info{}, err
	}
	defer done()
	client, err := b.dial.get(ctx)
	if err != nil {
		return driver.Info{}, b.fail("inspect", err)
	}
	resp, err := client.Get(ctx, b.folder(key), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return driver.Info{}, b.fail("inspect", ended(ctx, err))
	}
	info, err := b.describe(ctx, key, resp.Kvs, map[int64]time.Duration{})
	return info, b.fail("inspect", err)
}

// describe makes an Info of a lock's keys, the oldest first. It notes in left what it learns about leases.
func (b *Backend) describe(ctx context.Context, key string, kvs []*mvccpb.KeyValue, left map[int64]time.Duration) (driver.Info, error) {
	info := driver.Info{Key: key}
	if len(kvs) == 0 {
		return info, nil
	}
	holder := kvs[0]
	ttl, known := left[holder.Lease]
	if !known && holder.Lease != 0 {
		var err error
		if ttl, err = b.leaseLeft(ctx, clientv3.LeaseID(holder.Lease)); err != nil {
			return driver.Info{}, err
		}
		left[holder.Lease] = ttl
	}
	info.Owner, _ = parseValue(holder)
	info.Fence, info.TTL = fenceOf(holder.CreateRevision), ttl
	for _, kv := range kvs[1:] {
		owner, _ := parseValue(kv)
		info.Waiters = append(info.Waiters, owner)
	}
	return info, nil
}

// listPage is how many keys are read at once.
const listPage = 500

// List implements [driver.Inspector]. It yields dlock's locks, and those of concurrency.Mutex and etcdctl whose names dlock can write.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	return func(yield func(driver.Info, error) bool) {
		ctx, done, err := b.begin(ctx)
		if err != nil {
			yield(driver.Info{}, err)
			return
		}
		defer done()
		if err := b.list(ctx, prefix, yield); err != nil {
			yield(driver.Info{}, b.fail("list", err))
		}
	}
}

func (b *Backend) list(ctx context.Context, prefix string, yield func(driver.Info, error) bool) error {
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	from := b.opt.namespace + escape(prefix)
	end := clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		from, end = "\x00", "\x00" // all keys
	}
	left := map[int64]time.Duration{}
	var lock string
	var keys []*mvccpb.KeyValue // of lock
	flush := func() (bool, error) {
		if len(keys) == 0 {
			return true, nil
		}
		slices.SortFunc(keys, func(x, y *mvccpb.KeyValue) int { return int(x.CreateRevision - y.CreateRevision) })
		info, err := b.describe(ctx, lock, keys, left)
		keys = nil
		return err == nil && yield(info, nil), err
	}
	for more := true; more; {
		resp, err := client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
		if err != nil {
			return ended(ctx, err)
		}
		for _, kv := range resp.Kvs {
			key, ok := b.lockOf(kv)
			if !ok {
				continue
			}
			if key != lock {
				if more, err := flush(); !more {
					return err
				}
			}
			lock, keys = key, append(keys, kv)
		}
		if more = resp.More; more {
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	_, err = flush()
	return err
}

// Break implements [driver.Breaker]. It breaks the locks of concurrency.Mutex and etcdctl as well.
func (b *Backend) Break(ctx context.Context, key string, fence uint64) error {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	rev := revisionOf(fence)
	if rev == 0 {
		return driver.ErrNotOwner
	}
	client, err := b.dial.get(ctx)
	if err != nil {
		return b.fail("break", err)
	}
	resp, err := client.Get(ctx, b.folder(key), append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...)
	if err != nil {
		return b.fail("break", ended(ctx, err))
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != rev {
		return driver.ErrNotOwner
	}
	name := string(resp.Kvs[0].Key)
	txn, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(name), "=", rev)).Then(clientv3.OpDelete(name)).Commit()
	switch {
	case err != nil:
		return b.fail("break", ended(ctx, err))
	case !txn.Succeeded:
		return driver.ErrNotOwner
	}
	return nil
}

// pingTTL is that of the locks whose requests a ping stands for.
const pingTTL = 10 * time.Second

// Ping implements [driver.Pinger]: it reads a key, which a majority of the members must agree to.
func (b *Backend) Ping(ctx context.Context) error {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	client, err := b.dial.get(ctx)
	if err != nil {
		return b.fail("ping", err)
	}
	err = b.patiently(ctx, pingTTL, func(ctx context.Context) error {
		_, err := client.Get(ctx, b.opt.namespace+"dlock/ping", clientv3.WithKeysOnly())
		return ended(ctx, err)
	})
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil // said by a majority; whether the user may lock depends on the key
	}
	return b.fail("ping", err)
}
