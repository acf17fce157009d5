package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// fences is how many fences each grant reserves. The scripts have it too: all clients of a store must agree.
const fences = 16

// standing is the server's answer to somebody who wants a lock.
type standing struct {
	fence   uint64        // of the grant; 0: another owner has it
	left    time.Duration // of the holder; negative: no expiry, or [noHolder]
	last    uint64        // the last fence that was reserved
	place   int           // in the queue; 0: not in it
	foreign bool          // the holder will not pass the lock on
	gone    bool          // the token is not in the queue
}

// noHolder is what is left of the TTL of a lock that nobody holds. It is told to whoever does not wait, when there are still more in the queue who may be dead
// than one request looks at.
const noHolder = -2 * time.Millisecond

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

// Acquire implements [driver.Backend]. A lock that nobody holds is asked for again, as long as the queue may be one that a thousand processes have left.
func (b *Backend) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	for range 32 {
		s, err := b.acquire(ctx, c, "")
		switch {
		case err != nil:
			return driver.Grant{}, err
		case s.fence > 0:
			return grantOf(s.fence, c), nil
		case s.left != noHolder:
			return driver.Grant{}, driver.ErrHeld
		}
	}
	return driver.Grant{}, errLongQueue
}

var errLongQueue = errors.New("redis: acquire: the lock is free, and the queue too long to find out whether anybody in it is alive")

// acquireRequest has room for its arguments, so that they need not be made one by one.
type acquireRequest struct {
	request
	token, owner, channel string
	ttl, longer           int64
	room                  [5]any
}

// acquire gets the lock, or, with a channel, enters the queue.
func (b *Backend) acquire(ctx context.Context, c driver.Claim, channel string) (standing, error) {
	if err := b.ready(ctx); err != nil {
		return standing{}, err
	}
	if channel != "" {
		if err := checkChannel(b.opt.channel); err != nil {
			return standing{}, driver.Permanent(fmt.Errorf("redis: the prefix of the channels %w", err))
		}
	}
	r := &acquireRequest{token: "d:" + c.Token, owner: c.Owner, ttl: millis(c.TTL), longer: millis(c.TTL) + hour, channel: channel}
	r.room = [...]any{&r.token, &r.owner, &r.ttl, &r.longer, &r.channel}
	r.request = request{script: acquireScript(), keys: b.keys(c.Key), args: r.room[:]}
	if b.opt.replicas > 0 {
		return b.acquireReplicated(ctx, c, &r.request)
	}
	reply, err := b.pipe.run(ctx, &r.request)
	if err != nil {
		return standing{}, classify("acquire", err)
	}
	return parseStanding("acquire", reply)
}

// checkChannel refuses what the scripts would take for the end of a channel's name.
func checkChannel(prefix string) error {
	if strings.ContainsFunc(prefix, unicode.IsSpace) {
		return errors.New("must not contain white space")
	}
	return nil
}

// acquireReplicated is acquire that waits for replicas. A grant that too few replicas have acknowledged is an error, and so
// it is asked for again, or released.
func (b *Backend) acquireReplicated(ctx context.Context, c driver.Claim, r *request) (standing, error) {
	var acked *redis.IntCmd
	err := b.pipe.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		acked, err = r.evaluateAndWait(ctx, client, b.opt.replicas)
		return err
	})
	if err != nil {
		return standing{}, classify("acquire", err)
	}
	s, err := parseStanding("acquire", r.reply)
	switch {
	case err == nil && refused(acked.Err()):
		return standing{}, b.withdraw(ctx, c, classify(opReplicas, acked.Err()))
	case err != nil || s.fence == 0:
		return s, err
	case acked.Err() != nil:
		return standing{}, classify(opReplicas, acked.Err())
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
	for _, command := range [][]any{r.command("evalsha", &r.script.sha), r.command("eval", &r.script.source)} {
		pipe := node.Pipeline()
		cmd := once{redis.NewCmd(ctx, command...)}
		_ = pipe.Process(ctx, cmd)
		acked = redis.NewIntCmd(ctx, "wait", replicas, replicaWait.Milliseconds())
		_ = pipe.Process(ctx, acked)
		_, failed := pipe.Exec(ctx)
		if r.reply, err = cmd.Result(); err == nil && r.reply == nil {
			err = failed // that of a connection which cannot be made is not the command's
		}
		if !unknownScript(err) {
			break
		}
	}
	return acked, err
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

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	r := &request{script: releaseScript(), keys: b.keys(c.Key), args: []any{"d:" + c.Token}}
	if b.cluster.on() {
		return b.releaseInCluster(ctx, r)
	}
	reply, err := b.pipe.run(ctx, r)
	return released(reply, err)
}

