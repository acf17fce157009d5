// Package redis keeps locks in Redis: one server, Sentinel, or Cluster. Import it for its side effect and open it as "redis":
//
//	dlock.Open("redis", "redis://localhost:6379/0", cfg)
//
// or give it a client that the application already has:
//
//	dlock.New(redisdriver.New(client), cfg)
//
// Acquire and release are one script each, waiting is a queue in the server with direct hand-over, and every grant has a fence that rises
// even when the server loses its data. It needs Redis 6.2 or newer and is tested
// with 7.0; Valkey has the same commands and was not tried.
//
// # Keys
//
// A lock's key in the server is the prefix and the key, with '%' percent-encoded. Braces stay as they are where they make a hash tag, as in "{tenant1}:orders", and
// are encoded where they do not. Its value says who holds it; plain SET NX clients that use the same key exclude dlock and are excluded by it, unless the name
// was changed by the encoding. Beside it there are, in the same slot, its fence, its queue and who waits, named like the lock with a suffix that begins with '%'.
// Everything has an expiry: what is beside a lock that is not used any more is gone five minutes after its TTL.
//
// # Permissions
//
// A user of the server who may do no more than locking with the prefix "app:" is made like this:
//
//	ACL SETUSER app on >password ~app:* &dlock:*
//	  +eval +evalsha +get +set +setrange +del +exists +pttl +pexpire +time +info +ping +subscribe +unsubscribe +publish
//	  +lpop +rpush +lrem +lpos +llen +lrange +hget +hset +hdel +hgetall +scan
//
//	in a cluster: +cluster|slots +cluster|info +command +asking
//
//	with replicas: +wait
//
// scan, lrange and hgetall are for listing and inspecting alone. Without info Diagnose finds little, and the version of what does not know HELLO is not checked. Without publish a hand-over
// takes longer, as the next one in line learns of it by asking. Without subscribe there is no waiting in the server: set notify=off.
//
// # DSN
//
//	redis://user:password@host:6379/0          one server; rediss:// for TLS
//	unix:///path/to/socket?db=0                one server on a socket
//	redis+sentinel://h1:26379,h2,h3/master     the master that Sentinel names
//	redis+cluster://h1:6379,h2,h3              a cluster; rediss+cluster:// and rediss+sentinel:// for TLS
//
// Parameters, with their defaults: db=0 (where the path is not the database), dial_timeout=5s, read_timeout=3s, write_timeout=3s, pool_size=10 per CPU (for looking at
// locks, and with Sentinel, in a cluster or with replicas for locking),
// client_name (without blanks), notify=on (off: poll instead of pub/sub), replicas=0 (wait for that many replicas to acknowledge a grant), channel=dlock: (the prefix of the
// pub/sub channels), ca, cert, key (files) and insecure=false for TLS, sentinel_user and sentinel_password.
//
// For locking, timeouts of more than 5s count as 5s: a connection that is dead must not keep anybody waiting for longer.
//
// With TLS every server must have a certificate for the address that it is dialled at: the one in the DSN, or the one that the cluster or Sentinel names.
package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("redis", Driver{}) }

// Driver opens Redis servers by DSN. It is registered as "redis", and its zero value can be used without the registry.
type Driver struct{}

// Backend is a client of one Redis deployment.
type Backend struct {
	client  redis.UniversalClient
	renewer redis.UniversalClient // for renewals, so that the application cannot use up their connections
	owned   bool                  // client was made here and is closed here
	made    []io.Closer           // what else is closed here
	shared  bool                  // renewer is client
	opt     options

	pipe    pipeline
	queue   waiters
	cluster clusterMode
	checked atomic.Bool   // the server is known to be new enough
	asking  chan struct{} // has room for the one call that asks

	closeOnce sync.Once
	closeErr  error
	closed    chan struct{}
}

var (
	_ driver.Waiter       = (*Backend)(nil)
	_ driver.BatchRenewer = (*Backend)(nil)
	_ driver.Inspector    = (*Backend)(nil)
	_ driver.Breaker      = (*Backend)(nil)
	_ driver.Pinger       = (*Backend)(nil)
	_ driver.Doctor       = (*Backend)(nil)
	_ driver.CallModer    = (*Backend)(nil)
)

