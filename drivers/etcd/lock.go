package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer done()
	g, err := b.acquire(ctx, c)
	if isLeaseLost(err) {
		g, err = b.acquire(ctx, c)
	}
	if err == driver.ErrHeld { //nolint:errorlint // it is ours
		return g, err
	}
	return g, b.fail("acquire", err)
}

// acquire makes one attempt.
func (b *Backend) acquire(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	began := time.Now()
	e, l, err := b.enlist(ctx, c, began, false)
	if err != nil {
		return g, err
	}
	maybe := true
	defer func() { b.leave(e, maybe) }()
	folder := b.folder(c.Key)
	r := &request{
		lock:  folder,
		entry: e,
		ifs:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(folder), "=", 0).WithPrefix()},
		then:  []clientv3.Op{clientv3.OpPut(b.nameOf(e), value(c.Owner, e.index), clientv3.WithLease(l.id))},
		els:   []clientv3.Op{clientv3.OpGet(folder, clientv3.WithFirstCreate()...)},
	}
	err = b.do(ctx, r)
	switch {
	case isLeaseNotFound(err):
		maybe = false
		b.drop(l)
		return g, err
	case err != nil:
		return g, err
	case r.succeeded:
		b.made(e, r.rev, l)
		return b.granted(e, r.rev)
	}
	first := r.responses[0].GetResponseRange().Kvs
	if len(first) == 0 || indexOf(first[0]) != e.index {
		maybe = false
		b.tidy(first...)
		return g, driver.ErrHeld
	}
	if g, ok, err := b.ample(ctx, c, first[0], began); ok || err != nil {
		return g, err
	}
	return b.regrant(ctx, c, first[0], began)
}

// drop gives up a lease that the server does not know.
func (b *Backend) drop(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bury(l)
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	removed, err := b.release(ctx, c)
	switch {
	case err != nil:
		return b.fail("release", err)
	case !removed:
		return driver.ErrNotOwner
	}
	return nil
}

// release removes the key of c, and reports whether it was there.
func (b *Backend) release(ctx context.Context, c driver.Claim) (bool, error) {
	b.mu.Lock()
	e := b.book[b.index(c)]
	if e == nil {
		b.mu.Unlock()
		return b.removeFound(ctx, c)
	}
	name, rev, plain := e.name, e.rev, e.mine && !e.going
	e.users++ // so that nobody else removes the key before us
	e.going = e.going || plain
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if plain {
			e.going = false
		}
		e.users--
		b.lose(e)
	}()
	switch {
	case plain:
		return b.removePlainly(ctx, name)
	case rev == 0:
		return b.removeFound(ctx, c)
	default:
		return b.remove(ctx, name, rev)
	}
}

// removePlainly deletes the key that has this name, which must be nobody else's before the answer is there. It costs the server less than remove.
func (b *Backend) removePlainly(ctx context.Context, name string) (bool, error) {
	r := &request{remove: name}
	if err := b.do(ctx, r); err != nil {
		return false, err
	}
	return r.succeeded, nil
}

// removeFound removes the key of c, which it looks for.
func (b *Backend) removeFound(ctx context.Context, c driver.Claim) (bool, error) {
	kv, _, err := b.look(ctx, c)
	if kv == nil || err != nil {
		return false, err
	}
	return b.remove(ctx, string(kv.Key), kv.CreateRevision)
}

// remove deletes a key that was created with revision rev, and reports whether it was there. Nothing else is ever deleted: names are used again.
func (b *Backend) remove(ctx context.Context, name string, rev int64) (bool, error) {
	client, err := b.dial.get(ctx)
	if err != nil {
		return false, err
	}
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(name), "=", rev)).Then(clientv3.OpDelete(name)).Commit()
	if err != nil {
		return false, ended(ctx, err)
	}
	return resp.Succeeded, nil
}

// look returns the key of a claim, nil if there is none, and whether it is the first of its lock.
func (b *Backend) look(ctx context.Context, c driver.Claim) (kv *mvccpb.KeyValue, first bool, err error) {
	client, err := b.dial.get(ctx)
	if err != nil {
		return nil, false, err
	}
	resp, err := client.Get(ctx, b.folder(c.Key), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, false, ended(ctx, err)
	}
	index := b.index(c)
	for i, kv := range resp.Kvs {
		if indexOf(kv) == index {
			return kv, i == 0, nil
		}
	}
	return nil, false, nil
}
