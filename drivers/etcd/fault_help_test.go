package etcd_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/tether"
)

// site is an etcd of a test's own, and a witness: a client that shares neither code nor connections with the driver.
type site struct {
	etcdtest.Cluster
	witness *clientv3.Client
}

func startSite(t testing.TB, members int) *site {
	t.Helper()
	c := etcdtest.StartCluster(t, members)
	return &site{c, c.Client(t)}
}

// contenders returns the keys of those who hold the lock or wait for it, in their order: the first one's holds it.
func (s *site) contenders(t testing.TB, lock string) []*mvccpb.KeyValue {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	order := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
	r, err := s.witness.Get(ctx, lock+"/", clientv3.WithPrefix(), order)
	if err != nil {
		t.Fatalf("the witness: %v", err)
	}
	return r.Kvs
}

func (s *site) count(t testing.TB, lock string) int {
	t.Helper()
	return len(s.contenders(t, lock))
}

// watchers returns how many watches the first member serves.
func (s *site) watchers(t testing.TB) int {
	t.Helper()
	r, err := http.Get(s.Cluster[0].Endpoint() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "etcd_debugging_mvcc_watcher_total %d", &n); err == nil {
			return n
		}
	}
	t.Fatal("the server does not tell how many watches it serves")
	return 0
}

// freed tells when the first of the lock's keys is deleted at the server.
func (s *site) freed(t testing.TB, lock string) <-chan time.Time {
	t.Helper()
	first := s.contenders(t, lock)[0]
	at := make(chan time.Time, 1)
	events := s.witness.Watch(t.Context(), string(first.Key), clientv3.WithRev(first.ModRevision+1), clientv3.WithFilterPut())
	go func() {
		for e := range events {
			if len(e.Events) > 0 {
				at <- time.Now()
				return
			}
		}
	}()
	return at
}

// wire is the requests of one client on their way to the server. They can be counted, and one that is not on a stream can be held up.
type wire struct {
	requests    atomic.Int64 // messages on streams are counted too
	watches     atomic.Int64 // those of them that are about watches
	hook        atomic.Pointer[hook]
	noKeepAlive atomic.Bool // no keepalive gets through
}

// hook gets a request in place of the network. It sends it as often and as late as it likes, and returns what the caller is told.
type hook func(ctx context.Context, req any, send func(context.Context) error) error

func (w *wire) intercept(h hook) { w.hook.Store(&h) }

// count counts a request, unless its context has ended: then it goes no further.
func (w *wire) count(ctx context.Context) {
	if ctx.Err() == nil {
		w.requests.Add(1)
	}
}

func (w *wire) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	w.count(ctx)
	send := func(ctx context.Context) error { return call(ctx, method, req, reply, cc, opts...) }
	if h := w.hook.Load(); h != nil {
		return (*h)(ctx, req, send)
	}
	return send(ctx)
}

func (w *wire) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if w.noKeepAlive.Load() && strings.HasSuffix(method, "/LeaseKeepAlive") {
		return nil, errors.New("the test lets no keepalive through")
	}
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{s, w}, nil
}

type countedStream struct {
	grpc.ClientStream
	w *wire
}

func (s *countedStream) SendMsg(m any) error {
	s.w.count(s.Context())
	if _, watch := m.(*etcdserverpb.WatchRequest); watch && s.Context().Err() == nil {
		s.w.watches.Add(1)
	}
	return s.ClientStream.SendMsg(m)
}

// dialWire returns a client of these addresses, and its wire.
func dialWire(t testing.TB, addrs ...string) (*clientv3.Client, *wire) {
	t.Helper()
	return dialWireAs(t, "", "", addrs...)
}

// dialWireAs is dialWire with a user.
func dialWireAs(t testing.TB, user, password string, addrs ...string) (*clientv3.Client, *wire) {
	t.Helper()
	w := &wire{}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, Username: user, Password: password, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(w.unary), grpc.WithChainStreamInterceptor(w.stream),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, w
}

