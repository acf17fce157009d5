package etcd

import (
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// entry is a key of ours that is in the store, or may be: it is entered before the request that creates it is sent. A key on one of our leases that
// has no entry is nobody's: a request that was long in the network. The lease would keep it for ever, and so it is deleted.
//
// Entries are guarded by Backend.mu.
type entry struct {
	index string // in the book
	name  string // of the key

	// Where the key is. Requests that move it name the revision that it has, so that of all those in moves one can have been done, and none any more once a
	// later revision is known. The entry is in the list of each of these leases, so that none is taken for idle.
	lease *lease   // that it was attached to when it had the revision mod
	moves []*lease // or one of these: a request to move it from there has not been answered
	mod   int64    // revision of the last change that is known

	rev   int64     // create revision; 0: not known
	users int       // calls that make or watch the key
	waits int       // those out of them that are in the queue
	held  bool      // it was granted
	doubt bool      // a request that makes it was not answered, and may make it once more when it is gone
	twice bool      // such a request was followed by another one, of which the engine does not know
	over  bool      // its claim was released, if perhaps without success
	mine  bool      // this backend made it, and nobody else uses its name
	going bool      // a request is under way that deletes whatever has its name, which is kept free until then
	until time.Time // when the hold ends, or how long the place in the queue is kept, unless there are users
	start time.Time // from which the hold was counted
	gone  chan struct{}
}

// enter returns the entry of c, on l if it is new, with one more user. b.mu is held.
func (b *Backend) enter(c driver.Claim, l *lease) *entry {
	index := b.index(c)
	e := b.book[index]
	if e == nil {
		e = &entry{index: index, name: b.freeName(c.Key), lease: l, gone: make(chan struct{})}
		b.book[index], b.names[e.name] = e, e
		l.entries[e] = true
	} else if e.rev == 0 && e.lease != l && e.alive() { // the key is made on l, unless an earlier request has made it
		b.mayMove(e, l)
	}
	e.users++
	return e
}

// freeName returns a name for a key that no other claim of ours has. Names are used again and again: etcd remembers every key that ever was until its history is
// compacted, and goes through all of them that begin alike to find those that are. But no name is used again that may be in a request which was never
// answered and might still arrive. b.mu is held.
func (b *Backend) freeName(key string) string {
	first := b.folder(key) + b.id
	if b.era > 0 {
		first += "." + strconv.Itoa(b.era)
	}
	name := first
	for n := 2; b.names[name] != nil; n++ {
		name = first + "-" + strconv.Itoa(n)
	}
	return name
}

// reserve keeps a name from being given to a claim, and a key of that name from being taken for a
// claim's, until free is called. b.mu is held.
func (b *Backend) reserve(name string) (free func()) {
	if b.names[name] != nil {
		return func() {}
	}
	kept := &entry{name: name, going: true}
	b.names[name] = kept
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.names[name] == kept {
			delete(b.names, name)
		}
	}
}

// unanswered notes that a request was sent of which nobody knows what becomes: the name in it, and any other that is in use now, is never used again. The
// entry whose key it makes, if it makes any, keeps its name.
func (b *Backend) unanswered(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.era++
	if e != nil {
		e.doubt = true
	}
}

// repeated notes that another request for c is sent, perhaps beside one that was not answered.
func (b *Backend) repeated(c driver.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.book[b.index(c)]; e != nil {
		e.twice = e.twice || e.doubt
	}
}

// made notes that a request created the key of e with revision rev, on l; found, that it was there.
func (b *Backend) made(e *entry, rev int64, l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.rev, e.mine = rev, true
	b.locate(e, rev, l)
}

func (b *Backend) found(e *entry, rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.rev = rev
}

// unwanted reports whether a key is one of ours that nobody holds, waits for or is about to send.
func (b *Backend) unwanted(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.names[name]
	return b.isOwn(name) && (e == nil || e.over || !e.held && e.users == 0)
}

func (b *Backend) nameOf(e *entry) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.name
}

// leave takes a user off e. A key that may be in the store keeps its entry for a TTL: whoever wants it comes back, or releases it.
func (b *Backend) leave(e *entry, maybe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.users--
	if e.users > 0 || b.book[e.index] != e {
		return
	}
	now := time.Now()
	switch {
	case maybe && !e.held:
		e.until = now.Add(e.lease.ttl)
	case !maybe && e.rev == 0: // nobody releases it
		e.until = now
	}
	if !e.alive() || !now.Before(e.until) {
		b.strike(e)
	}
}

