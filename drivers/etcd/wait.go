package etcd

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

const (
	lookEvery  = 5 * time.Second        // how often a waiter looks although it was told nothing
	watchPause = 100 * time.Millisecond // before a watch is made again that the server ended
)

// Wait implements [driver.Waiter].
func (b *Backend) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	wait := func(b *Backend, o *op, c driver.Claim) (driver.Grant, error) { return b.wait(o, c, queued) }
	g, err := b.persist(ctx, c, wait)
	return g, b.fail("wait", err)
}

// waiter is a claim in the queue, or on its way there. Each of its requests is limited, as nobody else does that.
type waiter struct {
	*op
	b      *Backend
	client *clientv3.Client
	claim  driver.Claim
	e      *entry
	rev    int64 // create revision of its key
}

// wait enters the queue and waits there.
func (b *Backend) wait(o *op, c driver.Claim, queued func()) (g driver.Grant, err error) {
	w := &waiter{op: o, b: b, claim: c}
	stop := b.limit(o, c.TTL)
	defer func() { stop() }()
	if w.client, err = b.dial.get(o); err != nil {
		return g, err
	}
	e, l, err := b.enlist(o, c, time.Now(), false)
	if err != nil {
		return g, err
	}
	w.e = e
	maybe := true
	defer func() { b.leave(e, maybe) }()
	ahead, err := w.enqueue(l)
	if isLeaseNotFound(err) {
		maybe = false
		b.drop(l)
	}
	if err == nil && ahead != "" {
		stop()
		if err = w.stand(ahead, queued); err == nil {
			stop = b.limit(o, c.TTL)
		}
	}
	if err != nil {
		return g, err
	}
	return w.grant()
}

// enqueue puts the claim's key at the end of the queue, unless it has a place there. It returns the key of the one ahead of it; empty: there is none, and the
// lock is the claim's.
func (w *waiter) enqueue(l *lease) (ahead string, err error) {
	folder, name := w.b.folder(w.claim.Key), w.b.nameOf(w.e)
	r := &request{
		lock:  folder,
		entry: w.e,
		ifs:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(name), "=", 0)},
		then: []clientv3.Op{
			clientv3.OpGet(folder, lastKey...),
			clientv3.OpPut(name, value(w.claim.Owner, w.e.index), clientv3.WithLease(l.id)),
		},
	}
	if err := w.b.do(w, r); err != nil {
		return "", err
	}
	if !r.succeeded {
		return w.enqueued(name, l)
	}
	w.b.made(w.e, r.rev, l)
	w.rev = r.rev
	if last := r.responses[0].GetResponseRange().Kvs; len(last) > 0 {
		ahead = string(last[0].Key)
	}
	return ahead, nil
}

// enqueued is enqueue when a key has the claim's name: it may be the claim's.
func (w *waiter) enqueued(name string, l *lease) (ahead string, err error) {
	resp, err := w.client.Get(w, name)
	switch {
	case err != nil:
		return "", ended(w, err)
	case len(resp.Kvs) == 0:
		return "", errChanged
	}
	kv := resp.Kvs[0]
	if indexOf(kv) != w.e.index {
		_, err := w.b.removeOwn(w, kv)
		return "", cmp.Or(err, errChanged)
	}
	if err := w.b.put(w, w.claim, w.e, kv, l); err != nil {
		return "", err
	}
	w.rev = kv.CreateRevision
	w.b.found(w.e, kv.CreateRevision)
	return w.ahead(0)
}

// lastKey has a Get find the last one in a queue.
var lastKey = append(clientv3.WithLastCreate(), clientv3.WithKeysOnly())

// ahead returns the key of the one ahead of the claim; empty: there is none. It looks at the store
// as it was at revision at, which any member can answer for itself; 0: as it is now, for which they
// have to agree. That nobody is ahead is never believed of the past: the claim's own key may be
// gone since.
func (w *waiter) ahead(at int64) (ahead string, err error) {
	err = w.b.patiently(w, w.claim.TTL, func(ctx context.Context) (err error) {
		ahead, err = w.look(ctx, at)
		return err
	})
	switch {
	case at == 0:
	case errors.Is(err, rpctypes.ErrFutureRev), errors.Is(err, rpctypes.ErrCompacted), err == nil && ahead == "":
		return w.ahead(0) // this member is behind, or has forgotten, or tells of the past
	}
	return ahead, err
}

