package etcd

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

const (
	// maxInFlight is how many requests or batches may be on their way at the same time before further ones are gathered.
	maxInFlight = 4

	// usualPatience is how long requests gather behind others that are not answered. Then they go out nevertheless: another member may answer them.
	usualPatience = 100 * time.Millisecond

	// longAnswer is how long a request may take and still count as answered. The client repeats one that a proxy in between has given up, and the first may
	// then arrive after the second was answered.
	longAnswer = time.Second
)

// request is what makes or deletes a key.
type request struct {
	lock   string // the folder of the lock whose key it may make
	ifs    []clientv3.Cmp
	then   []clientv3.Op
	els    []clientv3.Op
	remove string // or else the name of a key to delete

	succeeded bool // the condition held, or there was something to delete
	rev       int64
	responses []*pb.ResponseOp
	err       error

	done chan struct{} // made when the request is gathered
	gone bool          // nobody waits for it; guarded by line.mu while it is gathered
}

// line is how requests go out. One that finds the way free goes straight. Those that come while others are on their way gather, and go out together, as one
// transaction, when one of those has been answered: for the server that is hardly more than a single one.
type line struct {
	patience time.Duration

	mu       sync.Mutex
	inFlight int
	gathered []*request
	overdue  *time.Timer // runs while requests are gathered
}

// do has the server do what r says. When ctx ends first, that may still happen, and r is not to be looked at.
func (b *Backend) do(ctx context.Context, client *clientv3.Client, r *request) error {
	sent := time.Now()
	err := b.deliver(ctx, client, r)
	if err != nil && !isRefusal(err) || time.Since(sent) > longAnswer {
		b.unanswered()
	}
	return err
}

// deliver sends r, by itself or with others, and waits for the answer.
func (b *Backend) deliver(ctx context.Context, client *clientv3.Client, r *request) error {
	if b.free(client, r) {
		r.alone(ctx, client)
		b.next(client)
		return r.err
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		b.line.mu.Lock()
		r.gone = true
		b.line.mu.Unlock()
		return ctx.Err()
	}
}

// free reports whether r may go straight out. Otherwise it is sent with others.
func (b *Backend) free(client *clientv3.Client, r *request) bool {
	n := &b.line
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inFlight < maxInFlight {
		n.inFlight++
		return true
	}
	r.done = make(chan struct{})
	if n.gathered = append(n.gathered, r); len(n.gathered) == 1 {
		b.overtakeLater(client)
	}
	return false
}

// overtakeLater sees to it that what is gathered does not wait too long. The mutex of the line is held.
func (b *Backend) overtakeLater(client *clientv3.Client) {
	if n := &b.line; n.overdue == nil {
		n.overdue = time.AfterFunc(n.patience, func() { b.overtake(client) })
	} else {
		n.overdue.Reset(n.patience)
	}
}

// overtake sends what has gathered although those before it have not been answered.
func (b *Backend) overtake(client *clientv3.Client) {
	b.line.mu.Lock()
	b.line.inFlight++
	b.line.mu.Unlock()
	b.next(client)
}

// next sends what has gathered, in the place of a request that has been answered.
func (b *Backend) next(client *clientv3.Client) {
	b.line.mu.Lock()
	batch := b.collect(client)
	if len(batch) == 0 {
		b.line.inFlight--
	}
	b.line.mu.Unlock()
	if len(batch) > 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.background(requestLimit, func(ctx context.Context) { b.sendBatch(ctx, client, batch) })
	}
}

// collect returns gathered requests that may go out together. Keys of one lock never do: they would have the same create revision, and none of them would be
// first. The mutex of the line is held.
func (b *Backend) collect(client *clientv3.Client) (batch []*request) {
	n := &b.line
	if len(n.gathered) == 0 {
		return nil
	}
	n.overdue.Stop()
	locks := map[string]bool{}
	rest := n.gathered[:0]
	for _, r := range n.gathered {
		switch {
		case r.gone:
		case len(batch) == txnSize || r.lock != "" && locks[r.lock]:
			rest = append(rest, r)
		default:
			locks[r.lock] = true
			batch = append(batch, r)
		}
	}
	clear(n.gathered[len(rest):])
	if n.gathered = rest; len(rest) > 0 {
		b.overtakeLater(client)
	}
	return batch
}

// sendBatch sends requests of different callers. None of their contexts may end it for the others.
func (b *Backend) sendBatch(ctx context.Context, client *clientv3.Client, batch []*request) {
	if len(batch) == 1 || !together(ctx, client, batch) {
		var wg sync.WaitGroup
		for _, r := range batch {
			wg.Go(func() { r.alone(ctx, client) })
		}
		wg.Wait()
	}
	for _, r := range batch {
		close(r.done)
	}
	runtime.Gosched() // those who have got their answers may have more to ask, and then it goes out together
	b.next(client)
}

// alone sends r by itself.
func (r *request) alone(ctx context.Context, client *clientv3.Client) {
	if r.remove != "" {
		var resp *clientv3.DeleteResponse
		if resp, r.err = client.Delete(ctx, r.remove); r.err == nil {
			r.succeeded = resp.Deleted > 0
		}
	} else {
		var resp *clientv3.TxnResponse
		if resp, r.err = client.Txn(ctx).If(r.ifs...).Then(r.then...).Else(r.els...).Commit(); r.err == nil {
			r.succeeded, r.rev, r.responses = resp.Succeeded, resp.Header.Revision, resp.Responses
		}
	}
	r.err = ended(ctx, r.err)
}

// together sends requests as one. It reports false if the server has refused that and done nothing: there is one among them that it would refuse by itself too,
// which is not the others' fault.
func together(ctx context.Context, client *clientv3.Client, batch []*request) bool {
	ops := make([]clientv3.Op, len(batch))
	for i, r := range batch {
		if r.remove != "" {
			ops[i] = clientv3.OpDelete(r.remove)
		} else {
			ops[i] = clientv3.OpTxn(r.ifs, r.then, r.els)
		}
	}
	resp, err := client.Txn(ctx).Then(ops...).Commit()
	if isRefusal(err) {
		return false
	}
	for i, r := range batch {
		switch {
		case err != nil:
			r.err = ended(ctx, err)
		case r.remove != "":
			r.succeeded = resp.Responses[i].GetResponseDeleteRange().Deleted > 0
		default:
			txn := resp.Responses[i].GetResponseTxn()
			r.succeeded, r.rev, r.responses = txn.Succeeded, resp.Header.Revision, txn.Responses
		}
	}
	return true
}

// isRefusal reports whether err is the server's answer to a request that it did not begin with.
func isRefusal(err error) bool {
	var answer rpctypes.EtcdError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}
