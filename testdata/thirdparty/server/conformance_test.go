package server_test

import (
	"net"
	"testing"
	"time"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"

	"example.com/lockd"
	"example.com/lockd/server"
)

func TestConformance(t *testing.T) {
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 100 * time.Millisecond,
		New: func(t *testing.T) dlocktest.Store {
			t.Parallel()
			srv, proxy := start(t)
			return dlocktest.Store{
				Open:   func(testing.TB) driver.Backend { return lockd.New(proxy.Addr()) },
				Driver: "lockd",
				DSN:    "lockd://" + proxy.Addr(),
				Delete: srv.Delete,
				Outage: proxy.Cut,
				Hang:   proxy.Hang,
			}
		},
	})
}

// start starts an empty server, with a network before it that can fail.
func start(t *testing.T) (*server.Server, *dlocktest.Proxy) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &server.Server{}
	go srv.Serve(l)
	t.Cleanup(func() { l.Close() })
	return srv, dlocktest.NewProxy(t, l.Addr().String())
}
