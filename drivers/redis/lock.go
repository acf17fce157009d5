package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// fences is how many fences each grant reserves. The scripts have it too: all clients of a store must agree.
const fences = 16

// standing is the server's answer to somebody who wants a lock.
type standing struct {
	fence   uint64        // of the grant; 0: another owner has it
	left    time.Duration // of the holder; negative: no expiry, or no holder
	last    uint64        // the last fence that was reserved
	place   int           // in the queue; 0: not in it
	foreign bool          // the holder will not pass the lock on
	gone    bool          // the token is not in the queue
}

func parseStanding(op string, reply any) (standing, error) {
	switch v := reply.(type) {
	case int64:
		if v < 0 {
			return standing{gone: true}, nil
		}
		return standing{fence: uint64(v)}, nil
	case []any:
		var n [4]int64
		if len(v) != len(n) {
			return standing{}, unexpected(op, reply)
		}
		for i := range n {
			var ok bool
			if n[i], ok = v[i].(int64); !ok {
				return standing{}, unexpected(op, v[i])
			}
		}
		return standing{left: time.Duration(n[0]) * time.Millisecond, last: uint64(n[1]), place: int(n[2]), foreign: n[3] == 1}, nil
	default:
		return standing{}, unexpected(op, reply)
	}
}

func grantOf(fence uint64, c driver.Claim) driver.Grant {
	return driver.Grant{Fence: fence, Fences: fences, TTL: time.Duration(millis(c.TTL)) * time.Millisecond}
}

// millis rounds up: a hold never ends early.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

const hour = int64(time.Hour / time.Millisecond)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	s, err := b.acquire(ctx, c, "", false)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case s.fence == 0:
		return driver.Grant{}, driver.ErrHeld
	}
	return grantOf(s.fence, c), nil
}

// acquire gets the lock, or, with a channel, enters the queue.
func (b *Backend) acquire(ctx context.Context, c driver.Claim, channel string, again bool) (standing, error) {
	if err := b.ready(ctx); err != nil {
		return standing{}, err
	}
	ttl := millis(c.TTL)
	r := &request{
		script: &acquireScript, keys: keys(c.Key),
		args: []any{"d:" + c.Token, c.Owner, ttl, ttl + hour, channel, flag(again), flag(b.cluster.on())},
	}
	if b.opt.replicas > 0 {
		return b.acquireReplicated(ctx, r)
	}
	reply, err := b.pipe.run(ctx, r)
	if err != nil {
		return standing{}, classify("acquire", err)
	}
	return parseStanding("acquire", reply)
}

// acquireReplicated is acquire with WAIT behind it, on the connection that wrote. A grant that too few replicas have acknowledged is an error, and so
// it is asked for again, or released.
func (b *Backend) acquireReplicated(ctx context.Context, r *request) (standing, error) {
	node, err := b.nodeOf(ctx, r.keys[0])
	if err != nil {
		return standing{}, classify("acquire", err)
	}
	var acked *redis.IntCmd
	for _, command := range [][]any{r.command("evalsha", r.script.sha), r.command("eval", r.script.source)} {
		pipe := node.Pipeline()
		cmd := once{redis.NewCmd(ctx, command...)}
		_ = pipe.Process(ctx, cmd)
		acked = redis.NewIntCmd(ctx, "wait", b.opt.replicas, replicaWait.Milliseconds())
		_ = pipe.Process(ctx, acked)
		_, _ = pipe.Exec(ctx)
		if r.reply, r.err = cmd.Result(); !unknownScript(r.err) {
			break
		}
	}
	if r.err != nil {
		return standing{}, classify("acquire", r.err)
	}
	s, err := parseStanding("acquire", r.reply)
	switch {
	case err != nil || s.fence == 0:
		return s, err
	case acked.Err() != nil:
		return standing{}, classify("wait for replicas", acked.Err())
	case acked.Val() < int64(b.opt.replicas):
		return standing{}, fmt.Errorf("redis: acquire: %d of %d replicas have acknowledged the grant", acked.Val(), b.opt.replicas)
	}
	return s, nil
}

// replicaWait is how long the server waits for its replicas.
const replicaWait = 500 * time.Millisecond

// nodeOf returns the server that has key.
func (b *Backend) nodeOf(ctx context.Context, key string) (redis.Cmdable, error) {
	if c, ok := b.client.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return b.client, nil
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	all := keys(c.Key)
	// While a cluster moves a slot only requests for one key go through; most releases need no more.
	for _, some := range [][]string{all[:1], all} {
		if len(some) == 1 && !b.cluster.on() {
			continue
		}
		reply, err := b.pipe.run(ctx, &request{script: &releaseScript, keys: some, args: []any{"d:" + c.Token, flag(b.cluster.on())}})
		if err != nil {
			return classify("release", err)
		}
		switch reply {
		case int64(1):
			return nil
		case int64(0):
			return driver.ErrNotOwner
		case int64(2):
		default:
			return unexpected("release", reply)
		}
	}
	return fmt.Errorf("redis: release: %w", errUnfinished)
}

// Renew implements [driver.Backend].
func (b *Backend) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	r := b.RenewBatch(ctx, []driver.Claim{c})[0]
	return r.Grant, r.Err
}

// renewBatchSize is how many locks one script renews. A script that takes long keeps everybody else waiting.
const renewBatchSize = 200

// RenewBatch implements [driver.BatchRenewer].
func (b *Backend) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	if err := b.ready(ctx); err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	size := renewBatchSize
	if b.cluster.on() {
		size = 1 // keys of one script must be in one slot
	}
	var batch []*request
	for from := 0; from < len(claims); from += size {
		r := &request{script: &renewScript}
		for _, c := range claims[from:min(from+size, len(claims))] {
			r.keys = append(r.keys, encode(c.Key))
			r.args = append(r.args, "d:"+c.Token, millis(c.TTL))
		}
		batch = append(batch, r)
	}
	if len(batch) == 1 {
		batch[0].reply, batch[0].err = evaluate(ctx, b.renewer, batch[0])
	} else {
		runScripts(ctx, b.renewer, batch)
	}
	for i, r := range batch {
		r.renewals(answers[i*size : min((i+1)*size, len(claims))])
	}
	return answers
}

// renewals takes the reply of the renew script apart.
func (r *request) renewals(answers []driver.Renewal) {
	list, _ := r.reply.([]any)
	for i := range answers {
		if r.err != nil {
			answers[i].Err = classify("renew", r.err)
			continue
		}
		if len(list) != 2*len(answers) {
			answers[i].Err = unexpected("renew", r.reply)
			continue
		}
		left, ok1 := list[2*i].(int64)
		fence, ok2 := list[2*i+1].(int64)
		switch {
		case !ok1 || !ok2:
			answers[i].Err = unexpected("renew", list[2*i])
		case left < 0:
			answers[i].Err = driver.ErrNotOwner
		default:
			answers[i].Grant = driver.Grant{Fence: uint64(fence), Fences: fences, TTL: time.Duration(left) * time.Millisecond}
		}
	}
}
