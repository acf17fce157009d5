package etcd

import (
	"context"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// anchorIdle is how long the stream stays open after the last wait.
const anchorIdle = 10 * time.Second

// anchor keeps the stream open that all watches of a client share. The client closes it with the last watch, and to open it for every wait would cost more
// than all the rest of the wait. It is guarded by Backend.mu.
type anchor struct {
	waits  int // calls that are in a queue
	cancel context.CancelFunc
	idle   *time.Timer
}

// queue notes that one more call waits on e.
func (b *Backend) queue(client *clientv3.Client, e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.waits++
	a := &b.anchor
	if a.waits++; a.idle != nil {
		a.idle.Stop()
	}
	if a.cancel == nil && !b.closed {
		b.hold(client, e.name)
	}
}

// unqueue notes that one less waits.
func (b *Backend) unqueue(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.waits--
	a := &b.anchor
	if a.waits--; a.waits > 0 || a.cancel == nil {
		return
	}
	if a.idle == nil {
		a.idle = time.AfterFunc(anchorIdle, b.letGo)
	} else {
		a.idle.Reset(anchorIdle)
	}
}

// hold watches a key, any key that the user may read, in such a way that nothing is ever heard of it. b.mu is held.
func (b *Backend) hold(client *clientv3.Client, key string) {
	watching, stream := b.watching(b.ctx)
	ctx, cancel := context.WithCancel(watching)
	b.anchor.cancel = cancel
	b.calls.Go(func() {
		defer cancel()
		for range client.Watch(ctx, key, clientv3.WithFilterPut(), clientv3.WithFilterDelete()) {
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.stream.Load() == stream { // else there may be another one
			b.anchor.cancel = nil
		}
	})
}

// letGo ends the stream if nobody waits.
func (b *Backend) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := &b.anchor; a.waits == 0 && a.cancel != nil {
		a.cancel()
	}
}

// watching returns the context for a watch on the stream that all of them share, and the number of
// that. The client has a stream for each different metadata.
func (b *Backend) watching(parent context.Context) (ctx context.Context, stream int64) {
	ctx, stream = clientv3.WithRequireLeader(parent), b.stream.Load()
	if stream > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "dlock-stream", strconv.FormatInt(stream, 10))
	}
	return ctx, stream
}

// leaveStream has further watches use another stream than this one, on which nothing is heard:
// another one leads to another member.
func (b *Backend) leaveStream(stream int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stream.CompareAndSwap(stream, stream+1) {
		return
	}
	if a := &b.anchor; a.cancel != nil {
		a.cancel()
		a.cancel = nil
	}
	for _, s := range b.slots {
		if s.lease != nil {
			s.lease.sentinel.stop()
		}
	}
}
