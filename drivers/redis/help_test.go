package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
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
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/tether"
)

// silent keeps the client library from logging what the tests do on purpose.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // they wait most of the time; the command line can say otherwise
	goredis.SetLogger(silent{})
	if role := os.Getenv("DLOCK_TEST_CHILD"); role != "" {
		os.Exit(runChild(role))
	}
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
	b, c := backend(t, s.Addr), claim("prime", time.Second)
	_, _ = b.Acquire(t.Context(), c)
	_, _ = b.Renew(t.Context(), c)
	_ = b.Release(t.Context(), c)
	_ = b.Close()
}

// checkExpiry looks at all keys: the locks must expire within the longest TTL, and what is kept beside them within an hour more.
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
		if strings.Contains(keys.Val(), "{") {
			most += time.Hour
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
func companion(key, suffix string) string { return key + "{" + key + "}:" + suffix }

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

// eventually waits for a condition, and fails the test when it does not come true in time.
func eventually(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		if cond() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
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

// hold acquires a lease that must be had.
func hold(t testing.TB, l dlock.Locker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	x, err := dlock.Acquire(ctx, l, key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return x
}

// soon receives what must come.
func soon[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not return", what)
		panic("not reached")
	}
}

// ended waits for the end of a hold that must end, and returns when that was.
func ended(t testing.TB, x *dlock.Lease, limit time.Duration) time.Time {
	t.Helper()
	select {
	case <-x.Done():
	case <-time.After(limit):
		t.Fatalf("%s: not Done within %v", x.Key(), limit)
	}
	return time.Now()
}

// claim returns a claim with a token of its own.
func claim(key string, ttl time.Duration) driver.Claim {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return driver.Claim{Key: key, Token: hex.EncodeToString(raw[:]), Owner: "a test", TTL: ttl}
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
	ch := make(chan granted, 1)
	go func() {
		g, err := b.Wait(ctx, c)
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

// lag measures how late this machine wakes a goroutine, so that a busy machine is not taken for a slow lock.
func lag(t testing.TB) func() time.Duration {
	var worst atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		const step = 2 * time.Millisecond
		for {
			began := time.Now()
			select {
			case <-stop:
				return
			case <-time.After(step):
			}
			if late := time.Since(began) - step; int64(late) > worst.Load() {
				worst.Store(int64(late))
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return func() time.Duration { return 2 * time.Duration(worst.Load()) }
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

// child is a process of its own that runs this test binary in a role; see runChild.
type child struct {
	cmd   *exec.Cmd
	lines chan string
}

func startChild(t *testing.T, role, addr, key string, ttl time.Duration) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), "DLOCK_TEST_CHILD="+role, "DLOCK_TEST_DSN="+dsn(addr), "DLOCK_TEST_KEY="+key, "DLOCK_TEST_TTL="+ttl.String())
	var complaints bytes.Buffer
	c.cmd.Stderr = &complaints
	tether.Tie(c.cmd)
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		c.kill()
		if complaints.Len() > 0 {
			t.Logf("child %s: %s", role, complaints.String())
		}
	})
	return c
}

func (c *child) signal(s os.Signal) { _ = c.cmd.Process.Signal(s) }

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// line returns the next line that the child writes, which must begin with word.
func (c *child) line(t *testing.T, word string) string {
	t.Helper()
	select {
	case line, ok := <-c.lines:
		rest, found := strings.CutPrefix(line, word+" ")
		if !ok || !found {
			t.Fatalf("the child wrote %q, want %q", line, word)
		}
		return rest
	case <-time.After(20 * time.Second):
		t.Fatalf("the child did not write %q", word)
		return ""
	}
}

// runChild is what the process of a child does.
func runChild(role string) int {
	ttl, err := time.ParseDuration(os.Getenv("DLOCK_TEST_TTL"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := dlock.Open("redis", os.Getenv("DLOCK_TEST_DSN"), &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if role == "wait" {
		fmt.Println("waiting", os.Getpid())
	}
	x, err := dlock.Acquire(context.Background(), l, os.Getenv("DLOCK_TEST_KEY"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if role == "wait" {
		fmt.Println("fence", x.Fence())
		select {}
	}
	wakeUp(x, ttl)
	return 0
}

// wakeUp notices that the process was stopped for longer than the TTL, and tells what it then sees first. It does not sleep: whoever sleeps when the process
// is stopped wakes together with the timers.
func wakeUp(x *dlock.Lease, ttl time.Duration) {
	last := time.Now()
	fmt.Println("fence", x.Fence()) // from here on the process may be stopped
	for {
		now := time.Now()
		held := x.Held()
		if now.Sub(last) > ttl {
			fmt.Println("held", held)
			<-x.Done()
			fmt.Println("done", time.Since(now).Microseconds())
			fmt.Println("write", x.Fence())
			return
		}
		last = now
	}
}
