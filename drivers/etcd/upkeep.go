package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tick looks after l: it keeps the lease alive for those who wait and for those who come and go, ends holds that nobody renews although the
// lease lives on, and drops a lease that nobody uses. Holds are renewed by whoever has them.
func (l *lease) tick() {
	b := l.b
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case l.dead || b.closed:
		return
	case !l.usable(now):
		b.bury(l)
		return
	}
	b.expire(l, now)
	switch young := now.Sub(l.start) < l.ttl/3; {
	case young:
	case l.wanted():
		b.background(max(l.ttl/6, 50*time.Millisecond), func(ctx context.Context) { b.refresh(ctx, l) })
		return
	case len(l.entries) == 0:
		b.bury(l)
		if s := b.slots[l.seconds]; s.flight == nil {
			delete(b.slots, l.seconds)
		}
		return
	}
	l.plan(now)
}

// wanted reports whether somebody waits on l, or got a lock on it since it was last kept alive. b.mu is held.
func (l *lease) wanted() bool {
	if l.used.After(l.start) {
		return true
	}
	for e := range l.entries {
		if e.waits > 0 {
			return true
		}
	}
	return false
}

// plan sets the timer for the next thing to do: to keep the lease alive, or to end a hold. b.mu is held.
func (l *lease) plan(now time.Time) {
	next := l.start.Add(l.ttl / 3)
	if !next.After(now) {
		next = now.Add(l.ttl / 3)
	}
	for e := range l.entries {
		if e.users == 0 && e.until.Before(next) {
			next = e.until
		}
	}
	l.timer.Reset(max(next.Sub(now), time.Millisecond))
}

// expire ends the holds and the places in queues whose time is up, and deletes their keys. Until a
// delete is answered its name is reserved: a late renewal must not be granted a key that is about to
// go. b.mu is held.
func (b *Backend) expire(l *lease, now time.Time) {
	type expired struct {
		name string
		rev  int64 // one that is not known is found by the next check, if the key is there
		free func()
	}
	var over []expired
	for e := range l.entries {
		if e.users == 0 && !now.Before(e.until) {
			b.lose(e)
			over = append(over, expired{e.name, e.rev, b.reserve(e.name)})
		}
	}
	if len(over) == 0 {
		return
	}
	b.background(l.ttl, func(ctx context.Context) {
		for _, x := range over {
			b.insist(ctx, func() error { _, err := b.remove(ctx, x.name, x.rev); return err })
			x.free()
		}
	})
}

// insist repeats a delete until it is answered or ctx ends.
func (b *Backend) insist(ctx context.Context, remove func() error) {
	for ctx.Err() == nil && remove() != nil {
		rest(ctx, sweepPause)
	}
}

// sweep deletes the keys of these names, which are not in the book, on l. Until there is an answer
// no claim gets such a name, and so no claim's key is deleted. b.mu is held.
func (b *Backend) sweep(l *lease, names []string) {
	for _, name := range names {
		if b.names[name] != nil || b.closed {
			continue
		}
		free := b.reserve(name)
		b.background(l.ttl, func(ctx context.Context) {
			b.insist(ctx, func() error { _, err := b.removePlainly(ctx, name); return err })
			free()
		})
	}
}

const (
	sweepPause = time.Second      // how long after a failure an orphan is deleted again
	sweepLong  = 20 * time.Second // for how long, at most, one is deleted that may yet arrive
	mostLate   = 8                // how many such there may be
)

// sweepLate deletes the key of e, which is not in the book any more, for a while: a request that
// makes it may still arrive. The engine knows of one request only, and so ends its clean-up, or
// sees no need for any, when another one was answered. Further ones, and what comes still later,
// are found by the next check. b.mu is held.
func (b *Backend) sweepLate(e *entry) {
	if b.late >= mostLate || b.closed || !e.alive() {
		return
	}
	b.late++
	free := b.reserve(e.name)
	b.background(min(e.lease.ttl, sweepLong), func(ctx context.Context) {
		for rest(ctx, sweepPause); ctx.Err() == nil; rest(ctx, sweepPause) {
			_, _ = b.removePlainly(ctx, e.name)
		}
		free()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.late--
	})
}

