package etcd

import (
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// entry is a key of ours that is in the store, or may be: it is entered before the request that creates it is sent. A key on one of our leases that
// has no entry is nobody's: a request that was long in the network. The lease would keep it for ever, and so it is deleted.
//
// Entries are guarded by Backend.mu.
type entry struct {
	index string // in the book
	name  string // of the key
	lease *lease // that the key is attached to
	other *lease // or this one: a request to move it there has not been answered

	rev   int64     // create revision; 0: not known
	mod   int64     // revision of the last change, as far as known
	users int       // calls that make or watch the key
	waits int       // those out of them that are in the queue
	held  bool      // it was granted
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

// unanswered notes that a request was sent of which nobody knows what becomes: the name in it, and any other that is in use now, is never used again.
func (b *Backend) unanswered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.era++
}

// made notes that a request created the key of e with revision rev; found, that it was there.
func (b *Backend) made(e *entry, rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.rev, e.mine = rev, true
}

func (b *Backend) found(e *entry, rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.rev = rev
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
	if maybe && !e.held {
		e.until = now.Add(e.lease.ttl)
	}
	if e.lease.dead || !now.Before(e.until) {
		b.strike(e)
	}
}

// strike takes e out of the book. b.mu is held.
func (b *Backend) strike(e *entry) {
	if b.book[e.index] == e {
		delete(b.book, e.index)
	}
	if b.names[e.name] == e && !e.going {
		delete(b.names, e.name)
	}
	delete(e.lease.entries, e)
	if e.other != nil {
		delete(e.other.entries, e)
	}
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

// attach notes that the key of e is on l. b.mu is held.
func (b *Backend) attach(e *entry, l *lease) {
	if b.book[e.index] != e {
		return
	}
	delete(e.lease.entries, e)
	if e.other != nil {
		delete(e.other.entries, e)
	}
	e.lease, e.other = l, nil
	l.entries[e] = true
}

// granted notes that the claim of e holds its lock, and returns the grant. It counts from the lease's last sign of life.
func (b *Backend) granted(e *entry, rev int64) (driver.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, now := e.lease, time.Now()
	if b.book[e.index] != e || !l.usable(now) {
		return driver.Grant{}, errLeaseLost
	}
	e.rev, e.mod, e.held, l.used = rev, max(e.mod, rev), true, now
	return e.renewed(), nil
}

// renewed notes that e is held for as long as its lease lasts by now, and returns the grant. b.mu is held.
func (e *entry) renewed() driver.Grant {
	e.start, e.until = e.lease.start, e.lease.start.Add(e.lease.ttl)
	return e.grant()
}

// grant is what the claim of e has. b.mu is held.
func (e *entry) grant() driver.Grant {
	return driver.Grant{Fence: fenceOf(e.rev), Fences: fences, TTL: e.until.Sub(e.start), Start: e.start}
}
