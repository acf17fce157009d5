package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// lease is an etcd lease that all locks with one TTL share. It is guarded by Backend.mu.
type lease struct {
	b       *Backend
	seconds int64 // that were asked for
	id      clientv3.LeaseID
	ttl     time.Duration // that was granted
	start   time.Time     // when the last grant or keepalive was sent that has been acknowledged
	used    time.Time     // when somebody last got a lock on it
	checked time.Time     // when all of its keys were last compared with the book
	dead    bool          // it has ended or is to end, and is never used again
	entries map[*entry]bool
	timer   *time.Timer

	sentinel sentinel
}

// slot is where the present lease for one TTL is, and the request under way to get it or to keep it.
type slot struct {
	lease  *lease
	flight *flight
}

// flight is one request that many wait for. It is given up when none of them is left.
type flight struct {
	waiting int
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
}

// end is when the lease ends, and deadline when it may have ended: clocks may differ in rate by 1 %.
func (l *lease) end() time.Time { return l.start.Add(l.ttl) }

func (l *lease) deadline() time.Time { return l.end().Add(-max(2*time.Millisecond, l.ttl/100)) }

func (l *lease) usable(now time.Time) bool { return !l.dead && now.Before(l.deadline()) }

// enlist enters c into the book on a lease that was kept alive since, or, if fresh is false, has at least half of its TTL left.
func (b *Backend) enlist(ctx context.Context, c driver.Claim, since time.Time, fresh bool) (*entry, *lease, error) {
	seconds := seconds(c.TTL)
	for range 3 {
		b.mu.Lock()
		s := b.slots[seconds]
		if s == nil {
			s = &slot{}
			b.slots[seconds] = s
		}
		now := time.Now()
		if l := s.lease; l != nil && !l.usable(now) {
			b.bury(l)
		}
		if l := s.lease; l != nil && (!l.start.Before(since) || !fresh && now.Sub(l.start) <= l.ttl/2) {
			defer b.mu.Unlock()
			l.used = now
			return b.enter(c, l), l, nil
		}
		f := b.fly(s, seconds)
		b.mu.Unlock()
		if err := b.join(ctx, s, f); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errLeaseLost
}

// fly starts a request for the lease of s, or returns the one that is under way. b.mu is held.
func (b *Backend) fly(s *slot, seconds int64) *flight {
	if s.flight == nil {
		f := &flight{done: make(chan struct{})}
		s.flight = f
		l := s.lease
		b.calls.Go(func() {
			ctx, cancel := context.WithTimeout(b.ctx, b.flightLimit(seconds))
			defer cancel()
			b.mu.Lock()
			f.cancel = cancel
			abandoned := f.waiting == 0
			b.mu.Unlock()
			sent := time.Now()
			switch {
			case abandoned:
			case l == nil:
				f.err = b.newLease(ctx, s, seconds)
			default:
				if f.err = b.keepAlive(ctx, l); isLeaseNotFound(f.err) {
					f.err = nil // there is another one to be had
				}
			}
			if !abandoned {
				b.note(ctx, sent, f.err)
			}
			b.mu.Lock()
			if s.flight == f {
				s.flight = nil
			}
			b.mu.Unlock()
			close(f.done)
		})
	}
	s.flight.waiting++
	return s.flight
}

// flightLimit is how long a flight for a lease of so many seconds may take.
func (b *Backend) flightLimit(seconds int64) time.Duration {
	if other, _ := b.elsewhere(); other {
		return b.limits.of(time.Duration(seconds) * time.Second)
	}
	return requestLimit
}

// join waits for f.
func (b *Backend) join(ctx context.Context, s *slot, f *flight) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		if f.cancel != nil {
			f.cancel()
		}
		if s.flight == f {
			s.flight = nil
		}
	}
	return ctx.Err()
}

// newLease gets a lease for s.
func (b *Backend) newLease(ctx context.Context, s *slot, seconds int64) error {
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	sent := time.Now()
	resp, err := client.Grant(ctx, seconds)
	if err != nil {
		return ended(ctx, err)
	}
	l := &lease{
		b: b, seconds: seconds, id: resp.ID, ttl: time.Duration(resp.TTL) * time.Second, start: sent, used: sent, entries: map[*entry]bool{},
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || s.lease != nil || b.slots[seconds] != s {
		b.revoke(l) // nobody waits for it any more, and it has been replaced
		return nil
	}
	s.lease = l
	l.timer = time.AfterFunc(l.ttl/3, l.tick)
	return nil
}

// keepAlive asks the server to count the TTL of l anew. A lease whose deadline has passed meanwhile is given up, even if the server still has it: those
// who relied on it know no better than that it has ended.
func (b *Backend) keepAlive(ctx context.Context, l *lease) error {
	var sent time.Time
	err := b.patiently(ctx, l.ttl, func(ctx context.Context) error {
		sent = time.Now()
		return b.beat(ctx, l.id)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case l.dead:
		return errLeaseLost
	case isLeaseNotFound(err), !time.Now().Before(l.deadline()):
		b.bury(l)
		return rpctypes.ErrLeaseNotFound
	case err != nil:
		return err
	case sent.After(l.start):
		l.start = sent
	}
	return nil
}

// bury gives l up: nobody uses it again, it is revoked, and everybody on it is told. b.mu is held.
func (b *Backend) bury(l *lease) {
	if l.dead {
		return
	}
	l.dead = true
	l.timer.Stop()
	l.sentinel.stop()
	if s := b.slots[l.seconds]; s != nil && s.lease == l {
		s.lease = nil
	}
	var held []string
	for e := range l.entries {
		if e.alive() { // it may be on another lease, and its hold counts on that one
			continue
		}
		e.tell()
		if e.held {
			held = append(held, b.keyOf(e))
		}
		if e.users == 0 {
			b.strike(e)
		}
	}
	b.doubtHolds(held)
	b.revoke(l)
}

// revoke ends l, and with it whatever is still attached to it. If that fails it ends by itself. b.mu is held.
func (b *Backend) revoke(l *lease) {
	b.background(requestLimit, func(ctx context.Context) {
		if client, err := b.dial.get(ctx); err == nil {
			_, _ = client.Revoke(ctx, l.id)
		}
	})
}
