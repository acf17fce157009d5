package redis_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// patience is how long to wait for what must come, on a busy machine too.
const patience = 30 * time.Second

// silent keeps the client library from logging what the tests do on purpose.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // they wait most of the time; the command line can say otherwise
	goredis.SetLogger(silent{})
	faulttest.Main()
	os.Exit(m.Run())
}

// server is a redis-server of a test's own, and a client that looks at it from outside.
type server struct {
	*redistest.Server
	admin   *goredis.Client
	longest time.Duration // the longest TTL that the test uses
}

// startServer starts a server. When the test ends, every key that is left must have an expiry.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{Server: redistest.Start(t, args...), longest: time.Minute}
	s.admin = goredis.NewClient(&goredis.Options{Addr: s.Addr, ReadTimeout: 10 * time.Second})
	s.prime(t)
	t.Cleanup(func() {
		s.checkExpiry(t)
		_ = s.admin.Close()
	})
	return s
}

// prime has the server know the scripts, so that the next request is one request.
func (s *server) prime(t testing.TB) {
	b, c := backend(t, s.Addr), faulttest.Claim("prime", time.Second)
	_, _ = b.Acquire(t.Context(), c)
	_, _ = b.Renew(t.Context(), c)
	_ = b.Release(t.Context(), c)
	_ = b.Close()
}

// checkExpiry looks at all keys: the locks must expire within the longest TTL, and what is kept beside them within five minutes more.
func (s *server) checkExpiry(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	keys := s.admin.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		left, err := s.admin.Do(ctx, "pttl", keys.Val()).Int64()
		if err != nil {
			continue // the test has made it so that the server does not answer
		}
		most := s.longest
		if strings.Contains(keys.Val(), "%{") || strings.HasSuffix(keys.Val(), "%f") {
			most += 5*time.Minute + 2*time.Second
		}
		if left == -1 || left > (most+time.Millisecond-1).Milliseconds() { // a TTL is rounded up
			t.Errorf("key %q expires in %d ms (-1: never), want within %v", keys.Val(), left, most)
		}
	}
}

// do is a command of the witness that must succeed.
func (s *server) do(t testing.TB, args ...any) any {
	t.Helper()
	v, err := s.admin.Do(context.Background(), args...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// value returns the lock's value, or "" if it is free.
func (s *server) value(t testing.TB, key string) string {
	t.Helper()
	v, err := s.admin.Get(context.Background(), key).Result()
	if err != nil && err != goredis.Nil { //nolint:errorlint // the client returns it as it is
		t.Fatalf("GET %q: %v", key, err)
	}
	return v
}

// pttl returns what is left of the lock's TTL; negative as in Redis.
func (s *server) pttl(t testing.TB, key string) time.Duration {
	t.Helper()
	n, err := s.admin.Do(context.Background(), "pttl", key).Int64()
	if err != nil {
		t.Fatalf("PTTL %q: %v", key, err)
	}
	return time.Duration(n) * time.Millisecond
}

// expiry returns an instant, as late as can be known, before which the lock does not expire at the server.
func (s *server) expiry(t testing.TB, key string) time.Time {
	t.Helper()
	var latest time.Time
	for range 50 {
		before := time.Now()
		if e := before.Add(s.pttl(t, key)); e.After(latest) {
			latest = e
		}
		if time.Since(before) < time.Millisecond {
			break
		}
	}
	return latest
}

// waiting returns how many wait for the lock.
func (s *server) waiting(t testing.TB, key string) int {
	t.Helper()
	n, err := s.admin.LLen(context.Background(), companion(key, "q")).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// companion is the name of a key beside that of the lock.
func companion(key, suffix string) string {
	if strings.Contains(key, "{") {
		return key + "%" + suffix
	}
	return key + "%{" + key + "}" + suffix
}

// calls returns how often the server ran a command.
func (s *server) calls(t testing.TB, command string) int {
	t.Helper()
	text, err := s.admin.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d,", &n); err == nil {
			return n
		}
	}
	return 0
}

// slowness measures, from now to the end of the test, how long the server takes to answer anybody, this machine's lateness included.
func (s *server) slowness(t testing.TB) func() time.Duration {
	witness := goredis.NewClient(&goredis.Options{Addr: s.Addr, PoolSize: 1, MaxRetries: -1, DialerRetries: 1, ReadTimeout: time.Minute})
	slow := faulttest.Slowness(t, func(ctx context.Context) { _ = witness.Ping(ctx).Err() }) // the test may have killed the server
	t.Cleanup(func() { _ = witness.Close() })                                                // before that of Slowness, which waits for the answer
	return slow
}

// monitor returns what the server was told from now on, line by line.
func (s *server) monitor(t testing.TB) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	m := &monitor{}
	go func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			m.mu.Lock()
			m.lines = append(m.lines, strings.TrimSpace(line))
			m.mu.Unlock()
		}
	}()
	return m
}

