package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

const (
	probeLimit = 200 * time.Millisecond // for a connection that is only made to see why there is none
	askLimit   = 20 * time.Millisecond  // for a question that gRPC answers itself
)

// explain adds to an error that says no more than that the time is over why there is no connection,
// if there is none. The client waits for a connection as long as it may, and then does not say why
// it had to.
func (d *dialer) explain(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	d.mu.Lock()
	client, cause := d.client, d.cause
	d.mu.Unlock()
	if client != nil {
		cause = noConnection(client.ActiveConnection())
	}
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// probe returns why nobody could log in, if that is because there is no connection. It uses a client
// that does not log in.
func (d *dialer) probe() error {
	cfg := *d.cfg
	cfg.Username, cfg.Password = "", ""
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil
	}
	defer func() { _ = client.Close() }()
	conn := client.ActiveConnection()
	conn.Connect()
	ctx, cancel := context.WithTimeout(cfg.Context, probeLimit)
	defer cancel()
	for s := conn.GetState(); s != connectivity.TransientFailure && s != connectivity.Ready; s = conn.GetState() {
		if !conn.WaitForStateChange(ctx, s) {
			return nil
		}
	}
	return noConnection(conn)
}

// noConnection returns why conn is connected to nobody; nil if it is, or may soon be.
func noConnection(conn *grpc.ClientConn) error {
	if conn == nil || conn.GetState() != connectivity.TransientFailure {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	// It is not sent, as there is nobody to send it to.
	read := &pb.RangeRequest{Key: []byte("dlock/ping"), Serializable: true, CountOnly: true}
	_, err := pb.NewKVClient(conn).Range(ctx, read, grpc.WaitForReady(false))
	if status.Code(err) != codes.Unavailable {
		return nil
	}
	return errors.New(status.Convert(err).Message())
}