type options struct {
	notify   bool
	replicas int
	channel  string
}

// Option changes a Backend that New makes.
type Option func(*options)

// WithoutNotify makes waiting a matter of polling, for proxies without pub/sub. Default: pub/sub.
func WithoutNotify() Option { return func(o *options) { o.notify = false } }

// WithReplicas makes a grant count only when n replicas have acknowledged it. Default: 0.
func WithReplicas(n int) Option { return func(o *options) { o.replicas = n } }

// WithChannel sets the prefix of the pub/sub channels, for servers whose ACL limits them. It must not contain white space: Wait refuses it. Default: "dlock:".
func WithChannel(prefix string) Option { return func(o *options) { o.channel = prefix } }

// checkChannel refuses what the scripts would take for the end of a channel's name.
func checkChannel(prefix string) error {
	if strings.ContainsFunc(prefix, unicode.IsSpace) {
		return errors.New("must not contain white space")
	}
	return nil
}

// New returns a Backend on a client that the application already has, which stays open when the Backend is closed. It returns nil for a
// nil client; dlock.New then answers ErrConnectorNil. A *redis.Ring, whose shards are not one store, cannot be used: every call says so.
//
// Of a *redis.Client the options are used, its Dialer included: locks and renewals have connections of their own, so that an application which uses up
// its pool does not delay them. Functions in the options, such as a CredentialsProvider, may block: a call that needs one returns with its context. A
// request is given up after 5s at the latest, and after 2s where the client has no timeouts. Hooks of the client see only what looks at locks. With WithReplicas, and with a *redis.ClusterClient, locking goes
// through the client, and renewals through another one made from its options. A client for Sentinel, which alone learns of a failover, is shared for
// everything, and so is a client of any other kind; Diagnose says so. Where the client that locking goes through has no timeouts, one like it that has some
// is used. With a DSN for Sentinel renewals have a client of their own.
func New(client redis.UniversalClient, opts ...Option) driver.Backend {
	if isNil(client) {
		return nil
	}
	if _, ring := client.(*redis.Ring); ring {
		return refusing{errRing}
	}
	o := options{notify: true, channel: "dlock:"}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return newBackend(client, nil, o)
}

func isNil(client redis.UniversalClient) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// newBackend makes a Backend on client. renewer is for renewals; nil: another client is made from client's options where that can be.
func newBackend(client, renewer redis.UniversalClient, o options) *Backend {
	b := &Backend{client: client, renewer: renewer, opt: o, asking: make(chan struct{}, 1), closed: make(chan struct{})}
	if renewer == nil {
		b.renewer, b.shared = renewClient(client)
	}
	b.pipe.init(b.bounded(client), o.replicas)
	b.queue.init(b)
	return b
}

// renewClient makes the client for renewals, and for listening.
func renewClient(client redis.UniversalClient) (_ redis.UniversalClient, shared bool) {
	if failsOver(client) {
		return client, true
	}
	switch c := client.(type) {
	case *redis.Client:
		o := own(*c.Options())
		hooks := newWatched()
		hooks.options(o)
		o.Dialer = forgiving(hooks.dialer(o.Dialer))
		return redis.NewClient(o), false
	case *redis.ClusterClient:
		o := ownCluster(*c.Options())
		o.PoolSize = mostConnections
		return redis.NewClusterClient(o), false
	default:
		return client, true
	}
}

// bounded returns what locking uses of a client that is shared: the client itself if it has timeouts, or one like it that has some.
func (b *Backend) bounded(client redis.UniversalClient) redis.UniversalClient {
	switch c := client.(type) {
	case *redis.Client:
		if o := c.Options(); endless(o.ReadTimeout) || endless(o.WriteTimeout) {
			return c.WithTimeout(timeoutWithout)
		}
	case *redis.ClusterClient:
		o := c.Options()
		if !failsOver(c) && (endless(o.ReadTimeout) || endless(o.WriteTimeout)) {
			bounded := redis.NewClusterClient(ownCluster(*o))
			b.made = append(b.made, bounded)
			return bounded
		}
	}
	return client
}