// strike takes e out of the book. b.mu is held.
func (b *Backend) strike(e *entry) {
	if b.book[e.index] == e {
		delete(b.book, e.index)
		if e.doubt {
			b.past.add(e.index, e.name, time.Now().Add(2*e.lease.ttl))
		}
	}
	if b.names[e.name] == e && !e.going {
		delete(b.names, e.name)
		if e.twice {
			b.sweepLate(e)
		}
	}
	b.unlist(e)
}

// lose notes that the key of e is not in the store any more. b.mu is held.
func (b *Backend) lose(e *entry) {
	e.held = false
	b.strike(e)
	e.tell()
}

// tell wakes those who wait on e, to find out what happened.
func (e *entry) tell() {
	select {
	case <-e.gone:
	default:
		close(e.gone)
	}
}

// locate notes that the key of e was on l when it had the revision mod. It reports false if that is known to be past, or the entry is not in the book any
// more. b.mu is held.
func (b *Backend) locate(e *entry, mod int64, l *lease) bool {
	if b.book[e.index] != e || mod < e.mod {
		return false
	}
	if mod > e.mod {
		b.unlist(e)
		e.mod, e.lease, e.moves = mod, l, nil
		l.entries[e] = true
	}
	return true
}

// mayMove notes that a request is sent after which the key of e is on l. b.mu is held.
func (b *Backend) mayMove(e *entry, l *lease) {
	if !slices.Contains(e.moves, l) {
		e.moves = append(e.moves, l)
		l.entries[e] = true
	}
}

// unlist takes e off the lists of all leases. b.mu is held.
func (b *Backend) unlist(e *entry) {
	delete(e.lease.entries, e)
	for _, l := range e.moves {
		delete(l.entries, e)
	}
}

// seen notes what was read of the key of e, and reports whether nothing later is known. b.mu is held.
func (b *Backend) seen(e *entry, kv *mvccpb.KeyValue) bool {
	if name := string(kv.Key); e.name != name { // it was forgotten for a while, or is another backend's
		if o := b.names[name]; o != nil && o.going {
			return false // it is just being deleted
		}
		delete(b.names, e.name)
		b.unlist(e)
		e.name, e.mine, e.mod, e.moves = name, false, 0, nil
		b.names[name], e.lease.entries[e] = e, true
	}
	if l := b.leaseBy(clientv3.LeaseID(kv.Lease), e); l != nil {
		return b.locate(e, kv.ModRevision, l)
	}
	if kv.ModRevision < e.mod {
		return false
	}
	e.mod = kv.ModRevision // on a lease that is not ours
	return true
}

// leaseBy returns the lease with this id, if it is one of ours in use or one that the key of e may be on. b.mu is held.
func (b *Backend) leaseBy(id clientv3.LeaseID, e *entry) *lease {
	for _, l := range e.moves {
		if l.id == id {
			return l
		}
	}
	for _, s := range b.slots {
		if s.lease != nil && s.lease.id == id {
			return s.lease
		}
	}
	if e.lease.id == id {
		return e.lease
	}
	return nil
}

// alive reports whether the key of e can be on a lease that has not ended. b.mu is held.
func (e *entry) alive() bool {
	return !e.lease.dead || slices.ContainsFunc(e.moves, func(l *lease) bool { return !l.dead })
}

// settled reports whether it is known where the key of e is, and that it stays there. b.mu is held.
func (e *entry) settled(now time.Time) bool { return len(e.moves) == 0 && e.lease.usable(now) }

// granted notes that the claim of e holds its lock, and returns the grant. It counts from the lease's last sign of life.
func (b *Backend) granted(e *entry, rev int64) (driver.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, now := e.lease, time.Now()
	switch {
	case b.book[e.index] != e || !l.usable(now):
		return driver.Grant{}, errLeaseLost
	case len(e.moves) > 0:
		return driver.Grant{}, errChanged
	}
	e.rev, e.held, l.used = rev, true, now
	return e.renewed(), nil
}

// renewed notes that e, whose key is not on the move, is held for as long as its lease lasts by now, and returns the grant. b.mu is held.
func (e *entry) renewed() driver.Grant {
	e.start, e.until = e.lease.start, e.lease.end()
	return e.grant()
}

// grant is what the claim of e has. b.mu is held.
func (e *entry) grant() driver.Grant {
	return driver.Grant{Fence: fenceOf(e.rev), Fences: fences, TTL: e.until.Sub(e.start), Start: e.start}
}