// look makes the request of ahead.
func (w *waiter) look(ctx context.Context, at int64) (string, error) {
	opts := []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithMaxCreateRev(w.rev), clientv3.WithLimit(2), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend),
	}
	if at >= w.rev {
		opts = append(opts, clientv3.WithRev(at), clientv3.WithSerializable())
	}
	resp, err := w.client.Get(ctx, w.b.folder(w.claim.Key), opts...)
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
func (w *waiter) stand(ahead string, queued func()) error {
	w.b.queue(w.client, w.e)
	defer w.b.unqueue(w.e)
	for told := false; ahead != ""; {
		if !told && !w.b.unwanted(ahead) {
			told = true
			queued()
		}
		var err error
		if ahead, err = w.behind(ahead); err != nil {
			return err
		}
	}
	return nil
}

// behind watches the key of the one ahead until it is gone, or the watch is over, and returns who is ahead then.
func (w *waiter) behind(ahead string) (string, error) {
	w.b.sweepIfOrphan(ahead, w.e)
	// A context without the caller's values: watches with the same metadata share a stream, and the caller's could be different each time.
	watching, stream := w.b.watching(w.Context)
	watching, cancel := context.WithCancel(watching)
	defer cancel()
	slow := w.b.overdue(w.b.limits.of(w.claim.TTL), func() {
		w.b.leaveStream(stream)
		cancel()
	})
	// Without a revision: a watch that begins in the past is served by the server's slow loop. It begins after the revision that it tells, so a look at the
	// store as it was then leaves no gap.
	events := w.client.Watch(watching, ahead, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	n, err := w.listen(events)
	slow.stop()
	for ; err == nil; n, err = w.listen(events) {
		now, err := w.ahead(n.at)
		switch {
		case err != nil:
			return "", err
		case now != ahead:
			if n.silent {
				w.b.leaveStream(stream)
			}
			return now, nil
		case n.over:
			return ahead, w.pause()
		}
	}
	return "", err
}

// news is why a waiter looks.
type news struct {
	at     int64 // the revision to look at; 0: the latest
	silent bool  // nothing was heard for long
	over   bool  // nothing is heard any more
}

// listen waits for what the watch tells, or until it is time to look.
func (w *waiter) listen(events clientv3.WatchChan) (news, error) {
	timer := time.NewTimer(lookEvery + rand.N(lookEvery/5))
	defer timer.Stop()
	select {
	case <-w.Done():
		return news{}, w.Err()
	case <-w.e.gone:
		return news{}, errLeft
	case <-timer.C:
		return news{silent: true}, nil
	case resp, ok := <-events:
		switch {
		case !ok || resp.Err() != nil:
			return news{over: true}, nil
		case resp.Created:
			return news{at: resp.Header.Revision}, nil
		default:
			return news{}, nil
		}
	}
}

func (w *waiter) pause() error {
	timer := time.NewTimer(watchPause/2 + rand.N(watchPause/2))
	defer timer.Stop()
	select {
	case <-w.Done():
		return w.Err()
	case <-timer.C:
		return nil
	}
}

// grant ends the wait: nobody is ahead. A lease of which little is left is kept alive first.
func (w *waiter) grant() (driver.Grant, error) {
	w.b.mu.Lock()
	l := w.e.lease
	young := l.usable(time.Now()) && time.Since(l.start) <= l.ttl/2
	w.b.mu.Unlock()
	if !young {
		e, _, err := w.b.enlist(w, w.claim, time.Now(), false)
		if err != nil {
			return driver.Grant{}, err
		}
		defer w.b.leave(e, true)
		if e != w.e {
			return driver.Grant{}, errLeft
		}
	}
	return w.b.granted(w.e, w.rev)
}