// openBackend opens a Backend by DSN.
func openBackend(t testing.TB, addrs ...string) *etcddriver.Backend {
	t.Helper()
	b, err := etcddriver.Driver{}.Open(dsnOf(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*etcddriver.Backend)
}

func dsnOf(addrs ...string) string { return "etcd://" + strings.Join(addrs, ",") }

// openLocker opens a Locker by DSN. Holds last for ttl.
func openLocker(t testing.TB, ttl time.Duration, addrs ...string) dlock.Locker {
	t.Helper()
	l, err := dlock.Open("etcd", dsnOf(addrs...), &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// wiredLocker is a Locker on a client whose wire the test has in its hands.
func wiredLocker(t testing.TB, ttl time.Duration, addrs ...string) (dlock.Locker, *wire) {
	t.Helper()
	c, w := dialWire(t, addrs...)
	l, err := dlock.New(etcddriver.New(c), &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, w
}

// warmUp makes the connection and the lease that the next request needs.
func warmUp(t testing.TB, l dlock.Locker) {
	t.Helper()
	if err := holdKey(t, l, "warm").Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// holdKey acquires a lease that must be had.
func holdKey(t testing.TB, l dlock.Locker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	x, err := dlock.Acquire(ctx, l, key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return x
}

// newClaim returns a claim with a token of its own.
func newClaim(key string, ttl time.Duration) driver.Claim {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return driver.Claim{Key: key, Token: hex.EncodeToString(raw[:]), Owner: "a test", TTL: ttl}
}

// until waits for a condition, and fails the test when it does not come true in time.
func until(t testing.TB, limit time.Duration, what string, cond func() bool) {
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

// receive receives what must come.
func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not come", what)
		panic("not reached")
	}
}

// endOf waits for the end of a hold that must end, and returns when that was.
func endOf(t testing.TB, x *dlock.Lease, limit time.Duration) time.Time {
	t.Helper()
	select {
	case <-x.Done():
	case <-time.After(limit):
		t.Fatalf("%s: not Done within %v", x.Key(), limit)
	}
	return time.Now()
}

// lateness measures how late this machine wakes a goroutine, so that a busy machine is not taken for a slow lock.
func lateness(t testing.TB) func() time.Duration {
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

// marginOf is how long before the end of its TTL a hold is no longer relied on.
func marginOf(ttl time.Duration) time.Duration { return max(2*time.Millisecond, ttl/100) }

// holderEnv makes this program a holder: the DSN.
const holderEnv = "DLOCK_TEST_HOLDER"

func init() {
	if dsn := os.Getenv(holderEnv); dsn != "" {
		os.Exit(runHolder(dsn, os.Getenv(holderEnv+"_KEY"), os.Getenv(holderEnv+"_TTL")))
	}
}

// holder is a process that holds a lock; see runHolder.
type holder struct {
	cmd   *exec.Cmd
	lines chan string
}

func startHolder(t *testing.T, key string, ttl time.Duration, addrs ...string) *holder {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: exec.Command(exe), lines: make(chan string, 100)}
	h.cmd.Env = append(os.Environ(), holderEnv+"="+dsnOf(addrs...), holderEnv+"_KEY="+key, holderEnv+"_TTL="+ttl.String())
	var complaints bytes.Buffer
	h.cmd.Stderr = &complaints
	tether.Tie(h.cmd)
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		h.kill()
		if complaints.Len() > 0 {
			t.Logf("the holder: %s", complaints.String())
		}
	})
	return h
}

func (h *holder) signal(s os.Signal) { _ = h.cmd.Process.Signal(s) }

func (h *holder) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// line returns the next line that the holder writes, which must begin with word.
func (h *holder) line(t *testing.T, word string) string {
	t.Helper()
	line := receive(t, word+" from the holder", h.lines)
	rest, found := strings.CutPrefix(line, word+" ")
	if !found {
		t.Fatalf("the holder wrote %q, want %q", line, word)
	}
	return rest
}

// runHolder is what the process of a holder does: it acquires, and when it was stopped for longer than the TTL it tells what it then sees first. It does not
// sleep: whoever sleeps when the process is stopped wakes together with the timers.
func runHolder(dsn, key, ttlText string) int {
	ttl, err := time.ParseDuration(ttlText)
	if err != nil {
		return 2
	}
	l, err := dlock.Open("etcd", dsn, &dlock.Config{DefaultTTL: ttl})
	if err != nil {
		return 2
	}
	x, err := dlock.Acquire(context.Background(), l, key)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
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
			return 0
		}
		last = now
	}
}
