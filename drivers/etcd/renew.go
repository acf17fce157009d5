package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend].
func (b *Backend) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	r := b.renew(ctx, []driver.Claim{c}, 0)[0]
	return r.Grant, r.Err
}

// slack is the part of a TTL by which a keepalive may be older than the call of RenewBatch that it serves for. Grant.Start says so, and the engine plans the
// next renewal by that. So locks that were acquired at different times come together: whoever renews within the first half of the others' interval joins
// them, and otherwise they join him.
const slack = 6

// RenewBatch implements [driver.BatchRenewer]: one keepalive and one look at its keys for each lease.
func (b *Backend) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	return b.renew(ctx, claims, slack)
}

// renewal is a claim to be renewed, and where its answer goes.
type renewal struct {
	claim  driver.Claim
	e      *entry
	answer *driver.Renewal
}

func (b *Backend) renew(ctx context.Context, claims []driver.Claim, slack time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	began := time.Now()
	ctx, done, err := b.begin(ctx)
	if err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	defer done()
	groups, single := b.group(claims, answers)
	var wg sync.WaitGroup
	for l, group := range groups {
		since := began
		if slack > 0 {
			since = began.Add(-l.ttl / slack)
		}
		wg.Go(func() { b.renewGroup(ctx, l, group, since) })
	}
	b.renewSingly(ctx, single, began)
	wg.Wait()
	return answers
}

