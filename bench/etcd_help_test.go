package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/internal/etcdtest"
)

// A test program that was started as an etcd server, or as a holder to be killed, is nothing else.
func init() {
	etcdtest.Main()
	if os.Getenv(etcdHoldEnv) != "" {
		os.Exit(etcdHolder())
	}
}

// newEtcd starts a server that is used by nobody else and waits for its disk.
func newEtcd(tb testing.TB) (t *target, pid int) {
	tb.Helper()
	m := etcdtest.Start(tb, etcdtest.Fsync())
	return &target{addr: m.Addr, pid: m.Pid()}, m.Pid()
}

// etcd is a client as an application would have it. What it sends is counted: requests, and messages on streams.
func (t *target) etcd(tb testing.TB) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{t.addr}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(t.countCall), grpc.WithChainStreamInterceptor(t.countStream)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func (t *target) countCall(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	t.requests.Add(1)
	return call(ctx, method, req, reply, cc, opts...)
}

func (t *target) countStream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{s, t}, nil
}

// countedStream counts what is sent, and notes when a lease was last kept alive.
type countedStream struct {
	grpc.ClientStream
	t *target
}

func (s *countedStream) SendMsg(m any) error {
	s.t.requests.Add(1)
	return s.ClientStream.SendMsg(m)
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil && r.TTL > 0 {
		keptAlive(time.Now())
	}
	return err
}

// onKeepAlive, if it is set, is told of every keepalive that the server has acknowledged.
var onKeepAlive atomic.Pointer[func(time.Time)]

func keptAlive(at time.Time) {
	if f := onKeepAlive.Load(); f != nil {
		(*f)(at)
	}
}

// cpuOf returns the processor time that a process has used.
func cpuOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name before it may contain anything
	fields := strings.Fields(rest)
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		tb.Fatal(err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Go runs on Linux
	return time.Duration(user+system) * tick
}
