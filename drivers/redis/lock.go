package redis

import (
	"context"
	"errors"
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

// fenceKept is for how long the fence outlives a TTL, in ms. The second is what the script may be off, which looks at whole seconds. The scripts have it too.
const fenceKept = int64(5*time.Minute/time.Millisecond) + 1000

// Acquire implements [driver.Backend]. A lock that nobody holds is asked for again, as long as the queue may be one that a thousand processes have left.
func (b *Backend) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	for range longQueue {
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

// longQueue is how often a queue of the dead is asked about. Each time 64 of them go.
const longQueue = 32

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
	r := &acquireRequest{token: "d:" + c.Token, owner: c.Owner, ttl: millis(c.TTL), longer: millis(c.TTL) + fenceKept, channel: channel}
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
	b.queue.orphans.released(c.Token)
	r := &request{script: releaseScript(), keys: b.keys(c.Key), args: []any{"d:" + c.Token}}
	if b.cluster.on() {
		return b.releaseInCluster(ctx, r)
	}
	reply, err := b.pipe.run(ctx, r)
	return released(b.passOn(ctx, r.keys, reply), err)
}

// releaseInCluster names the lock alone at first: while a slot is being moved only requests for one key go through, and most releases need no more.
func (b *Backend) releaseInCluster(ctx context.Context, r *request) error {
	r.args = append(r.args, "1")
	reply, err := b.pipe.run(ctx, &request{script: r.script, keys: r.keys[:1], args: r.args})
	if reply == int64(2) {
		reply, err = b.pipe.run(ctx, r)
	}
	return released(b.passOn(ctx, r.keys, reply), err)
}

// passOn goes on where a release or a break has left a free lock with a queue, until somebody in it is alive. It returns what else the reply said.
func (b *Backend) passOn(ctx context.Context, keys []string, reply any) any {
	n, _ := reply.(int64)
	if n&moreWait == 0 {
		return reply
	}
	for range longQueue {
		more, err := b.pipe.run(ctx, &request{script: releaseScript(), keys: keys, args: []any{"d:"}}) // of nobody
		if v, _ := more.(int64); err != nil || v&moreWait == 0 {
			break // with an error, whoever waits asks by himself
		}
	}
	return n &^ moreWait
}

// moreWait is added to the reply of a release or a break that has left a free lock with a queue.
const moreWait = 4

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