type monitor struct {
	mu    sync.Mutex
	lines []string
}

// count returns how many lines contain all of parts.
func (m *monitor) count(parts ...string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, line := range m.lines {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			n++
		}
	}
	return n
}

// backend opens a Backend by DSN; params go behind the '?'.
func backend(t testing.TB, addr string, params ...string) *redisdriver.Backend {
	t.Helper()
	b, err := redisdriver.Driver{}.Open(dsn(addr, params...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*redisdriver.Backend)
}

func dsn(addr string, params ...string) string {
	return "redis://" + addr + "/0?" + strings.Join(params, "&")
}

// locker opens a Locker by DSN. Holds last for ttl.
func locker(t testing.TB, addr string, ttl time.Duration, params ...string) dlock.Locker {
	t.Helper()
	l, err := dlock.Open("redis", dsn(addr, params...), &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// warm makes the connection that the next request goes through, so that its reply is the next that comes.
func warm(t testing.TB, l dlock.Locker) {
	t.Helper()
	if ok, err := l.TryLock(t.Context(), "warm"); !ok || err != nil {
		t.Fatalf("TryLock of a free key = %v, %v", ok, err)
	}
	if err := l.Unlock(t.Context(), "warm"); err != nil {
		t.Fatal(err)
	}
}

// acquire is an Acquire that must succeed.
func acquire(t testing.TB, b driver.Backend, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), c)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", c.Key, err)
	}
	return g
}

// release is a Release that must succeed.
func release(t testing.TB, b driver.Backend, c driver.Claim) {
	t.Helper()
	if err := b.Release(t.Context(), c); err != nil {
		t.Fatalf("Release(%q): %v", c.Key, err)
	}
}

// granted is what came of a Wait.
type granted struct {
	grant driver.Grant
	err   error
	at    time.Time
}

// wait starts a Wait.
func wait(ctx context.Context, b driver.Waiter, c driver.Claim) <-chan granted {
	return waitTold(ctx, b, c, func() {})
}

// waitTold starts a Wait that calls queued.
func waitTold(ctx context.Context, b driver.Waiter, c driver.Claim, queued func()) <-chan granted {
	ch := make(chan granted, 1)
	go func() {
		g, err := b.Wait(ctx, c, queued)
		ch <- granted{g, err, time.Now()}
	}()
	return ch
}

// within receives what comes of a Wait, which must succeed in time.
func within(t testing.TB, limit time.Duration, what string, ch <-chan granted) granted {
	t.Helper()
	select {
	case g := <-ch:
		if g.err != nil {
			t.Fatalf("%s: %v", what, g.err)
		}
		return g
	case <-time.After(limit):
		t.Fatalf("not within %v: %s", limit, what)
		return granted{}
	}
}

// silentListener accepts connections and counts what comes through them.
type silentListener struct {
	addr     string
	accepted atomic.Int64
	bytes    atomic.Int64
}

func listenSilently(t testing.TB) *silentListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &silentListener{addr: l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(writerFunc(func(p []byte) { s.bytes.Add(int64(len(p))) }), conn)
			}()
		}
	}()
	return s
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }
