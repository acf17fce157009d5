package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// settings are what a DSN comes to, in the client's terms.
type settings struct {
	Network, Addr, User, Password, Name string
	DB, Pool                            int
	Dial, Read, Write                   time.Duration
	TLS, Insecure                       bool
}

// defaults are the settings of a DSN that says nothing, changed by change.
func defaults(change func(*settings)) settings {
	s := settings{Network: "tcp", Addr: "localhost:6379", Dial: 5 * time.Second, Read: 3 * time.Second, Write: 3 * time.Second}
	if change != nil {
		change(&s)
	}
	return s
}

func settingsOf(o *goredis.Options) settings {
	return settings{
		Network: o.Network, Addr: o.Addr, User: o.Username, Password: o.Password, Name: o.ClientName, DB: o.DB, Pool: o.PoolSize,
		Dial: o.DialTimeout, Read: o.ReadTimeout, Write: o.WriteTimeout, TLS: o.TLSConfig != nil, Insecure: o.TLSConfig != nil && o.TLSConfig.InsecureSkipVerify,
	}
}

func TestDSNOfOneServer(t *testing.T) {
	poolByDefault := goredis.NewClient(&goredis.Options{}).Options().PoolSize
	for _, c := range []struct {
		dsn    string
		change func(*settings)
	}{
		{"redis://", nil},
		{"redis://localhost", nil},
		{"redis://localhost:6379/", nil},
		{"redis://localhost/0", nil},
		{"redis://h:7000", func(s *settings) { s.Addr = "h:7000" }},
		{"redis://10.0.0.1", func(s *settings) { s.Addr = "10.0.0.1:6379" }},
		{"redis://[::1]", func(s *settings) { s.Addr = "[::1]:6379" }},
		{"redis://[fe80::2]:7000/3", func(s *settings) { s.Addr, s.DB = "[fe80::2]:7000", 3 }},
		{"redis://localhost/5", func(s *settings) { s.DB = 5 }},
		{"redis://localhost?db=5", func(s *settings) { s.DB = 5 }},
		{"redis://localhost/5?db=5", func(s *settings) { s.DB = 5 }},
		{"redis://:p%40ss@localhost", func(s *settings) { s.Password = "p@ss" }},
		{"redis://u:p@localhost", func(s *settings) { s.User, s.Password = "u", "p" }},
		{"redis://?dial_timeout=1s&read_timeout=200ms&write_timeout=300ms", func(s *settings) {
			s.Dial, s.Read, s.Write = time.Second, 200*time.Millisecond, 300*time.Millisecond
		}},
		{"redis://?pool_size=7&client_name=me", func(s *settings) { s.Pool, s.Name = 7, "me" }},
		{"rediss://h", func(s *settings) { s.Addr, s.TLS = "h:6379", true }},
		{"rediss://h?insecure=true", func(s *settings) { s.Addr, s.TLS, s.Insecure = "h:6379", true, true }},
		{"unix:///run/redis.sock", func(s *settings) { s.Network, s.Addr = "unix", "/run/redis.sock" }},
		{"unix://u:p@/run/redis.sock?db=2", func(s *settings) {
			s.Network, s.Addr, s.User, s.Password, s.DB = "unix", "/run/redis.sock", "u", "p", 2
		}},
	} {
		client, renewer := redisdriver.Clients(openBackend(t, c.dsn))
		want := defaults(c.change)
		if want.Pool == 0 {
			want.Pool = poolByDefault
		}
		o := client.(*goredis.Client).Options()
		if got := settingsOf(o); got != want {
			t.Errorf("%s: the client has %+v, want %+v", c.dsn, got, want)
		}
		if o.MaxRetries != 0 || !o.ContextTimeoutEnabled { // go-redis shows "no retries" as 0
			t.Errorf("%s: the client retries %d times and heeds deadlines: %v; want 0 and true", c.dsn, o.MaxRetries, o.ContextTimeoutEnabled)
		}
		want.Pool = 16
		if got := settingsOf(renewer.(*goredis.Client).Options()); got != want {
			t.Errorf("%s: the client for renewals has %+v, want %+v", c.dsn, got, want)
		}
	}
}

