package etcd

import (
	"context"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

const (
	lookEvery  = 5 * time.Second        // how often a waiter looks although it was told nothing
	watchPause = 100 * time.Millisecond // before a watch is made again that the server ended
)

// Wait implements [driver.Waiter].
func (b *Backend) Wait(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer done()
	g, err := b.wait(ctx, c)
	if isLeaseLost(err) {
		g, err = b.wait(ctx, c)
	}
	return g, b.fail("wait", err)
}

// waiter is a claim in the queue, or on its way there.
type waiter struct {
	b      *Backend
	client *clientv3.Client
	claim  driver.Claim
	e      *entry
	rev    int64 // create revision of its key
}

// wait enters the queue and waits there.
func (b *Backend) wait(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	client, err := limited(ctx, b.dial.get)
	if err != nil {
		return g, err
	}
	e, l, err := b.enlist(ctx, c, time.Now(), false)
	if err != nil {
		return g, err
	}
	maybe := true
	defer func() { b.leave(e, maybe) }()
	w := &waiter{b: b, client: client, claim: c, e: e}
	ahead, err := w.enqueue(ctx, l)
	if isLeaseNotFound(err) {
		maybe = false
		b.drop(l)
	}
	if err == nil && ahead != "" {
		driver.Queued(ctx)
		err = w.stand(ctx, ahead)
	}
	if err != nil {
		return g, err
	}
	return w.grant(ctx)
}

// limited runs a request of a Wait, which nobody else limits.
func limited[T any](ctx context.Context, f func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return f(ctx)
}

// enqueue puts the claim's key at the end of the queue, unless it has a place there. It returns the key of the one ahead of it; empty: there is none.
func (w *waiter) enqueue(ctx context.Context, l *lease) (ahead string, err error) {
	folder := w.b.folder(w.claim.Key)
	resp, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return w.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(w.e.name), "=", 0)).
			Then(
				clientv3.OpGet(folder, append(clientv3.WithLastCreate(), clientv3.WithKeysOnly())...),
				clientv3.OpPut(w.e.name, value(w.claim), clientv3.WithLease(l.id)),
			).
			Else(clientv3.OpGet(w.e.name)).
			Commit()
	})
	if err != nil {
		return "", ended(ctx, err)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if resp.Succeeded {
		w.place(resp.Header.Revision)
		if len(kvs) > 0 {
			ahead = string(kvs[0].Key)
		}
		return ahead, nil
	}
	if indexOf(kvs[0]) != w.e.index {
		w.b.tidy(kvs[0])
		return "", errChanged
	}
	if _, err := limited(ctx, func(ctx context.Context) (any, error) { return nil, w.b.put(ctx, w.claim, w.e, kvs[0], l) }); err != nil {
		return "", err
	}
	w.place(kvs[0].CreateRevision)
	return w.ahead(ctx)
}

// place notes the claim's place.
func (w *waiter) place(rev int64) {
	w.rev = rev
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.e.rev = rev
}

// ahead returns the key of the one ahead of the claim; empty: there is none.
func (w *waiter) ahead(ctx context.Context) (string, error) {
	resp, err := limited(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return w.client.Get(ctx, w.b.folder(w.claim.Key), clientv3.WithPrefix(), clientv3.WithMaxCreateRev(w.rev),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2), clientv3.WithKeysOnly())
	})
	switch {
	case err != nil:
		return "", ended(ctx, err)
	case len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != w.rev:
		return "", errLeft
	case len(resp.Kvs) == 1:
		return "", nil
	}
	return string(resp.Kvs[1].Key), nil
}

// stand waits in the queue, behind ahead, until nobody is ahead any more.
func (w *waiter) stand(ctx context.Context, ahead string) error {
	w.b.queue(w.client, w.e)
	defer w.b.unqueue(w.e)
	for ahead != "" {
		var err error
		if ahead, err = w.behind(ctx, ahead); err != nil {
			return err
		}
	}
	return nil
}

// behind watches the key of the one ahead until it is gone, or the watch is over, and returns who is ahead then.
func (w *waiter) behind(ctx context.Context, ahead string) (string, error) {
	// A context of its own: watches with the same metadata share a stream, and the caller's could be different each time.
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(w.b.ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	slow := time.AfterFunc(requestLimit, cancel)
	// Without a revision, and a look afterwards: a watch that begins in the past is served by the server's slow loop.
	events := w.client.Watch(watching, ahead, clientv3.WithFilterPut())
	slow.Stop()
	for over := watching.Err() != nil; ; {
		now, err := w.ahead(ctx)
		switch {
		case err != nil || now != ahead:
			return now, err
		case over:
			return ahead, w.pause(ctx)
		}
		if over, err = w.listen(ctx, events); err != nil {
			return "", err
		}
	}
}

// listen waits for an event, or until it is time to look. It reports whether the watch is over.
func (w *waiter) listen(ctx context.Context, events clientv3.WatchChan) (over bool, err error) {
	timer := time.NewTimer(lookEvery + rand.N(lookEvery/5))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-w.e.gone:
		return false, errLeft
	case <-timer.C:
		return false, nil
	case resp, ok := <-events:
		return !ok || resp.Err() != nil, nil
	}
}

func (w *waiter) pause(ctx context.Context) error {
	timer := time.NewTimer(watchPause/2 + rand.N(watchPause/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// grant ends the wait: nobody is ahead. A lease of which little is left is kept alive first.
func (w *waiter) grant(ctx context.Context) (driver.Grant, error) {
	e, _, err := w.b.enlist(ctx, w.claim, time.Now(), false)
	if err != nil {
		return driver.Grant{}, err
	}
	defer w.b.leave(e, true)
	if e != w.e {
		return driver.Grant{}, errLeft
	}
	return w.b.granted(e, w.rev)
}
