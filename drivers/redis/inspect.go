package redis

import (
	"context"
	"errors"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// ours is the form of a value that dlock wrote: the mark, the fence, the owner.
var ours = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)^d:[0-9a-f]{32}[-+]([0-9]+) (.*)$`) })

// Inspect implements [driver.Inspector].
func (b *Backend) Inspect(ctx context.Context, key string) (driver.Info, error) {
	if err := b.ready(ctx); err != nil {
		return driver.Info{}, err
	}
	return b.inspect(ctx, b.client, key)
}

func (b *Backend) inspect(ctx context.Context, client redis.Cmdable, key string) (driver.Info, error) {
	lock := encode(key)
	_, queueKey, whoKey := companions(lock)
	pipe := client.Pipeline()
	value, left := pipe.Get(ctx, lock), pipe.PTTL(ctx, lock)
	queue, who := pipe.LRange(ctx, queueKey, 0, -1), pipe.HGetAll(ctx, whoKey)
	if cmds, err := pipe.Exec(ctx); err != nil {
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !wrongType(err) {
				return driver.Info{}, classify("inspect", err)
			}
		}
		if len(cmds) == 0 {
			return driver.Info{}, classify("inspect", err)
		}
	}
	info := driver.Info{Key: key}
	if err := value.Err(); err == nil || wrongType(err) {
		info.TTL = max(left.Val(), 0)
		if m := ours().FindStringSubmatch(value.Val()); m != nil {
			info.Owner = m[2]
			info.Fence, _ = strconv.ParseUint(m[1], 10, 64)
			info.Since = time.UnixMicro(int64(info.Fence)) //nolint:gosec // it came from the server's clock
		} else {
			info.Owner = foreignOwner
		}
	}
	for _, token := range queue.Val() {
		parts := strings.SplitN(who.Val()[token], " ", 4)
		if len(parts) == 4 {
			info.Waiters = append(info.Waiters, parts[3])
		}
	}
	return info, nil
}

// wrongType reports whether a key is one of another type: no client of ours has written it.
func wrongType(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE") }

// foreignOwner is shown for a holder that is no client of ours. Its value may be a secret of its own, and it may have no TTL, by which alone one would see that there
// is a holder.
const foreignOwner = "(no dlock client)"

// List implements [driver.Inspector]. It scans the server, or every master of a cluster.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	return func(yield func(driver.Info, error) bool) {
		if err := b.ready(ctx); err != nil {
			yield(driver.Info{}, err)
			return
		}
		nodes, err := b.masters(ctx)
		if err != nil {
			yield(driver.Info{}, classify("list", err))
			return
		}
		seen := map[string]bool{} // SCAN may show a key twice
		for _, node := range nodes {
			if !b.scan(ctx, node.client, prefix, seen, yield) {
				return
			}
		}
	}
}

// scan yields the locks of one server. It reports whether to go on.
func (b *Backend) scan(ctx context.Context, node redis.Cmdable, prefix string, seen map[string]bool, yield func(driver.Info, error) bool) bool {
	keys := node.ScanType(ctx, 0, scanPattern(prefix), 500, "string").Iterator()
	for keys.Next(ctx) {
		lock := keys.Val()
		key := decode(lock)
		if seen[lock] || isCompanion(lock) || encode(key) != lock || !strings.HasPrefix(key, prefix) {
			continue
		}
		seen[lock] = true
		info, err := b.inspect(ctx, b.client, key)
		if err != nil {
			yield(driver.Info{}, err)
			return false
		}
		if info.Fence != 0 && !yield(info, nil) {
			return false
		}
	}
	if err := keys.Err(); err != nil {
		yield(driver.Info{}, classify("list", err))
		return false
	}
	return true
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, key string, fence uint64) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	r := &request{script: breakScript(), keys: b.keys(key), args: []any{strconv.FormatUint(fence, 10)}}
	reply, err := b.pipe.run(ctx, r)
	switch {
	case err != nil:
		return classify("break", err)
	case b.passOn(ctx, r.keys, reply) == int64(1):
		return nil
	default:
		return driver.ErrNotOwner
	}
}

// Ping implements [driver.Pinger].
func (b *Backend) Ping(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	return classify("ping", b.pipe.do(ctx, func(ctx context.Context, client redis.UniversalClient) error { return client.Ping(ctx).Err() }))
}
