package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dlock-go/dlock/driver"
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
		if cfg.TLS, err = tlsConfig(d); err != nil {
			return nil, o, err
		}
	}
	if err := d.Err(); err != nil {
		return nil, o, err
	}
	switch {
	case d.Path != "" && d.Path != "/":
		return nil, o, bad("there is nothing to name by a path; a prefix for all keys is written ?namespace=")
	case (d.User == "") != (d.Password == ""):
		return nil, o, bad("user and password go together")
	case timeout == 0:
		return nil, o, bad("parameter \"dial_timeout\" must be more than 0")
	case alive < time.Second:
		return nil, o, bad("parameter \"keepalive_time\" must be 1s or more")
	case aliveTimeout == 0:
		return nil, o, bad("parameter \"keepalive_timeout\" must be more than 0")
	}
	if len(d.Hosts) == 0 {
		d.Hosts = []string{"localhost"}
	}
	for _, h := range d.Hosts {
		cfg.Endpoints = append(cfg.Endpoints, scheme+withPort(h, "2379"))
	}
	return cfg, o, nil
}

func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// tlsConfig reads the files that the DSN names.
func tlsConfig(d *driver.DSN) (*tls.Config, error) {
	ca, cert, key := d.Text("ca", ""), d.Text("cert", ""), d.Text("key", "")
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: d.Bool("insecure", false)} //nolint:gosec // when asked for
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, bad("parameter \"ca\" must be a file that can be read: %v", reason(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, bad("parameter \"ca\" must be a file of PEM certificates")
		}
	}
	if (cert == "") != (key == "") {
		return nil, bad("parameters \"cert\" and \"key\" go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, bad("parameters \"cert\" and \"key\" must be files of a PEM certificate and its key: %v", reason(err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// reason leaves the path out: the operator wrote it, and driver.Open would take it for a secret.
func reason(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{driver.ErrInvalidDSN}, args...)...)
}
