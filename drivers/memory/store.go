package memory

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// lastFence belongs to the process and not to a store, so that fences rise also when a store is dropped and made anew.
var lastFence atomic.Uint64

func nextFence(now time.Time) uint64 {
	for {
		last := lastFence.Load()
		fence := max(last+1, uint64(now.UnixMicro()))
		if lastFence.CompareAndSwap(last, fence) {
			return fence
		}
	}
}

// store is a lock table.
type store struct {
	name    string
	clients int // guarded by named

	mu      sync.Mutex // guards everything below
	locks   map[string]*lock
	sweepAt int // how many keys make the next sweep worth its while
}

// lock is a key that somebody holds. Only a held key has a queue: whoever ends a hold gives the key to the first in line
// before mu is unlocked, so nobody overtakes the queue.
type lock struct {
	holder  driver.Claim
	fence   uint64
	since   time.Time
	from    time.Time // what expires counts from
	expires time.Time
	queue   []*waiter
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	now, err := b.enter(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer b.store.mu.Unlock()
	return b.store.acquire(c, now)
}

func (s *store) acquire(c driver.Claim, now time.Time) (driver.Grant, error) {
	l := s.find(c.Key, now)
	switch {
	case l == nil:
		s.sweep(now)
		l = &lock{}
		l.give(c, now)
		s.locks[c.Key] = l
	case l.holder.Token == c.Token:
		l.prolong(now, c.TTL)
	default:
		return driver.Grant{}, driver.ErrHeld
	}
	return l.grant(), nil
}

// prolong never shortens: a request that comes late must not end early what was granted since.
func (l *lock) prolong(now time.Time, ttl time.Duration) {
	if now.Add(ttl).After(l.expires) {
		l.expireAfter(now, ttl)
	}
}

// grant is what the holder was given last: the TTL that was asked for, and when that began.
func (l *lock) grant() driver.Grant {
	return driver.Grant{Fence: l.fence, TTL: l.expires.Sub(l.from), Start: l.from}
}

// Renew implements [driver.Backend].
func (b *Backend) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	now, err := b.enter(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer b.store.mu.Unlock()
	l := b.store.find(c.Key, now)
	if l == nil || l.holder.Token != c.Token {
		return driver.Grant{}, driver.ErrNotOwner
	}
	l.prolong(now, c.TTL)
	return l.grant(), nil
}

// RenewBatch implements [driver.BatchRenewer].
func (b *Backend) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	renewals := make([]driver.Renewal, len(claims))
	for i, c := range claims {
		renewals[i].Grant, renewals[i].Err = b.Renew(ctx, c)
	}
	return renewals
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	now, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer b.store.mu.Unlock()
	l := b.store.find(c.Key, now)
	if l != nil && l.holder.Token == c.Token {
		b.store.pass(l, now)
		return nil
	}
	if l != nil && l.dequeue(c.Token) {
		return nil
	}
	return driver.ErrNotOwner
}

// find returns the lock named key as it is at now, nil when nobody holds it. What was due at the expiry of a hold is made up
// for here as of that instant: whether and when anybody looked makes no difference.
func (s *store) find(key string, now time.Time) *lock {
	l := s.locks[key]
	for l != nil && !now.Before(l.expires) {
		l = s.pass(l, l.expires)
	}
	return l
}

// pass takes l from its holder and gives it to the first in line. Without one the key is forgotten and the answer is nil.
func (s *store) pass(l *lock, at time.Time) *lock {
	if len(l.queue) == 0 {
		delete(s.locks, l.holder.Key)
		return nil
	}
	first := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	l.give(first.claim, at)
	first.wake()
	return l
}

func (l *lock) give(c driver.Claim, at time.Time) {
	l.holder, l.fence, l.since = c, nextFence(at), at
	l.expireAfter(at, c.TTL)
}

// sweep forgets the keys whose holds expired unseen. It runs when the number of keys has doubled, which costs each new key
// a constant.
func (s *store) sweep(now time.Time) {
	if len(s.locks) < s.sweepAt {
		return
	}
	for key := range s.locks {
		s.find(key, now)
	}
	s.sweepAt = max(64, 2*len(s.locks))
}
