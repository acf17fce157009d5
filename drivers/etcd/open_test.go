package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
)

// openDSN opens a DSN for the length of the test.
func openDSN(t testing.TB, dsn string) *etcddriver.Backend {
	t.Helper()
	b, err := driver.Open("etcd", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*etcddriver.Backend)
}

// claimBy returns the claim of key by the n-th owner.
func claimBy(n int, key string, ttl time.Duration) driver.Claim {
	return driver.Claim{Key: key, Token: fmt.Sprintf("%032x", n), Owner: fmt.Sprint("owner-", n), TTL: ttl}
}

// bounded returns a context for calls that have every reason to return soon.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func acquired(t testing.TB, b driver.Backend, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := b.Acquire(bounded(t), c)
	if err != nil {
		t.Fatalf("Acquire of %q = %v", c.Key, err)
	}
	return g
}

// queued starts a Wait and returns when it waits. Its error comes when it has ended.
func queued(t testing.TB, b driver.Backend, c driver.Claim) <-chan error {
	t.Helper()
	waits, done := make(chan struct{}), make(chan error, 1)
	once := sync.OnceFunc(func() { close(waits) })
	ctx := bounded(t)
	go func() {
		_, err := b.(driver.Waiter).Wait(ctx, c, once)
		done <- err
	}()
	select {
	case <-waits:
	case err := <-done:
		t.Fatalf("Wait for %q = %v, want it to wait", c.Key, err)
	}
	return done
}

// traffic is what a client sends, by method. A request can be tampered with before it is sent, and its answer before it is told.
type traffic struct {
	mu     sync.Mutex
	sent   map[string]int
	tamper func(ctx context.Context, method string, req any, send func(context.Context) error) error
}

// observed returns a client of m whose requests are counted.
func observed(t testing.TB, m *etcdtest.Member) (*clientv3.Client, *traffic) {
	t.Helper()
	tr := &traffic{sent: map[string]int{}}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{m.Endpoint()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(tr.unary), grpc.WithChainStreamInterceptor(tr.stream)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client, tr
}

// on has f called in place of sending a request. A nil f ends that.
func (tr *traffic) on(f func(ctx context.Context, method string, req any, send func(context.Context) error) error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.tamper = f
}

// take returns what was sent since the last call.
func (tr *traffic) take() map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	sent := tr.sent
	tr.sent = map[string]int{}
	return sent
}

func (tr *traffic) count(method string) func(context.Context, string, any, func(context.Context) error) error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.sent[method]++
	return tr.tamper
}

func (tr *traffic) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	send := func(ctx context.Context) error { return next(ctx, method, req, reply, cc, opts...) }
	if tamper := tr.count(shortName(method, req)); tamper != nil {
		return tamper(ctx, shortName(method, req), req, send)
	}
	return send(ctx)
}

// shortName tells transactions that write from those that read.
func shortName(method string, req any) string {
	if r, ok := req.(*pb.TxnRequest); ok && !slices.ContainsFunc(r.Success, func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil }) {
		return "Read"
	}
	for i := len(method) - 1; i >= 0; i-- {
		if method[i] == '/' {
			return method[i+1:]
		}
	}
	return method
}

func (tr *traffic) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := next(ctx, desc, cc, method, opts...)
	return &observedStream{s, tr, shortName(method, nil)}, err
}

type observedStream struct {
	grpc.ClientStream
	tr     *traffic
	method string
}

func (s *observedStream) SendMsg(m any) error {
	s.tr.count(s.method)
	return s.ClientStream.SendMsg(m)
}