// group sorts claims by lease. Those that cannot be renewed by keeping their lease alive are returned apart.
func (b *Backend) group(claims []driver.Claim, answers []driver.Renewal) (groups map[*lease][]renewal, single []renewal) {
	groups = map[*lease][]renewal{}
	index := make([]string, len(claims))
	for i, c := range claims {
		index[i] = b.index(c)
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, c := range claims {
		r := renewal{c, b.book[index[i]], &answers[i]}
		if r.e != nil && r.e.held && r.e.settled(now) && r.e.lease.seconds == seconds(c.TTL) {
			groups[r.e.lease] = append(groups[r.e.lease], r)
		} else {
			single = append(single, r)
		}
	}
	return groups, single
}

// renewGroup renews claims on one lease.
func (b *Backend) renewGroup(ctx context.Context, l *lease, group []renewal, since time.Time) {
	some := make([]*entry, len(group))
	for i, r := range group {
		some[i] = r.e
	}
	err := b.renewLease(ctx, l, since, some)
	failed := b.fail("renew", err)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range group {
		switch {
		case !r.e.held:
			r.answer.Err = driver.ErrNotOwner
		case err != nil:
			r.answer.Err = failed
		case len(r.e.moves) > 0: // it may be on its way to a lease that ends sooner
			r.answer.Err = b.fail("renew", errChanged)
		default:
			r.answer.Grant = r.e.renewed()
		}
	}
}

// renewWorkers is how many claims are renewed at the same time that need a request of their own.
const renewWorkers = 32

func (b *Backend) renewSingly(ctx context.Context, single []renewal, began time.Time) {
	var wg sync.WaitGroup
	next := make(chan renewal)
	for range min(renewWorkers, len(single)) {
		wg.Go(func() {
			for r := range next {
				r.answer.Grant, r.answer.Err = b.renewOne(ctx, r.claim, began)
			}
		})
	}
	for _, r := range single {
		next <- r
	}
	close(next)
	wg.Wait()
}

// renewOne renews a claim with another TTL than the one it has, or one that this backend does not know.
func (b *Backend) renewOne(ctx context.Context, c driver.Claim, began time.Time) (driver.Grant, error) {
	if kv := b.known(c, began); kv != nil {
		if g, err := b.regrant(ctx, c, kv, began); !errors.Is(err, errChanged) {
			return g, b.fail("renew", err)
		}
	}
	kv, first, err := b.look(ctx, c)
	if err != nil {
		return driver.Grant{}, b.fail("renew", err)
	}
	if kv == nil || !first {
		b.mu.Lock()
		if e := b.book[b.index(c)]; kv == nil && e != nil && e.held {
			b.lose(e)
		}
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrNotOwner
	}
	if g, ok, err := b.ample(ctx, c, kv, began); ok || err != nil {
		return g, b.fail("renew", err)
	}
	g, err := b.regrant(ctx, c, kv, began)
	return g, b.fail("renew", err)
}

// known returns the key of a claim that is held and has too little left, as it was when we last changed it. There is no need to look at it: if somebody else
// changed it, the request that it is for does nothing.
func (b *Backend) known(c driver.Claim, began time.Time) *mvccpb.KeyValue {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.book[b.index(c)]
	if e == nil || !e.held || !e.settled(time.Now()) || e.lease.seconds == seconds(c.TTL) || e.until.After(began.Add(c.TTL)) {
		return nil
	}
	return &mvccpb.KeyValue{Key: []byte(e.name), CreateRevision: e.rev, ModRevision: e.mod, Lease: int64(e.lease.id)}
}

// ample returns the grant of a hold, whose key was found as kv, that lasts longer than c asks for. It is left as it is: nothing shortens it.
func (b *Backend) ample(ctx context.Context, c driver.Claim, kv *mvccpb.KeyValue, began time.Time) (g driver.Grant, ok bool, err error) {
	b.mu.Lock()
	now := time.Now()
	e := b.book[b.index(c)]
	if e != nil && e.held {
		defer b.mu.Unlock()
		same := kv.CreateRevision == e.rev && kv.ModRevision == e.mod && clientv3.LeaseID(kv.Lease) == e.lease.id
		return e.grant(), same && e.settled(now) && e.until.After(began.Add(c.TTL)), nil
	}
	b.mu.Unlock()
	if b.isOwn(string(kv.Key)) { // it is on a lease of ours, where only what is in the book may stay
		return g, false, nil
	}
	// Another backend has it on a lease of its own. How much is left of that decides whether it may
	// stay there, and not what is granted.
	ttl := time.Duration(seconds(c.TTL)) * time.Second
	left, err := b.leaseLeft(ctx, clientv3.LeaseID(kv.Lease))
	if err != nil || left <= ttl {
		return g, false, err
	}
	return driver.Grant{Fence: fenceOf(kv.CreateRevision), Fences: fences, TTL: ttl, Start: now}, true, nil
}

// leaseLeft is what is left of a lease, in whole seconds; 0 when it has ended.
func (b *Backend) leaseLeft(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	client, err := b.dial.get(ctx)
	if err != nil {
		return 0, err
	}
	resp, err := client.TimeToLive(ctx, id)
	if err != nil {
		return 0, ended(ctx, err)
	}
	return time.Duration(max(resp.TTL, 0)) * time.Second, nil
}

// regrant gives the claim, whose key kv is the first of its lock, the full TTL from began on: on the lease that it is on, or on that of another TTL.
func (b *Backend) regrant(ctx context.Context, c driver.Claim, kv *mvccpb.KeyValue, began time.Time) (g driver.Grant, err error) {
	e, l, err := b.enlist(ctx, c, began, true)
	if err != nil {
		return g, err
	}
	defer b.leave(e, true)
	if err := b.put(ctx, c, e, kv, l); err != nil {
		return g, err
	}
	return b.granted(e, kv.CreateRevision)
}

// put attaches the key of e, which was found as kv, to l. That keeps its create revision, and with it its place and its fence. A put that
// was long in the network does no harm, as any later one has changed the modification revision. While one is under way nobody is granted anything on
// another lease, and none goes to a lease that ends before what was granted: the key then stays on its own. So no grant outlasts its key.
func (b *Backend) put(ctx context.Context, c driver.Claim, e *entry, kv *mvccpb.KeyValue, l *lease) error {
	b.mu.Lock()
	if b.book[e.index] != e || !b.seen(e, kv) { // it was released, or moved meanwhile
		b.mu.Unlock()
		return errChanged
	}
	if e.held && l.end().Before(e.until) {
		l = e.lease
	}
	if e.lease == l && l.id == clientv3.LeaseID(kv.Lease) && len(e.moves) == 0 {
		b.mu.Unlock()
		return nil
	}
	b.mayMove(e, l)
	b.mu.Unlock()
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)).
		Then(clientv3.OpPut(string(kv.Key), value(c.Owner, e.index), clientv3.WithLease(l.id))).
		Commit()
	switch {
	case isLeaseNotFound(err):
		b.drop(l)
		return err
	case err != nil:
		return ended(ctx, err)
	case !resp.Succeeded:
		return errChanged
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.locate(e, resp.Header.Revision, l) { // it was moved again since, and the answer to that came first
		return errChanged
	}
	return nil
}
