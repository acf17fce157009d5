package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

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
	r := &acquireRequest{token: "d:" + c.Token, owner: c.Owner, ttl: millis(c.TTL), longer: millis(c.TTL) + hour, channel: channel}
	r.room = [...]any{&r.token, &r.owner, &r.ttl, &r.longer, &r.channel}
	r.script, r.keys, r.args, r.request.token = acquireScript(), b.keys(c.Key), r.room[:], c.Token
	if b.opt.replicas > 0 {
		return b.acquireReplicated(ctx, c, &r.request)
	}
	reply, err := b.pipe.run(ctx, &r.request)
	if err != nil {
		return standing{}, classify("acquire", err)
	}
	return parseStanding("acquire", reply)
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	return b.pipe.releaseBehind(ctx, c.Token, func() error { return b.release(ctx, c) })
}

func (b *Backend) release(ctx context.Context, c driver.Claim) error {
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