func TestDSNOfACluster(t *testing.T) {
	for _, c := range []struct {
		dsn   string
		addrs []string
		tls   bool
	}{
		{"redis+cluster://a", []string{"a:6379"}, false},
		{"redis+cluster://a,b:7000,[::1]/", []string{"a:6379", "b:7000", "[::1]:6379"}, false},
		{"rediss+cluster://a,b", []string{"a:6379", "b:6379"}, true},
	} {
		dsn := c.dsn + "?dial_timeout=1s&read_timeout=200ms&write_timeout=300ms&pool_size=7&client_name=me"
		dsn = strings.Replace(dsn, "://", "://u:p@", 1)
		client, _ := redisdriver.Clients(openBackend(t, dsn))
		o := client.(*goredis.ClusterClient).Options()
		if !slices.Equal(o.Addrs, c.addrs) || (o.TLSConfig != nil) != c.tls {
			t.Errorf("%s: addresses %q and TLS %v, want %q and %v", c.dsn, o.Addrs, o.TLSConfig != nil, c.addrs, c.tls)
		}
		if o.Username != "u" || o.Password != "p" || o.ClientName != "me" || o.PoolSize != 7 || o.DialTimeout != time.Second ||
			o.ReadTimeout != 200*time.Millisecond || o.WriteTimeout != 300*time.Millisecond || !o.ContextTimeoutEnabled {
			t.Errorf("%s: the client has user %q, name %q, pool %d, timeouts %v %v %v; want what the DSN says", c.dsn,
				o.Username, o.ClientName, o.PoolSize, o.DialTimeout, o.ReadTimeout, o.WriteTimeout)
		}
		if c.tls && o.TLSConfig.ServerName != "" {
			t.Errorf("%s: every server would be checked by the name %q, want it checked by its own", c.dsn, o.TLSConfig.ServerName)
		}
	}
}

func TestDSNOfSentinel(t *testing.T) {
	client, renewer := redisdriver.Clients(openBackend(t, "rediss+sentinel://u:p@a,b:1/mymaster?db=3&read_timeout=200ms&pool_size=7&client_name=me&insecure=true"))
	want := defaults(func(s *settings) {
		s.Addr, s.User, s.Password, s.Name, s.DB, s.Read, s.TLS, s.Insecure = "FailoverClient", "u", "p", "me", 3, 200*time.Millisecond, true, true
	})
	for pool, c := range map[int]goredis.UniversalClient{7: client, 16: renewer} {
		want.Pool = pool
		o := c.(*goredis.Client).Options()
		if got := settingsOf(o); got != want {
			t.Errorf("the client has %+v, want %+v", got, want)
		}
		if o.MaxRetries != 0 || o.DialerRetries != 1 || !o.ContextTimeoutEnabled {
			t.Errorf("the client retries %d times, dials %d times and heeds deadlines: %v; want 0, 1 and true", o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled)
		}
	}

	addr, asked := fakeServer(t, "")
	b := openBackend(t, "redis+sentinel://"+addr+"/mymaster?sentinel_user=su&sentinel_password=sp")
	_ = b.Ping(limited(t, 5*time.Second)) // it is no Sentinel; what it was asked counts
	all := strings.Join(asked(), "\n")
	for _, want := range []string{"AUTH su sp", "SENTINEL get-master-addr-by-name mymaster"} {
		if !strings.Contains(strings.ToLower(all), strings.ToLower(want)) {
			t.Errorf("Sentinel was asked %q, want %q among it", all, want)
		}
	}
}

