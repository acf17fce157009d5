package redis

import (
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/netdsn"
)

// Open returns a Backend for dsn; see the package's documentation for its form. Nothing is sent.
func (Driver) Open(dsn string) (driver.Backend, error) {
	d, err := driver.ParseDSN(dsn, "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	made, o, err := open(d)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	b := newBackend(made.client, made.renewer, o)
	b.owned = true
	return b, nil
}

// clients are what a DSN comes to. Where renewer is nil it can be made from the options of client.
type clients struct{ client, renewer redis.UniversalClient }

// params are the parameters that all kinds of DSN have.
type params struct {
	dial, read, write time.Duration
	pool              int
	name              string
	tls               *tls.Config
}

func open(d *driver.DSN) (clients, options, error) {
	o := options{
		notify:   d.Bool("notify", true),
		replicas: d.Int("replicas", 0, 0, 100),
		channel:  d.Text("channel", "dlock:"),
	}
	if err := checkChannel(o.channel); err != nil {
		return clients{}, o, netdsn.Bad("parameter %q %w", "channel", err)
	}
	p := params{
		dial: d.Duration("dial_timeout", 5*time.Second), read: d.Duration("read_timeout", 3*time.Second),
		write: d.Duration("write_timeout", 3*time.Second), pool: d.Int("pool_size", 0, 1, 10_000), name: d.Text("client_name", ""),
	}
	if strings.ContainsFunc(p.name, func(r rune) bool { return r < '!' || r > '~' }) { // the server would refuse it, with every connection
		return clients{}, o, netdsn.Bad("parameter %q must consist of ASCII letters, digits and punctuation, without blanks", "client_name")
	}
	for name, timeout := range map[string]time.Duration{"dial_timeout": p.dial, "read_timeout": p.read, "write_timeout": p.write} {
		if timeout == 0 { // the client would take it for its default
			return clients{}, o, netdsn.Bad("parameter %q must be more than 0", name)
		}
	}
	var err error
	kind := strings.TrimPrefix(strings.TrimPrefix(d.Scheme, "rediss"), "redis")
	if strings.HasPrefix(d.Scheme, "rediss") {
		if p.tls, err = netdsn.TLS(d); err != nil {
			return clients{}, o, err
		}
	}
	var made clients
	switch kind {
	case "+cluster":
		made.client, err = openCluster(d, p)
	case "+sentinel":
		made, err = openSentinel(d, p)
	default:
		made.client, err = openSingle(d, p)
	}
	return made, o, err
}

func (p params) dialer() dialFunc { return newDialer(p.dial, p.tls) }

func openSingle(d *driver.DSN, p params) (redis.UniversalClient, error) {
	r := &redis.Options{
		Network: "tcp", Username: d.User, Password: d.Password, DialTimeout: p.dial, ReadTimeout: p.read, WriteTimeout: p.write,
		PoolSize: p.pool, ClientName: p.name, TLSConfig: p.tls, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, MaintNotificationsConfig: quiet(),
		Dialer: forgiving(p.dialer()),
	}
	switch {
	case d.Scheme == "unix":
		if len(d.Hosts) > 0 || d.Path == "" {
			return nil, netdsn.Bad("a socket is written unix:///path/to/socket")
		}
		r.Network, r.Addr, r.DB = "unix", d.Path, d.Int("db", 0, 0, maxDB)
	case len(d.Hosts) > 1:
		return nil, netdsn.Bad("%s:// takes one host; several are written redis+cluster:// or redis+sentinel://", d.Scheme)
	default:
		r.Addr = netdsn.WithPort(append(d.Hosts, "localhost")[0], "6379")
		db, err := database(d)
		if err != nil {
			return nil, err
		}
		r.DB = db
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return redis.NewClient(r), nil
}

func openCluster(d *driver.DSN, p params) (redis.UniversalClient, error) {
	if d.Path != "" && d.Path != "/" {
		return nil, netdsn.Bad("a cluster has no databases; leave the path out")
	}
	if len(d.Hosts) == 0 {
		return nil, netdsn.Bad("a cluster needs at least one host")
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: withPorts(d.Hosts, "6379"), Username: d.User, Password: d.Password, DialTimeout: p.dial, ReadTimeout: p.read,
		WriteTimeout: p.write, PoolSize: p.pool, ClientName: p.name, TLSConfig: p.tls, DialerRetries: 1, ContextTimeoutEnabled: true, MaintNotificationsConfig: quiet(),
		Dialer: p.dialer(),
	}), nil
}

func openSentinel(d *driver.DSN, p params) (clients, error) {
	master := strings.Trim(d.Path, "/")
	user, password, db := d.Text("sentinel_user", ""), d.Text("sentinel_password", ""), d.Int("db", 0, 0, maxDB)
	switch {
	case len(d.Hosts) == 0:
		return clients{}, netdsn.Bad("Sentinel needs at least one host")
	case master == "" || strings.Contains(master, "/"):
		return clients{}, netdsn.Bad("the path must be the name of the master, as in redis+sentinel://host/mymaster")
	}
	if err := d.Err(); err != nil {
		return clients{}, err
	}
	f := redis.FailoverOptions{
		MasterName: master, SentinelAddrs: withPorts(d.Hosts, "26379"), SentinelUsername: user, SentinelPassword: password,
		Username: d.User, Password: d.Password, DB: db, DialTimeout: p.dial, ReadTimeout: p.read, WriteTimeout: p.write,
		PoolSize: p.pool, ClientName: p.name, TLSConfig: p.tls, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		PipelinePoolSize: -1, Dialer: p.dialer(), Protocol: 2, // see own
	}
	few := f
	few.PoolSize = mostConnections
	return clients{failoverClient(f), failoverClient(few)}, nil
}

// failoverClient makes a client that asks Sentinel for the master with each connection. Not to have found it does not keep the client from asking again.
func failoverClient(f redis.FailoverOptions) *redis.Client {
	client := redis.NewFailoverClient(&f)
	client.AddHook(forgivingHook{})
	return client
}

// maxDB is far beyond the number of databases that any server has.
const maxDB = 1 << 20

// database reads the number of the database from the path or from the parameter.
func database(d *driver.DSN) (int, error) {
	path := strings.Trim(d.Path, "/")
	given := d.Int("db", -1, 0, maxDB)
	if path == "" {
		return max(given, 0), nil
	}
	n, err := strconv.Atoi(path)
	if err != nil || n < 0 || n > maxDB {
		return 0, netdsn.Bad("the path must be the number of a database, as in redis://host/0")
	}
	if given >= 0 && given != n {
		return 0, netdsn.Bad("the path and the parameter db name two databases; leave one out")
	}
	return n, nil
}

func withPorts(hosts []string, port string) []string {
	list := make([]string, len(hosts))
	for i, h := range hosts {
		list[i] = netdsn.WithPort(h, port)
	}
	return list
}
