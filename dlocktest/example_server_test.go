package dlocktest_test

import (
	"context"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
)

// harness tests a driver on the server at addr. All cases share the server: each empties it first,
// and none calls t.Parallel. A store in which cases can be kept apart, by a database or a schema
// for each, need not be emptied, and lets them run at the same time.
func harness(addr string) dlocktest.Harness {
	return dlocktest.Harness{
		MinTTL: 300 * time.Millisecond, // the shortest that a busy machine keeps alive
		New: func(t *testing.T) dlocktest.Store {
			admin := goredis.NewClient(&goredis.Options{Addr: addr}) // not through the proxy
			t.Cleanup(func() { _ = admin.Close() })
			if err := admin.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			proxy := dlocktest.NewProxy(t, addr)
			dsn := "redis://" + proxy.Addr() + "/0"
			return dlocktest.Store{
				Driver: "redis",
				DSN:    dsn,
				Open: func(t testing.TB) driver.Backend {
					b, err := redisdriver.Driver{}.Open(dsn)
					if err != nil {
						t.Fatal(err)
					}
					return b
				},
				Outage: proxy.Cut,
				Hang:   proxy.Hang,
				Delete: func(key string) {
					if err := admin.Del(context.Background(), key).Err(); err != nil {
						t.Error(err)
					}
				},
			}
		},
	}
}

// The test of a driver whose store is a server, here Redis. The server may be anywhere, and loses
// all it has.
func ExampleRun_server() {
	_ = func(t *testing.T) {
		addr := os.Getenv("TEST_REDIS")
		if addr == "" {
			t.Skip("TEST_REDIS is not set; it must be host:port of a server that may be emptied")
		}
		dlocktest.Run(t, harness(addr))
	}
}
