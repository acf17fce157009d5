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
			srv := &server.Server{}
			l := listen(t, "127.0.0.1:0")
			go srv.Serve(l)
			addr := l.Addr().String()
			t.Cleanup(func() { l.Close() })
			return dlocktest.Store{
				Open:   func(testing.TB) driver.Backend { return lockd.New(addr) },
				Driver: "lockd",
				DSN:    "lockd://" + addr,
				Delete: srv.Delete,
				Outage: func(down bool) {
					if l.Close(); !down {
						l = listen(t, addr)
						go srv.Serve(l)
					}
				},
			}
		},
	})
}

func listen(t *testing.T, addr string) net.Listener {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
