package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/dlock-go/dlock/internal/gather"
)

// maxInFlight is how many requests or batches may be under way before further requests gather.
const maxInFlight = 4

// batchSeconds is the TTL, in seconds, that the limit of a batch is for.
const batchSeconds = 10

// longAnswer is how long a request may take and still count as answered. The client repeats one that a proxy in between has given up, and the first may
// then arrive after the second was answered.
const longAnswer = time.Second

// request is what makes or deletes a key.
type request struct {
	gather.Ticket
	lock   string // the folder of the lock whose key it may make
	entry  *entry // of that key
	ifs    []clientv3.Cmp
	then   []clientv3.Op
	els    []clientv3.Op
	remove string // or else the name of a key to delete

	succeeded bool // the condition held, or there was something to delete
	rev       int64
	responses []*pb.ResponseOp
	err       error
}

// newGate returns what requests go out through. Those that gather become one transaction, which is hardly more for the server than a single one. Where one member
// does not answer, another may.
func (b *Backend) newGate() gather.Gate[*request] {
	return gather.Gate[*request]{Width: maxInFlight, Patience: 100 * time.Millisecond, Alone: b.alone, Together: b.together, Pick: pick, Closed: errClosed}
}

// do has the server do what r says. When ctx ends first, that may still happen, and r is not to be looked at.
func (b *Backend) do(ctx context.Context, r *request) error {
	sent := time.Now()
	err := b.gate.Do(ctx, r)
	if err == nil {
		err = r.err
	}
	took := time.Since(sent)
	if err == nil {
		b.limits.answered(took)
	}
	// A delete with a condition is of no concern to whoever has the name next.
	if (r.entry != nil || r.remove != "") && (err != nil && !isRefusal(err) || took > longAnswer) {
		b.unanswered(r.entry)
	}
	return err
}

// pick chooses requests that may go out together. Keys of one lock never do: they would have the same create revision, and none of them would be first.
func pick(gathered []*request) (batch, rest []*request) {
	locks := map[string]bool{}
	for _, r := range gathered {
		if len(batch) == txnSize || r.lock != "" && locks[r.lock] {
			rest = append(rest, r)
			continue
		}
		locks[r.lock] = true
		batch = append(batch, r)
	}
	return batch, rest
}

// together sends requests of different callers.
func (b *Backend) together(batch []*request) {
	ctx, cancel := context.WithTimeout(b.ctx, b.flightLimit(batchSeconds))
	defer cancel()
	sent := time.Now()
	defer func() { b.note(ctx, sent, batch[0].err) }()
	if len(batch) > 1 && b.combined(ctx, batch) {
		return
	}
	var wg sync.WaitGroup
	for _, r := range batch {
		wg.Go(func() { b.alone(ctx, r) })
	}
	wg.Wait()
}

// alone sends r by itself.
func (b *Backend) alone(ctx context.Context, r *request) {
	client, err := b.dial.get(ctx)
	if err != nil {
		r.err = err
		return
	}
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

// combined sends requests as one. It reports false if the server has refused that and done nothing: there is one among them that it would refuse by itself too,
// which is not the others' fault.
func (b *Backend) combined(ctx context.Context, batch []*request) bool {
	client, err := b.dial.get(ctx)
	if err != nil {
		return false
	}
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
		case errors.Is(err, rpctypes.ErrNoSpace) && r.remove != "":
			b.removeAfter(ctx, r, err)
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

// removeAfter repeats a delete by itself for which there was no space: it needs none. If there is
// nothing to delete the first one may have done it.
func (b *Backend) removeAfter(ctx context.Context, r *request, err error) {
	if b.alone(ctx, r); r.err == nil && !r.succeeded {
		r.err = err
	}
}

// isRefusal reports whether err is the server's answer to a request that it did not begin with.
// ErrNoSpace is none: the server may say so when it has done what was asked for.
func isRefusal(err error) bool {
	var answer rpctypes.EtcdError
	if !errors.As(err, &answer) || errors.Is(err, rpctypes.ErrNoSpace) {
		return false
	}
	switch answer.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}