// releaseInCluster names the lock alone at first: while a slot is being moved only requests for one key go through, and most releases need no more.
func (b *Backend) releaseInCluster(ctx context.Context, r *request) error {
	r.args = append(r.args, "1")
	reply, err := b.pipe.run(ctx, &request{script: r.script, keys: r.keys[:1], args: r.args})
	if reply == int64(2) {
		reply, err = b.pipe.run(ctx, r)
	}
	return released(reply, err)
}

// released is what the reply of the release script means.
func released(reply any, err error) error {
	switch {
	case err != nil:
		return classify("release", err)
	case reply == int64(1):
		return nil
	case reply == int64(0):
		return driver.ErrNotOwner
	default:
		return unexpected("release", reply)
	}
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
	batch := b.renewRequests(claims)
	if len(batch) == 1 {
		batch[0].reply, batch[0].err = evaluate(ctx, b.renewer, batch[0])
	} else {
		runScripts(ctx, b.renewer, batch)
	}
	rest := answers
	for _, r := range batch {
		r.renewals(rest[:len(r.keys)])
		rest = rest[len(r.keys):]
	}
	return answers
}

// renewRequests makes requests for claims, in their order. Those of one request have the same TTL, and in a cluster it is for one lock, because the
// keys of a script must be in one slot. The arguments are pointers into claims.
func (b *Backend) renewRequests(claims []driver.Claim) (batch []*request) {
	size := renewBatchSize
	if b.cluster.on() {
		size = 1
	}
	var r *request
	for i, c := range claims {
		if r == nil || len(r.keys) == size || c.TTL != claims[i-1].TTL {
			n := min(size, len(claims)-i)
			r = &request{script: renewScript(), keys: make([]string, 0, n), args: append(make([]any, 0, n+1), millis(c.TTL))}
			batch = append(batch, r)
		}
		r.keys = append(r.keys, encode(c.Key))
		r.args = append(r.args, &claims[i].Token)
	}
	return batch
}

// renewals takes the reply of the renew script apart.
func (r *request) renewals(answers []driver.Renewal) {
	text, _ := r.reply.(string)
	words := 1 + strings.Count(text, " ")
	for i := range answers {
		switch {
		case r.err != nil:
			answers[i].Err = classify("renew", r.err)
		case words != len(answers):
			answers[i].Err = unexpected("renew", r.reply)
		default:
			var word string
			word, text, _ = strings.Cut(text, " ")
			answers[i].Grant, answers[i].Err = renewal(word, r.args[0].(int64))
		}
	}
}

// renewal reads the answer for one lock, whose TTL in milliseconds was to be ttl.
func renewal(word string, ttl int64) (driver.Grant, error) {
	if word == "-" {
		return driver.Grant{}, driver.ErrNotOwner
	}
	number, longer, more := strings.Cut(word, ":")
	fence, err := strconv.ParseUint(number, 10, 64)
	left := ttl
	if more && err == nil {
		left, err = strconv.ParseInt(longer, 10, 64)
	}
	if err != nil || left < ttl {
		return driver.Grant{}, unexpected("renew", word)
	}
	return driver.Grant{Fence: fence, Fences: fences, TTL: time.Duration(left) * time.Millisecond}, nil
}
