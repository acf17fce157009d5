package bench

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dlock-go/dlock"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
)

// client is what one process has for locking.
type client interface {
	// lock waits until it holds key, and returns what ends the hold.
	lock(ctx context.Context, key string) (unlock func() error, err error)
	close()
}

// contender is a way to lock. Those that begin with "bare" are yardsticks: nobody could use them, because they lack what makes a lock.
type contender struct {
	name string
	open func(tb testing.TB, t *target, ttl time.Duration) client
	key  func(key string) string                                  // the key in the server; nil: the same
	make func(ctx context.Context, admin *redis.Client, k string) // makes the lock, if it must be there before; nil: nothing
	deaf bool                                                     // now and then does not hear that the lock is free, and then waits for ever
}

var (
	bare      = contender{name: "bare-poll-5ms", open: openBare}
	barePiped = contender{name: "bare-pipelined", open: openPiped}
	bareToken = contender{name: "bare-blpop-token", open: openToken, make: func(ctx context.Context, admin *redis.Client, k string) {
		admin.Del(ctx, k)
		admin.LPush(ctx, k, "token")
	}}
	redislock5     = contender{name: "redislock-5ms", open: openRedislock}
	redsync5       = contender{name: "redsync-5ms", open: openRedsync(redsync.WithRetryDelay(5 * time.Millisecond))}
	redsyncDefault = contender{name: "redsync", open: openRedsync()}
	rueidisOne     = contender{name: "rueidislock-majority-1", open: openRueidislock(1), key: rueidisKey, deaf: true}
	rueidisDefault = contender{name: "rueidislock", open: openRueidislock(2), key: rueidisKey, deaf: true}
	ours           = contender{name: "dlock", open: openDlock}

	peers = []contender{redislock5, redsync5, redsyncDefault, rueidisOne, rueidisDefault}
)

// open opens n clients for the length of tb.
func (c contender) clients(tb testing.TB, t *target, n int, ttl time.Duration) []client {
	tb.Helper()
	list := make([]client, n)
	for i := range list {
		list[i] = c.open(tb, t, ttl)
		tb.Cleanup(list[i].close)
	}
	return list
}

// prepare makes key, where that is needed.
func (c contender) prepare(t *target, key string) {
	if c.make != nil {
		c.make(context.Background(), t.admin, key)
	}
}

func (c contender) serverKey(key string) string {
	if c.key == nil {
		return key
	}
	return c.key(key)
}

const (
	defaultTTL = 10 * time.Second
	poll       = 5 * time.Millisecond
	poolSize   = 64
)

func token() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

const deleteText = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

var compareAndDelete = redis.NewScript(deleteText)

// bareClient is SET NX PX and a script that compares and deletes, polled every 5 ms.
type bareClient struct {
	c   *redis.Client
	ttl time.Duration
}

func openBare(_ testing.TB, t *target, ttl time.Duration) client {
	return &bareClient{t.client(poolSize), ttl}
}

func (b *bareClient) lock(ctx context.Context, key string) (func() error, error) {
	value := token()
	for {
		err := b.c.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: b.ttl}).Err()
		if err == nil {
			return func() error { return compareAndDelete.Run(ctx, b.c, []string{key}, value).Err() }, nil
		}
		if err != redis.Nil { //nolint:errorlint // it is never wrapped
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}

func (b *bareClient) close() { _ = b.c.Close() }

// pipedClient is the same two requests on connections that carry many at once. It does not wait.
type pipedClient struct {
	c      rueidis.Client
	script *rueidis.Lua
	ttl    time.Duration
}

func (t *target) rueidis() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: []string{t.addr},
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return t.dial(ctx)
		},
	}
}

func openPiped(tb testing.TB, t *target, ttl time.Duration) client {
	option := t.rueidis()
	option.DisableCache = true
	c, err := rueidis.NewClient(option)
	if err != nil {
		tb.Fatal(err)
	}
	return &pipedClient{c, rueidis.NewLuaScript(deleteText), ttl}
}

func (p *pipedClient) lock(ctx context.Context, key string) (func() error, error) {
	value := token()
	if err := p.c.Do(ctx, p.c.B().Set().Key(key).Value(value).Nx().Px(p.ttl).Build()).Error(); err != nil {
		return nil, err
	}
	return func() error { return p.script.Exec(ctx, p.c, []string{key}, []string{value}).Error() }, nil
}

func (p *pipedClient) close() { p.c.Close() }

// tokenClient passes a token on in a list. Whoever dies takes it along.
type tokenClient struct{ c *redis.Client }

func openToken(_ testing.TB, t *target, _ time.Duration) client {
	return &tokenClient{t.client(2 * poolSize)}
}

