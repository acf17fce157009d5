package etcd

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pulse is the stream that keepalives travel on. clientv3's own KeepAliveOnce opens one for each, for which a user has to show his password, and repeats it
// without a pause while the server cannot be reached; its KeepAlive does not say when a keepalive was sent.
type pulse struct {
	opening chan struct{} // has room while nobody opens a stream
	mu      sync.Mutex
	stream  *pulseStream
}

// pulseStream is one such stream. The server answers the keepalives of a lease in their order.
type pulseStream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel  context.CancelFunc
	pending map[clientv3.LeaseID][]chan<- error
	waiting int // calls that wait for an answer
}

// beat keeps a lease alive.
func (b *Backend) beat(ctx context.Context, id clientv3.LeaseID) error {
	client, err := b.dial.get(ctx)
	if err != nil {
		return err
	}
	if client.ActiveConnection() == nil { // it was made by clientv3.NewCtxClient
		_, err := client.KeepAliveOnce(ctx, id)
		return ended(ctx, err)
	}
	answer := make(chan error, 1)
	s, err := b.send(ctx, client, id, answer)
	if err != nil {
		return clientv3.ContextError(ctx, err)
	}
	select {
	case err := <-answer:
		b.pulse.done(s, false)
		return err
	case <-ctx.Done():
		b.pulse.done(s, true)
		return ctx.Err()
	}
}

// done notes that a call does not wait any longer. A stream on which there was no answer in time is not used again, as another one may lead to another member; it
// ends when nobody waits on it.
func (p *pulse) done(s *pulseStream, late bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if late && p.stream == s {
		p.stream = nil
	}
	if s.waiting--; s.waiting == 0 && p.stream != s {
		s.cancel()
	}
}

// send sends a keepalive whose answer goes to answer.
func (b *Backend) send(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, answer chan<- error) (*pulseStream, error) {
	p := &b.pulse
	select {
	case p.opening <- struct{}{}:
		defer func() { <-p.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream == nil {
		p.mu.Unlock()
		s, err := b.openPulse(ctx, client)
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
		p.stream = s
		b.calls.Go(func() { p.receive(s) })
	}
	s := p.stream
	s.waiting++
	s.pending[id] = append(s.pending[id], answer)
	if err := s.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		s.cancel() // the receiver has the reason
	}
	return s, nil
}

// openPulse makes a stream. It lasts until Close; ctx bounds the making.
func (b *Backend) openPulse(ctx context.Context, client *clientv3.Client) (*pulseStream, error) {
	living, cancel := context.WithCancel(clientv3.WithRequireLeader(b.ctx))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(living)
	if !stop() {
		return nil, ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &pulseStream{stream, cancel, map[clientv3.LeaseID][]chan<- error{}, 0}, nil
}

// receive hands out answers until the stream ends.
func (p *pulse) receive(s *pulseStream) {
	defer s.cancel()
	for {
		resp, err := s.Recv()
		p.mu.Lock()
		if err != nil {
			if p.stream == s {
				p.stream = nil
			}
			for _, waiting := range s.pending {
				for _, answer := range waiting {
					answer <- rpctypes.Error(err)
				}
			}
			p.mu.Unlock()
			return
		}
		id := clientv3.LeaseID(resp.ID)
		if waiting := s.pending[id]; len(waiting) > 0 {
			if resp.TTL <= 0 {
				waiting[0] <- rpctypes.ErrLeaseNotFound
			} else {
				waiting[0] <- nil
			}
			if s.pending[id] = waiting[1:]; len(waiting) == 1 {
				delete(s.pending, id)
			}
		}
		p.mu.Unlock()
	}
}