func TestDSNSettingsOfTheDriver(t *testing.T) {
	for _, c := range []struct {
		dsn      string
		notify   bool
		replicas int
		channel  string
	}{
		{"redis://h", true, 0, "dlock:"},
		{"redis://h?notify=off&replicas=2&channel=app:", false, 2, "app:"},
		{"redis+cluster://h?notify=false&replicas=1", false, 1, "dlock:"},
		{"redis+sentinel://h/m?notify=on&channel=x", true, 0, "x"},
		{"unix:///s?notify=true", true, 0, "dlock:"},
	} {
		notify, replicas, channel := redisdriver.Settings(openBackend(t, c.dsn))
		if notify != c.notify || replicas != c.replicas || channel != c.channel {
			t.Errorf("%s: notify %v, replicas %d, channel %q; want %v, %d, %q", c.dsn, notify, replicas, channel, c.notify, c.replicas, c.channel)
		}
	}
}

func TestDSNReadsTheFilesForTLS(t *testing.T) {
	certs := redistest.NewCertificates(t)
	client, _ := redisdriver.Clients(openBackend(t, "rediss://h?ca="+certs.CA+"&cert="+certs.Cert+"&key="+certs.Key))
	c := client.(*goredis.Client).Options().TLSConfig
	if c.RootCAs == nil || len(c.Certificates) != 1 || c.InsecureSkipVerify || c.MinVersion != tls.VersionTLS12 {
		t.Errorf("authorities %v, %d certificates, insecure %v, version %x; want those of the files, checked, and TLS 1.2 at least",
			c.RootCAs, len(c.Certificates), c.InsecureSkipVerify, c.MinVersion)
	}
}

func TestDSNThatCannotBeUsedIsRefusedWithAReason(t *testing.T) {
	certs := redistest.NewCertificates(t)
	missing := filepath.Join(t.TempDir(), "missing.pem")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const plain = "channel, client_name, db, dial_timeout, notify, pool_size, read_timeout, replicas, write_timeout"
	for _, c := range []struct{ dsn, want string }{
		{"", "it must begin with redis:// or rediss:// or unix:// or redis+sentinel:// or rediss+sentinel:// or redis+cluster:// or rediss+cluster://"},
		{"localhost:6379", "it must begin with redis:// or rediss:// or unix:// or redis+sentinel:// or rediss+sentinel:// or redis+cluster:// or rediss+cluster://"},
		{"http://h", "it must begin with redis:// or rediss:// or unix:// or redis+sentinel:// or rediss+sentinel:// or redis+cluster:// or rediss+cluster://"},
		{"redis://h?pool=3", `unknown parameter "pool"; accepted: ` + plain},
		{"redis://h?ca=x", `unknown parameter "ca"; accepted: ` + plain},
		{"redis://h?sentinel_user=x", `unknown parameter "sentinel_user"; accepted: ` + plain},
		{"redis://a,b", "redis:// takes one host; several are written redis+cluster:// or redis+sentinel://"},
		{"rediss://a,b", "rediss:// takes one host; several are written redis+cluster:// or redis+sentinel://"},
		{"redis://h:x", "hosts must be written host, host:port or [ipv6]:port, separated by commas"},
		{"redis://h:99999", "hosts must be written host, host:port or [ipv6]:port, separated by commas"},
		{"redis://::1", "hosts must be written host, host:port or [ipv6]:port, separated by commas"},
		{"redis://h/x", "the path must be the number of a database, as in redis://host/0"},
		{"redis://h/-1", "the path must be the number of a database, as in redis://host/0"},
		{"redis://h/0/1", "the path must be the number of a database, as in redis://host/0"},
		{"redis://h/99999999", "the path must be the number of a database, as in redis://host/0"},
		{"redis://h/1?db=2", "the path and the parameter db name two databases; leave one out"},
		{"redis://h?db=x", `parameter "db" must be a whole number from 0 to 1048576`},
		{"redis://h?db=1&db=2", `parameter "db" is given 2 times`},
		{"redis://h?pool_size=0", `parameter "pool_size" must be a whole number from 1 to 10000`},
		{"redis://h?read_timeout=3", `parameter "read_timeout" must be a duration such as 500ms or 3s`},
		{"redis://h?read_timeout=-1s", `parameter "read_timeout" must be a duration such as 500ms or 3s`},
		{"redis://h?read_timeout=0s", `parameter "read_timeout" must be more than 0`},
		{"redis+cluster://h?dial_timeout=0s", `parameter "dial_timeout" must be more than 0`},
		{"redis+sentinel://h/m?write_timeout=0s", `parameter "write_timeout" must be more than 0`},
		{"redis://h?client_name=my%20service", `parameter "client_name" must consist of ASCII letters, digits and punctuation, without blanks`},
		{"redis://h?notify=maybe", `parameter "notify" must be true, false, on or off`},
		{"redis://h?replicas=-1", `parameter "replicas" must be a whole number from 0 to 100`},
		{"unix://", "a socket is written unix:///path/to/socket"},
		{"unix://h/path", "a socket is written unix:///path/to/socket"},
		{"unix:///s?insecure=true", `unknown parameter "insecure"; accepted: ` + plain},
		{"redis+sentinel:///m", "Sentinel needs at least one host"},
		{"redis+sentinel://h", "the path must be the name of the master, as in redis+sentinel://host/mymaster"},
		{"redis+sentinel://h/a/b", "the path must be the name of the master, as in redis+sentinel://host/mymaster"},
		{"redis+sentinel://h/m?nope=1", `unknown parameter "nope"; accepted: channel, client_name, db, dial_timeout, notify, pool_size, read_timeout, replicas, ` +
			"sentinel_password, sentinel_user, write_timeout"},
		{"redis+cluster://", "a cluster needs at least one host"},
		{"redis+cluster://h/1", "a cluster has no databases; leave the path out"},
		{"redis+cluster://h?db=1", `unknown parameter "db"; accepted: channel, client_name, dial_timeout, notify, pool_size, read_timeout, replicas, write_timeout`},
		{"rediss://h?cert=" + certs.Cert, `parameters "cert" and "key" go together`},
		{"rediss://h?key=" + certs.Key, `parameters "cert" and "key" go together`},
		{"rediss://h?ca=" + missing, `parameter "ca" must be a file that can be read: no such file or directory`},
		{"rediss://h?ca=" + empty, `parameter "ca" must be a file of PEM certificates`},
		{"rediss://h?cert=" + missing + "&key=" + missing, `parameters "cert" and "key" must be files of a PEM certificate and its key: no such file or directory`},
		{"rediss://h?insecure=perhaps", `parameter "insecure" must be true, false, on or off`},
	} {
		_, err := redisdriver.Driver{}.Open(c.dsn)
		if want := "redis: invalid DSN: " + c.want; err == nil || err.Error() != want {
			t.Errorf("Open(%q) = %v\nwant %s", c.dsn, err, want)
		}
		if !errors.Is(err, driver.ErrInvalidDSN) {
			t.Errorf("Open(%q) = %v, want it to match ErrInvalidDSN", c.dsn, err)
		}
	}
}

