package etcd

import (
	"context"
	"sync/atomic"

	"github.com/dlock-go/dlock/internal/after"
)

// op is the context of one call of the driver: it ends with the caller's, with Close, and when a request takes too long. It has the caller's values, and
// no deadline: gRPC would tell the server, in a header that is different each time, and both would pay for that more than for the rest of the headers.
type op struct {
	context.Context // ends
	caller          context.Context
	cancel          context.CancelFunc
	late            atomic.Bool // a request took too long
}

func (o *op) Value(key any) any {
	if v := o.Context.Value(key); v != nil {
		return v
	}
	return o.caller.Value(key)
}

// Err is the caller's error, if that is why.
func (o *op) Err() error {
	switch err := o.Context.Err(); {
	case err == nil:
		return nil
	case o.late.Load():
		return context.DeadlineExceeded
	case o.caller.Err() != nil:
		return o.caller.Err()
	default:
		return err
	}
}

// begin starts a call, which Close ends and waits for.
func (b *Backend) begin(ctx context.Context) (_ *op, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, nil, errClosed
	}
	b.calls.Add(1)
	o := &op{caller: ctx}
	o.Context, o.cancel = context.WithCancel(b.ctx)
	stop := after.End(ctx, o.cancel)
	return o, func() {
		stop()
		o.cancel()
		b.calls.Done()
	}, nil
}