// rest waits for a while, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// sweepIfOrphan deletes the key of this name, which is ahead of that of e, if it is an orphan of
// ours.
func (b *Backend) sweepIfOrphan(name string, e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOwn(name) && b.names[name] == nil {
		b.sweep(e.lease, []string{name})
	}
}

// refresh keeps l alive for those who do not do so themselves.
func (b *Backend) refresh(ctx context.Context, l *lease) {
	err := b.renewLease(ctx, l, time.Now(), nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case l.dead || b.closed:
	case err != nil:
		l.timer.Reset(max(min(l.ttl/20, time.Until(l.deadline())), time.Millisecond))
	default:
		l.plan(now)
	}
}

// renewLease keeps l alive, unless that was done since, and checks its keys: all of them, or just some if those are few and all were checked a short while
// ago.
func (b *Backend) renewLease(ctx context.Context, l *lease, since time.Time, some []*entry) error {
	b.mu.Lock()
	expected := l.expected()
	kept := !l.start.Before(since)
	few := len(some) > 0 && len(some) < len(l.entries)/8 && time.Since(l.checked) < l.ttl/3
	b.mu.Unlock()
	var wg sync.WaitGroup
	var err1, err2 error
	if !kept {
		wg.Go(func() { err1 = b.keepAlive(ctx, l) })
	}
	if few {
		err2 = b.confirm(ctx, some)
	} else {
		err2 = b.check(ctx, l, expected)
	}
	wg.Wait()
	err := telling(err1, err2)
	if err == nil {
		b.guard(l)
	}
	return err
}

// expected returns the entries whose keys are on l as far as we know. b.mu is held.
func (l *lease) expected() []*entry {
	var list []*entry
	for e := range l.entries {
		if e.rev != 0 && e.lease == l {
			list = append(list, e)
		}
	}
	return list
}

// check compares the keys that the server has on l with the book, both ways. Those out of expected that it finds missing are lost; those that nobody
// knows are deleted. The server tells names: a key that may have been made twice is read.
func (b *Backend) check(ctx context.Context, l *lease, expected []*entry) error {
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	var resp *clientv3.LeaseTimeToLiveResponse
	err = b.patiently(ctx, l.ttl, func(ctx context.Context) (err error) {
		resp, err = client.TimeToLive(ctx, l.id, clientv3.WithAttachedKeys())
		return ended(ctx, err)
	})
	if err != nil {
		return err
	}
	attached := make(map[string]bool, len(resp.Keys))
	for _, key := range resp.Keys {
		attached[string(key)] = true
	}
	b.mu.Lock()
	l.checked = time.Now()
	var suspects []*entry
	for _, e := range expected {
		if !attached[e.name] || e.doubt {
			suspects = append(suspects, e)
		}
	}
	var orphans []string
	for name := range attached {
		if b.names[name] == nil && b.isOwn(name) {
			orphans = append(orphans, name)
		}
	}
	b.sweep(l, orphans)
	b.mu.Unlock()
	return b.confirm(ctx, suspects)
}

// txnSize is how many keys are read at once. The server's default limit is 128.
const txnSize = 100

// confirm looks for keys that were not among those of their lease, or not for certain. The server makes that list without asking the other members, so that it
// may be an old one; this is the last word.
func (b *Backend) confirm(ctx context.Context, suspects []*entry) error {
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	for len(suspects) > 0 {
		some := suspects[:min(txnSize, len(suspects))]
		suspects = suspects[len(some):]
		ops := make([]clientv3.Op, len(some))
		b.mu.Lock()
		ttl := some[0].lease.ttl
		for i, e := range some {
			ops[i] = clientv3.OpGet(e.name, clientv3.WithKeysOnly())
		}
		b.mu.Unlock()
		var resp *clientv3.TxnResponse
		err := b.patiently(ctx, ttl, func(ctx context.Context) (err error) {
			resp, err = client.Txn(ctx).Then(ops...).Commit()
			return ended(ctx, err)
		})
		if err != nil {
			return err
		}
		b.mu.Lock()
		for i, e := range some {
			if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].CreateRevision != e.rev {
				b.lose(e)
			}
		}
		b.mu.Unlock()
	}
	return nil
}