func TestNoErrorOfADSNShowsASecret(t *testing.T) {
	const canary = "cAnArY7"
	for _, dsn := range []string{
		"redis://u:%s@h/x", "redis://%s:p@h/x", "redis://u:%s@a,b", "redis://u:%s@h:x", "redis://u:%s", "redis://u:a@%s@h", "redis://u:p%%zz%s@h",
		"redis://u:p/%s@h", "redis://u:p#%s@h", "redis://u:p?%s@h", "redis://h?nope=%s", "redis://h?db=%s", "redis://h?pool_size=%s",
		"redis://h?read_timeout=%s", "redis://h?notify=%s", "rediss://h?ca=%s", "rediss://h?cert=%s&key=%s", "rediss://h?insecure=%s",
		"redis+sentinel://u:%s@h", "redis+sentinel://h?sentinel_password=%s", "redis+sentinel://h/a/b?sentinel_password=%s",
		"redis+cluster://u:%s@h/1", "redis+cluster://u:%s@", "unix://u:%s@", "htpp://u:%s@h", "%s",
	} {
		dsn = fmt.Sprintf(dsn, slices.Repeat([]any{canary}, strings.Count(dsn, "%s"))...)
		_, err1 := redisdriver.Driver{}.Open(dsn)
		_, err2 := driver.Open("redis", dsn)
		_, err3 := dlock.Open("redis", dsn, &dlock.Config{})
		for _, err := range []error{err1, err2, err3} {
			if !errors.Is(err, driver.ErrInvalidDSN) {
				t.Errorf("opening %q: %v, want ErrInvalidDSN", dsn, err)
			} else if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, canary) {
				t.Errorf("opening %q: %s, want no secret in it", dsn, text)
			}
		}
	}
}

