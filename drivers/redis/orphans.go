package redis

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// orphans are the claims whose wait ended without the lock. A request of theirs may still be in the network, for longer than the engine cleans up. When it arrives
// it enters the queue, and is given the lock in its turn, for which nobody waits: the message tells us, and the answer is another release.
//
// The engine is done with a token when it has called Release for it, and only then may the driver release it again: a token that is between two attempts, or held, is
// no orphan.
type orphans struct {
	q *waiters
	n atomic.Int64 // len(claims), for those who have nothing to do with it

	mu        sync.Mutex
	claims    map[string]*orphan // by token
	order     []string           // the tokens, oldest first
	releasing int
}

type orphan struct {
	claim    driver.Claim
	released bool // the engine is done with it
}

const (
	mostOrphans   = 1024 // beyond that the oldest is forgotten: what it may have left in the store runs out with its TTL
	mostReleasing = 16   // releases of orphans at a time; beyond that one is left to its TTL
	orphanTries   = 3
	orphanLimit   = 2 * time.Second // for each try
)

func (o *orphans) init(q *waiters) { o.q, o.claims = q, map[string]*orphan{} }

// add notes a claim whose wait has failed.
func (o *orphans) add(c driver.Claim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claims[c.Token] != nil {
		return
	}
	if len(o.order) == mostOrphans {
		delete(o.claims, o.order[0])
		o.order = slices.Delete(o.order, 0, 1)
	}
	o.claims[c.Token] = &orphan{claim: c}
	o.order = append(o.order, c.Token)
	o.n.Store(int64(len(o.order)))
}

// released notes that the engine is done with a token.
func (o *orphans) released(token string) {
	if o.n.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.claims[token]; x != nil {
		x.released = true
	}
}

// given takes a message for a token that nobody waits for. It reports whether that is an orphan, which is then released. The mutex of the waiters is held.
func (o *orphans) given(token string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.claims[token]
	if x == nil || !x.released {
		return false
	}
	if o.releasing < mostReleasing && !o.q.closed {
		o.releasing++
		o.q.wg.Go(func() { o.release(x.claim) })
	}
	return true
}

// release takes an orphan out of the store, which passes the lock on. Close ends it.
func (o *orphans) release(c driver.Claim) {
	defer func() {
		o.mu.Lock()
		o.releasing--
		o.mu.Unlock()
	}()
	for range orphanTries {
		ctx, cancel := context.WithTimeout(context.Background(), min(max(c.TTL, 100*time.Millisecond), orphanLimit))
		err := o.q.b.Release(ctx, c)
		cancel()
		if err == nil || errors.Is(err, driver.ErrNotOwner) || o.q.b.open(context.Background()) != nil {
			return
		}
	}
}
