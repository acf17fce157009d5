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
	g, err := b.persist(ctx, c, (*Backend).acquire)
	if err == driver.ErrHeld { //nolint:errorlint // it is ours
		return g, err
	}
	return g, b.fail("acquire", err)
}

// acquire makes one attempt.
func (b *Backend) acquire(o *op, c driver.Claim) (g driver.Grant, err error) {
	began := time.Now()
	defer b.limit(o, c.TTL)()
	e, l, err := b.enlist(o, c, began, false)
	if err != nil {
		return g, err
	}
	maybe := true
	defer func() { b.leave(e, maybe) }()
	r, err := b.create(o, c, e, l)
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
		return g, driver.ErrHeld
	}
	if g, ok, err := b.ample(o, c, first[0], began); ok || err != nil {
		return g, err
	}
	return b.regrant(o, c, first[0], began)
}

// orphans is how many of our own may be in the way of one attempt.
const orphans = 3

// create makes the key of e, unless the lock has one. A key of ours that nobody wants is
// removed and no reason to fail: nobody else has the lock then.
func (b *Backend) create(ctx context.Context, c driver.Claim, e *entry, l *lease) (*request, error) {
	folder, v := b.folder(c.Key), value(c.Owner, e.index)
	for range orphans {
		r := &request{
			lock:  folder,
			entry: e,
			ifs:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(folder), "=", 0).WithPrefix()},
			then:  []clientv3.Op{clientv3.OpPut(b.nameOf(e), v, clientv3.WithLease(l.id))},
			els:   []clientv3.Op{clientv3.OpGet(folder, clientv3.WithFirstCreate()...)},
		}
		if err := b.do(ctx, r); err != nil || r.succeeded {
			return r, err
		}
		first := r.responses[0].GetResponseRange().Kvs
		if len(first) == 0 {
			return r, nil
		}
		if own, err := b.removeOwn(ctx, first[0]); err != nil || !own {
			return r, err
		}
	}
	return nil, errChanged
}

// removeOwn removes kv if it is a key of this backend's own whose claim nobody holds, waits for or
// is about to send. It reports whether it was.
func (b *Backend) removeOwn(ctx context.Context, kv *mvccpb.KeyValue) (own bool, err error) {
	name, index := string(kv.Key), indexOf(kv)
	if index == "" || !b.isOwn(name) {
		return false, nil
	}
	b.mu.Lock()
	if e := b.book[index]; e != nil {
		if e.held || e.users > 0 || e.name != name {
			b.mu.Unlock()
			return false, nil
		}
		e.doubt = true
		b.lose(e) // its claim comes back for another key, if at all
	}
	free := b.reserve(name)
	b.mu.Unlock()
	defer free()
	_, err = b.remove(ctx, name, kv.CreateRevision)
	return true, err
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
func (b *Backend) release(ctx context.Context, c driver.Claim) (removed bool, err error) {
	index := b.index(c)
	b.mu.Lock()
	e := b.book[index]
	if e == nil {
		names := b.past.of(index)
		b.mu.Unlock()
		if len(names) == 0 {
			return b.removeFound(ctx, c)
		}
		return b.removeNamed(ctx, c, names...)
	}
	name, rev, plain := e.name, e.rev, e.mine && !e.going
	e.over = true
	e.users++ // so that nobody else removes the key before us
	e.going = e.going || plain
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		e.doubt = e.doubt || err != nil // it may be asked for again
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
		return b.removeNamed(ctx, c, name)
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

// removeNamed removes the key of c, which has one of these names if it is there, and reports
// whether it was. A key that says otherwise is another claim's.
func (b *Backend) removeNamed(ctx context.Context, c driver.Claim, names ...string) (removed bool, err error) {
	v := value(c.Owner, b.index(c))
	for _, name := range names {
		r := &request{
			ifs:  []clientv3.Cmp{clientv3.Compare(clientv3.Value(name), "=", v)},
			then: []clientv3.Op{clientv3.OpDelete(name)},
		}
		if err := b.do(ctx, r); err != nil {
			return removed, err
		}
		removed = removed || r.succeeded
	}
	return removed, nil
}

// removeFound removes the key of c, which this backend does not know. It looks for it among all
// those of the lock.
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