func TestNewOfNothingIsNoBackend(t *testing.T) {
	for name, client := range map[string]goredis.UniversalClient{
		"nil": nil, "a nil *Client": (*goredis.Client)(nil), "a nil *ClusterClient": (*goredis.ClusterClient)(nil), "a nil *Ring": (*goredis.Ring)(nil),
	} {
		b := redisdriver.New(client)
		if b != nil {
			t.Errorf("New(%s) = %v, want a nil Backend", name, b)
		}
		if _, err := dlock.New(b, &dlock.Config{}); !errors.Is(err, dlock.ErrConnectorNil) {
			t.Errorf("dlock.New(redis.New(%s)) = %v, want ErrConnectorNil", name, err)
		}
	}
}

func TestARingIsRefusedByName(t *testing.T) {
	t.Parallel()
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	l, err := dlock.New(redisdriver.New(ring), &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := limited(t, 10*time.Second)
	for what, call := range map[string]func() error{
		"Lock":    func() error { return l.Lock(ctx, "k") },
		"TryLock": func() error { _, err := l.TryLock(ctx, "k"); return err },
		"Ping":    func() error { return dlock.Ping(ctx, l) },
	} {
		if err := call(); !errors.Is(err, driver.ErrPermanent) || !strings.Contains(err.Error(), "*redis.Ring") {
			t.Errorf("%s = %v, want a permanent error that names the *redis.Ring", what, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func TestNewLeavesTheClientOpen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := plainClient(t, server.Addr)
	l, err := dlock.New(redisdriver.New(client, nil, redisdriver.WithChannel("x:")), &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := limited(t, 10*time.Second)
	if err := l.Lock(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := client.Ping(ctx).Err(); err != nil {
		t.Errorf("Ping of the application's client after Close = %v, want it open", err)
	}
	if n := client.Exists(ctx, "k").Val(); n != 0 {
		t.Error("Close has left the lock behind")
	}
}

func TestOpenClosesTheClientThatItMade(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := openBackend(t, "redis://"+server.Addr+"?client_name=mine")
	mustAcquire(t, b, claimFor("k", 1, time.Minute))
	if _, err := b.Renew(t.Context(), claimFor("k", 1, time.Minute)); err != nil {
		t.Fatal(err)
	}
	w := openBackend(t, "redis://"+server.Addr+"?client_name=mine")
	waits := startWait(t, w, claimFor("k", 2, time.Minute))
	admin := plainClient(t, server.Addr)
	named := func() int { return strings.Count(admin.ClientList(context.Background()).Val(), "name=mine") }
	if n := named(); n < 4 { // two for calls, one for renewals, one for messages
		t.Errorf("%d connections bear the name of the DSN, want 4 or more", n)
	}
	_ = b.Close()
	_ = w.Close()
	<-waits.done
	redistest.Eventually(t, 5*time.Second, "all connections are closed", func() bool { return named() == 0 })
}

// TestRenewalsDoNotShareTheApplicationsConnections takes the only connection of the application's client.
func TestRenewalsDoNotShareTheApplicationsConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr, PoolSize: 1, PoolTimeout: 100 * time.Millisecond})
	t.Cleanup(func() { _ = client.Close() })
	b := redisdriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	c := claimFor("k", 1, time.Minute)
	mustAcquire(t, b, c)
	ctx := limited(t, 10*time.Second)
	conn := client.Conn()
	defer func() { _ = conn.Close() }()
	if err := conn.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Ping(ctx).Err(); err == nil {
		t.Fatal("the application's client has a connection left")
	}
	if _, err := b.Renew(ctx, c); err != nil {
		t.Errorf("Renew while the application uses all its connections = %v", err)
	}
}
