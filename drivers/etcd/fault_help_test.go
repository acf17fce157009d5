package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// site is an etcd of a test's own, and a witness: a client that shares neither code nor connections with the driver.
type site struct {
	etcdtest.Cluster
	witness *clientv3.Client
}

func startSite(t testing.TB, members int, opts ...etcdtest.Option) *site {
	t.Helper()
	c := etcdtest.StartCluster(t, members, opts...)
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

// left returns the keys of contenders that begin with prefix. A sentinel is none of them: it stays
// for as long as its lease.
func (s *site) left(ctx context.Context, prefix string) (names []string, err error) {
	r, err := s.witness.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	for _, kv := range r.Kvs {
		if name := string(kv.Key); !strings.Contains(name, "%lease-") {
			names = append(names, name)
		}
	}
	return names, nil
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

// slowness measures, from now to the end of the test, how long the server takes to answer anybody, this machine's lateness included.
func (s *site) slowness(t testing.TB) func() time.Duration {
	return faulttest.Slowness(t, func(ctx context.Context) {
		if _, err := s.witness.Get(ctx, "slowness"); err != nil && ctx.Err() == nil {
			t.Errorf("the witness: %v", err)
		}
	})
}

// freed tells when the first of the lock's keys is deleted at the server, which may have been before.
func (s *site) freed(t testing.TB, lock string) <-chan time.Time {
	t.Helper()
	at := make(chan time.Time, 1)
	keys := s.contenders(t, lock)
	if len(keys) == 0 {
		at <- time.Now()
		return at
	}
	first := keys[0]
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

	stuckKeepAlive atomic.Bool // none is answered
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
	if w.stuckKeepAlive.Load() && strings.HasSuffix(method, "/LeaseKeepAlive") {
		<-ctx.Done()
		return nil, ctx.Err()
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
	if err := faulttest.Hold(t, l, "warm").Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// marginOf is how long before the end of its TTL a hold is no longer relied on.
func marginOf(ttl time.Duration) time.Duration { return max(2*time.Millisecond, ttl/100) }
