package etcd

import (
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/netdsn"
)

// Open returns a Backend for dsn; see the package's documentation for its form. Nothing is sent.
func (Driver) Open(dsn string) (driver.Backend, error) {
	d, err := driver.ParseDSN(dsn, "etcd", "etcds")
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	cfg, o, err := parse(d)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	dial, err := newDialer(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w: %w", driver.ErrInvalidDSN, err)
	}
	return newBackend(dial, o), nil
}

func parse(d *driver.DSN) (*clientv3.Config, options, error) {
	o := options{namespace: d.Text("namespace", "")}
	timeout := d.Duration("dial_timeout", 5*time.Second)
	alive := d.Duration("keepalive_time", 10*time.Second)
	aliveTimeout := d.Duration("keepalive_timeout", 3*time.Second)
	cfg := &clientv3.Config{
		Username: d.User, Password: d.Password, DialTimeout: timeout, DialKeepAliveTime: alive, DialKeepAliveTimeout: aliveTimeout,
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: timeout,
		})},
	}
	scheme := "http://"
	if d.Scheme == "etcds" {
		scheme = "https://"
		var err error
		if cfg.TLS, err = netdsn.TLS(d); err != nil {
			return nil, o, err
		}
	}
	if err := d.Err(); err != nil {
		return nil, o, err
	}
	switch {
	case d.Path != "" && d.Path != "/":
		return nil, o, netdsn.Bad("there is nothing to name by a path; a prefix for all keys is written ?namespace=")
	case (d.User == "") != (d.Password == ""):
		return nil, o, netdsn.Bad("user and password go together")
	case timeout == 0:
		return nil, o, netdsn.Bad("parameter \"dial_timeout\" must be more than 0")
	case alive < time.Second:
		return nil, o, netdsn.Bad("parameter \"keepalive_time\" must be 1s or more")
	case aliveTimeout == 0:
		return nil, o, netdsn.Bad("parameter \"keepalive_timeout\" must be more than 0")
	}
	if len(d.Hosts) == 0 {
		d.Hosts = []string{"localhost"}
	}
	for _, h := range d.Hosts {
		cfg.Endpoints = append(cfg.Endpoints, scheme+netdsn.WithPort(h, "2379"))
	}
	return cfg, o, nil
}
