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
	name, began := b.name(c), time.Now()
	e, l, err := b.enlist(ctx, name, seconds(c.TTL), began, false)
	if err != nil {
		return g, err
	}
	maybe := true
	defer func() { b.leave(e, maybe) }()
	client, err := b.dial.get(ctx)
	if err != nil {
		return g, err
	}
	folder := b.folder(c.Key)
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(folder), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(name, c.Owner, clientv3.WithLease(l.id))).
		Else(clientv3.OpGet(folder, append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...)).
		Commit()
	switch {
	case isLeaseNotFound(err):
		maybe = false
		b.drop(l)
		return g, err
	case err != nil:
		return g, ended(ctx, err)
	case resp.Succeeded:
		return b.granted(e, resp.Header.Revision)
	}
	first := resp.Responses[0].GetResponseRange().Kvs
	if len(first) == 0 || string(first[0].Key) != name {
		maybe = false
		return g, driver.ErrHeld
	}
	return b.regrant(ctx, c, first[0], began)
}

// drop gives up a lease that the server does not know.
func (b *Backend) drop(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bury(l)
}

// Release implements [driver.Backend]. The key's name is made of the token, so that nothing else is ever removed.
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	name := b.name(c)
	b.mu.Lock()
	e := b.book[name]
	if e != nil {
		e.users++ // so that no check removes the key before us
	}
	b.mu.Unlock()
	removed, err := b.remove(ctx, name)
	if e != nil {
		b.mu.Lock()
		e.users--
		b.lose(e)
		b.mu.Unlock()
	}
	switch {
	case err != nil:
		return b.fail("release", err)
	case !removed:
		return driver.ErrNotOwner
	}
	return nil
}

// remove deletes a key and reports whether it was there.
func (b *Backend) remove(ctx context.Context, name string) (bool, error) {
	client, err := b.dial.get(ctx)
	if err != nil {
		return false, err
	}
	resp, err := client.Delete(ctx, name)
	if err != nil {
		return false, ended(ctx, err)
	}
	return resp.Deleted > 0, nil
}

// look returns the key of a claim, nil if there is none, and whether it is the first of its lock.
func (b *Backend) look(ctx context.Context, c driver.Claim) (kv *mvccpb.KeyValue, first bool, err error) {
	client, err := b.dial.get(ctx)
	if err != nil {
		return nil, false, err
	}
	name := b.name(c)
	resp, err := client.Txn(ctx).Then(
		clientv3.OpGet(name),
		clientv3.OpGet(b.folder(c.Key), append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...),
	).Commit()
	if err != nil {
		return nil, false, ended(ctx, err)
	}
	own, head := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
	if len(own) == 0 || len(head) == 0 {
		return nil, false, nil
	}
	return own[0], string(head[0].Key) == name, nil
}
