package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var errLeft = errors.New("memory: the claim was released, or granted and expired, while it waited")

// waiter is a claim's place in a queue. It outlives the Wait call that made it: it goes when the claim gets the lock or is released.
type waiter struct {
	claim  driver.Claim
	client *Backend
	woken  chan struct{} // closed to make the Wait calls of this claim look again; nil while there is nobody to wake
	alarm  time.Time     // when they look by themselves
}

// Wait implements [driver.Waiter]. Nothing runs in the background: each waiting call has a timer for the holder's expiry,
// and the first to look after it passes the lock on, be it to another.
func (b *Backend) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	now, err := b.enter(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	if g, err := b.store.acquire(c, now); err == nil {
		b.store.mu.Unlock()
		return g, nil
	}
	l := b.store.locks[c.Key]
	w := l.enqueue(c, b)
	timer := time.NewTimer(l.expires.Sub(now))
	defer timer.Stop()
	for {
		woken := w.arm(l.expires)
		b.store.mu.Unlock()
		queued()
		select {
		case <-ctx.Done():
		case <-b.done:
		case <-woken:
		case <-timer.C:
		}
		if now, err = b.enter(ctx); err != nil {
			return driver.Grant{}, err
		}
		l = b.store.find(c.Key, now)
		if l == nil || !slices.Contains(l.queue, w) {
			defer b.store.mu.Unlock()
			return l.granted(c.Token)
		}
		timer.Reset(l.expires.Sub(now))
	}
}

func (w *waiter) arm(t time.Time) <-chan struct{} {
	w.alarm = t
	if w.woken == nil {
		w.woken = make(chan struct{})
	}
	return w.woken
}

func (w *waiter) wake() {
	if w.woken != nil {
		close(w.woken)
		w.woken = nil
	}
}

// granted returns the grant of a token that is no longer in the queue.
func (l *lock) granted(token string) (driver.Grant, error) {
	if l == nil || l.holder.Token != token {
		return driver.Grant{}, errLeft
	}
	return l.grant(), nil
}

// enqueue returns the place of c's token: the one it has, or else the last.
func (l *lock) enqueue(c driver.Claim, client *Backend) *waiter {
	i := l.place(c.Token)
	if i < 0 {
		i = len(l.queue)
		l.queue = append(l.queue, &waiter{})
	}
	l.queue[i].claim, l.queue[i].client = c, client
	return l.queue[i]
}

// dequeue reports whether token was in the queue.
func (l *lock) dequeue(token string) bool {
	i := l.place(token)
	if i < 0 {
		return false
	}
	l.queue[i].wake()
	l.queue = slices.Delete(l.queue, i, i+1)
	return true
}

func (l *lock) place(token string) int {
	return slices.IndexFunc(l.queue, func(w *waiter) bool { return w.claim.Token == token })
}

// expireAfter sets the end of the hold and wakes those whose alarm would come too late. One that comes too early does no harm.
func (l *lock) expireAfter(from time.Time, ttl time.Duration) {
	l.from, l.expires = from, from.Add(ttl)
	for _, w := range l.queue {
		if w.alarm.After(l.expires) {
			w.wake()
		}
	}
}

// abandon takes the claims of a client out of every queue.
func (s *store) abandon(client *Backend) {
	for _, l := range s.locks {
		l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool { return w.client == client })
	}
}
