package etcd

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// sentinel is a key on a lease that is there to be watched: it goes when the lease does. A server
// may end a lease whose keepalive it has acknowledged: an administrator revokes it, or a leader
// that has stalled for longer than the TTL does. Holders would learn of that by their next renewal
// only.
//
// It is made by the first renewal, as until then nothing was acknowledged but the lease itself, and
// so costs nothing where locks are held for a short while. It is guarded by Backend.mu.
type sentinel struct {
	name    string             // of the key
	cancel  context.CancelFunc // of the watch; nil: there is none
	refused bool               // the user may not make it
}

// stop ends the watch. The next renewal makes another one.
func (s *sentinel) stop() {
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// WatchLosses implements [driver.LossWatcher].
func (b *Backend) WatchLosses(suspect func(key string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.suspect = suspect
}

// guard has the sentinel of l watched, if somebody holds a lock on it.
func (b *Backend) guard(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.suspect == nil || b.closed || l.dead || l.sentinel.cancel != nil || l.sentinel.refused {
		return
	}
	for e := range l.entries {
		if !e.held {
			continue
		}
		watching, stream := b.watching(b.ctx)
		ctx, cancel := context.WithCancel(watching)
		l.sentinel.cancel = cancel
		if l.sentinel.name == "" {
			l.sentinel.name = b.sentinelOf(l, b.keyOf(e))
		}
		name := l.sentinel.name
		b.calls.Go(func() {
			defer cancel()
			err := b.watchSentinel(ctx, l, name)
			b.mu.Lock()
			defer b.mu.Unlock()
			l.sentinel.refused = l.sentinel.refused || errors.Is(err, rpctypes.ErrPermissionDenied)
			if b.stream.Load() == stream { // else there may be another one
				l.sentinel.cancel = nil
			}
		})
		return
	}
}

// sentinelOf returns the name of the sentinel of l. It begins as the lock does that is held by
// then, as far as the user may write there. No lock has a key of this name: those of a lock have a
// slash after its name, and a name has two digits after a percent sign.
func (b *Backend) sentinelOf(l *lease, key string) string {
	return b.opt.namespace + escape(key) + "%lease-" + strconv.FormatInt(int64(l.id), 16)
}

// keyOf returns the key of the claim that e is of. b.mu is held.
func (b *Backend) keyOf(e *entry) string {
	folder := e.index[len(b.opt.namespace) : len(e.index)-markDigits]
	return unescape(strings.TrimSuffix(folder, "/"))
}

// watchSentinel makes the sentinel of l and watches it until it is gone or ctx ends.
func (b *Backend) watchSentinel(ctx context.Context, l *lease, name string) error {
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, b.flightLimit(l.seconds))
	put, err := client.Put(limited, name, "dlock: watched to learn when its lease ends", clientv3.WithLease(l.id))
	cancel()
	if err != nil {
		return err
	}
	for resp := range client.Watch(ctx, name, clientv3.WithRev(put.Header.Revision+1), clientv3.WithFilterPut()) {
		if len(resp.Events) > 0 {
			b.doubtLease(l)
			return nil
		}
	}
	return nil
}

// doubtLease has those renewed who hold locks on l, and sees to those who wait: the lease may be
// gone.
func (b *Backend) doubtLease(l *lease) {
	b.mu.Lock()
	if l.dead || b.closed {
		b.mu.Unlock()
		return // it was us
	}
	var held []string
	waits := false
	for e := range l.entries {
		if e.held {
			held = append(held, b.keyOf(e))
		}
		waits = waits || e.waits > 0
	}
	if waits {
		b.background(requestLimit, func(ctx context.Context) { b.refresh(ctx, l) })
	}
	b.doubtHolds(held)
	b.mu.Unlock()
}

// doubtHolds says that the holds of these keys may be lost. b.mu is held.
func (b *Backend) doubtHolds(keys []string) {
	suspect := b.suspect
	if suspect == nil || len(keys) == 0 {
		return
	}
	b.background(requestLimit, func(context.Context) {
		for _, key := range keys {
			suspect(key)
		}
	})
}