const (
	// timeoutWithout is for how long a client of our own waits where the application's would wait for ever. After an outage nobody waits for longer than that
	// because of a connection that is dead.
	timeoutWithout = 2 * time.Second

	// longestTimeout is the longest for which a client of our own waits, whatever the application's would do.
	longestTimeout = 5 * time.Second
)

// endless reports whether a timeout in the options of a client, as the client library has made them, is none.
func endless(timeout time.Duration) bool { return timeout <= 0 || timeout > time.Minute }

// limited is a timeout for a client of our own.
func limited(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return timeoutWithout
	}
	return min(timeout, longestTimeout)
}

// failsOver reports whether client goes to the master that Sentinel names. It drops its connections when that is another one; those of a client made from
// its options would stay with the old master, which may go on granting locks until it is told that it is one no more.
func failsOver(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().Addr == "FailoverClient" // how the client library marks it
	case *redis.ClusterClient:
		return c.Options().ClusterSlots != nil // its table of servers is made by hand, or by Sentinel
	default:
		return false
	}
}

// mostConnections is how many connections a client of our own may have. It needs one or two; but to a node of a cluster that it has failed to reach as many
// times as this, the client library does not try again for up to a second.
const mostConnections = 16

// own makes the options of another client for the same server of o: with few connections, pipelines included, with timeouts, and without retries, which are
// the engine's.
func own(o redis.Options) *redis.Options {
	o.PoolSize, o.PipelinePoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = mostConnections, -1, 0, 0, 0
	o.MaxConcurrentDials, o.PoolTimeout = 0, 0
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = limited(o.ReadTimeout), limited(o.WriteTimeout), limited(o.DialTimeout)
	o.Protocol = 2 // of the third version nothing is used, and looking for its notifications takes time
	o.PushNotificationProcessor, o.MaintNotificationsConfig = nil, quiet()
	o.ClientSideCacheConfig, o.ClientSideCache = nil, nil
	return &o
}

// ownCluster is own for a cluster, with as many connections as o has.
func ownCluster(o redis.ClusterOptions) *redis.ClusterOptions {
	o.PipelinePoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = -1, 0, 0, 0
	o.PoolTimeout, o.DialerRetries, o.ContextTimeoutEnabled = 0, 1, true
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = limited(o.ReadTimeout), limited(o.WriteTimeout), limited(o.DialTimeout)
	o.PushNotificationProcessor, o.MaintNotificationsConfig = nil, quiet()
	newWatched().clusterOptions(&o)
	return &o
}

// quiet keeps a client from asking for maintenance notifications, which plain servers answer with an error.
func quiet() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// CallMode is Interruptible for one server, whatever functions of the application are in its
// client's options. With Sentinel, in a cluster, with replicas, and with a client of another kind a
// call may last until the client's timeout, so it is Detached.
func (b *Backend) CallMode() driver.CallMode {
	if b.pipe.lanes.shared != nil {
		return driver.Detached
	}
	return driver.Interruptible
}

// Close ends the subscription and the clients that were made here.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() {
		close(b.closed)
		b.pipe.close() // first, because a subscription that is just being made may keep us waiting
		b.queue.close()
		if !b.shared {
			b.made = append(b.made, b.renewer)
		}
		if b.owned {
			b.made = append(b.made, b.client)
		}
		for _, c := range b.made {
			b.closeErr = errors.Join(b.closeErr, c.Close())
		}
	})
	return b.closeErr
}

var errClosed = errors.New("redis: the backend is closed")

// open fails when b was closed or ctx is done.
func (b *Backend) open(ctx context.Context) error {
	select {
	case <-b.closed:
		return errClosed
	default:
		return ctx.Err()
	}
}

// newName returns a name that no other process has.
func newName() string {
	var raw [12]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}
