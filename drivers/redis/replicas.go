package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// acquireReplicated is acquire that waits for replicas. A grant that too few replicas have acknowledged is an error, and so
// it is asked for again, or released.
func (b *Backend) acquireReplicated(ctx context.Context, c driver.Claim, r *request) (standing, error) {
	var acked *redis.IntCmd
	err := b.pipe.doFor(ctx, r, func(ctx context.Context, client redis.UniversalClient) (err error) {
		acked, err = r.evaluateAndWait(ctx, client, b.opt.replicas)
		return err
	})
	if err != nil {
		return standing{}, classify("acquire", err)
	}
	s, err := parseStanding("acquire", r.reply)
	switch {
	case err == nil && refused(acked.Err()):
		return standing{}, b.withdraw(ctx, c, named("wait for replicas", acked.Err()))
	case err != nil || s.fence == 0:
		return s, err
	case acked.Err() != nil:
		return standing{}, named("wait for replicas", acked.Err())
	case acked.Val() < int64(b.opt.replicas):
		return standing{}, fmt.Errorf("redis: acquire: %d of %d replicas have acknowledged the grant", acked.Val(), b.opt.replicas)
	}
	return s, nil
}

// withdraw releases the token of a request that was applied although the user may not do all that belongs to it, so that err may be called permanent. When the
// release fails it stays open what became of the request, and it will be made again: to be refused again, so that a release which is late ends no hold.
func (b *Backend) withdraw(ctx context.Context, c driver.Claim, err error) error {
	if failed := b.Release(ctx, c); failed != nil && !errors.Is(failed, driver.ErrNotOwner) {
		return err
	}
	return driver.Permanent(err)
}

// replicaWait is how long the server waits for its replicas.
const replicaWait = 500 * time.Millisecond

// evaluateAndWait runs the script, and WAIT behind it on the connection that wrote. The client knows of a key that has moved only when it chooses the server
// itself; here another one is tried once, if nothing was applied.
func (r *request) evaluateAndWait(ctx context.Context, client redis.UniversalClient, replicas int) (acked *redis.IntCmd, err error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return r.evaluateAndWaitOn(ctx, client, replicas)
	}
	node, err := cluster.MasterForKey(ctx, r.keys[0])
	if err != nil {
		return nil, err
	}
	if acked, err = r.evaluateAndWaitOn(ctx, node, replicas); err == nil {
		return acked, nil
	}
	if next := instead(ctx, cluster, node, r.keys[0], err); next != nil {
		return r.evaluateAndWaitOn(ctx, next, replicas)
	}
	return acked, err
}

// evaluateAndWaitOn is evaluateAndWait on one server.
func (r *request) evaluateAndWaitOn(ctx context.Context, node redis.Cmdable, replicas int) (acked *redis.IntCmd, err error) {
	for {
		pipe := node.Pipeline()
		cmd := once{redis.NewCmd(ctx, r.command()...)}
		_ = pipe.Process(ctx, cmd)
		acked = redis.NewIntCmd(ctx, "wait", replicas, replicaWait.Milliseconds())
		_ = pipe.Process(ctx, acked)
		_, failed := pipe.Exec(ctx)
		if r.reply, err = cmd.outcome(failed); !unknownScript(err) || r.full {
			return acked, err
		}
		if !r.again() {
			return acked, errUnwanted
		}
	}
}

// instead returns the server to ask after node has failed with err, or nil. It has the client learn anew which server has what.
func instead(ctx context.Context, cluster *redis.ClusterClient, node *redis.Client, key string, err error) (next *redis.Client) {
	var reply redis.Error
	var sending *net.OpError
	addr, moved := redis.IsMovedError(err)
	switch {
	case moved, errors.As(err, &sending) && sending.Op == "dial":
	case errors.As(err, &reply):
		return nil
	default:
		cluster.ReloadState(ctx) // for the next attempt; this one may have been applied
		return nil
	}
	var mu sync.Mutex
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, n *redis.Client) error { // unlike ReloadState it waits until the client has learnt
		mu.Lock()
		defer mu.Unlock()
		if n.Options().Addr == addr {
			next = n
		}
		return nil
	})
	if next == nil {
		next, _ = cluster.MasterForKey(ctx, key)
	}
	if next == node {
		return nil
	}
	return next
}