func (c *tokenClient) lock(ctx context.Context, key string) (func() error, error) {
	if err := c.c.BLPop(ctx, 0, key).Err(); err != nil {
		return nil, err
	}
	return func() error { return c.c.LPush(ctx, key, "token").Err() }, nil
}

func (c *tokenClient) close() { _ = c.c.Close() }

type redislockClient struct {
	c   *redis.Client
	l   *redislock.Client
	ttl time.Duration
}

func openRedislock(_ testing.TB, t *target, ttl time.Duration) client {
	c := t.client(poolSize)
	return &redislockClient{c, redislock.New(c), ttl}
}

func (c *redislockClient) lock(ctx context.Context, key string) (func() error, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // it gives up after the TTL otherwise
	defer cancel()
	l, err := c.l.Obtain(ctx, key, c.ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)})
	if err != nil {
		return nil, err
	}
	return func() error { return l.Release(context.Background()) }, nil
}

func (c *redislockClient) close() { _ = c.c.Close() }

type redsyncClient struct {
	c       *redis.Client
	rs      *redsync.Redsync
	options []redsync.Option
}

func openRedsync(options ...redsync.Option) func(testing.TB, *target, time.Duration) client {
	return func(_ testing.TB, t *target, ttl time.Duration) client {
		c := t.client(poolSize)
		all := append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32)}, options...)
		return &redsyncClient{c, redsync.New(redsyncredis.NewPool(c)), all}
	}
}

func (c *redsyncClient) lock(ctx context.Context, key string) (func() error, error) {
	m := c.rs.NewMutex(key, c.options...)
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error { _, err := m.UnlockContext(ctx); return err }, nil
}

func (c *redsyncClient) close() { _ = c.c.Close() }

type rueidislockClient struct{ l rueidislock.Locker }

func rueidisKey(key string) string { return "rueidislock:0:" + key }

func openRueidislock(majority int32) func(testing.TB, *target, time.Duration) client {
	return func(tb testing.TB, t *target, ttl time.Duration) client {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: t.rueidis(), KeyMajority: majority, KeyValidity: ttl, NoLoopTracking: true,
		})
		if err != nil {
			tb.Fatal(err)
		}
		return &rueidislockClient{l}
	}
}

func (c *rueidislockClient) lock(ctx context.Context, key string) (func() error, error) {
	_, cancel, err := c.l.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return func() error { cancel(); return nil }, nil
}

func (c *rueidislockClient) close() { c.l.Close() }

type dlockClient struct {
	c *redis.Client
	l dlock.Locker
}

func openDlock(tb testing.TB, t *target, ttl time.Duration) client {
	c := t.client(poolSize)
	l, err := dlock.New(redisdriver.New(c), &dlock.Config{DefaultTTL: ttl, Owner: "bench"})
	if err != nil {
		tb.Fatal(err)
	}
	return &dlockClient{c, l}
}

func (c *dlockClient) lock(ctx context.Context, key string) (func() error, error) {
	lease, err := dlock.Acquire(ctx, c.l, key)
	if err != nil {
		return nil, err
	}
	return func() error { return lease.Unlock(ctx) }, nil
}

func (c *dlockClient) close() {
	_ = c.l.Close()
	_ = c.c.Close()
}

// TestContendersLock proves that each contender does what is measured: of many holders one at a time.
func TestContendersLock(t *testing.T) {
	t.Parallel()
	server := newTarget(t)
	for _, c := range append([]contender{bare, bareToken, ours}, peers...) {
		t.Run(c.name, func(t *testing.T) {
			key := "k-" + c.name
			c.prepare(server, key)
			clients := c.clients(t, server, 4, defaultTTL)
			if c.deaf {
				for i := range clients {
					clients[i] = insistent{clients[i]}
				}
			}
			inside, worst := exclusion(t, key, 5, clients...)
			if worst != 1 || inside != 20 {
				t.Errorf("%d holds, of which %d at the same time; want 20 and 1", inside, worst)
			}
		})
	}
}

// insistent makes a deaf client ask again.
type insistent struct{ client }

func (c insistent) lock(ctx context.Context, key string) (func() error, error) {
	for {
		attempt, cancel := context.WithCancel(ctx) // not a timeout: what has been locked is to outlive it
		timer := time.AfterFunc(time.Second, cancel)
		unlock, err := c.client.lock(attempt, key)
		switch inTime := timer.Stop(); {
		case err == nil && inTime:
			return func() error { defer cancel(); return unlock() }, nil
		case err == nil:
			err = unlock()
		}
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func keyNumber(i int) string { return fmt.Sprintf("key-%d", i) }
