// Container builds an application's parts from a configuration. A driver that the application has a client for is given that client; any other
// is opened by its DSN. Which one is used, the configuration alone decides.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func main() {
	for _, file := range []string{
		`{"driver": "injected", "prefix": "shop:", "default_ttl": "30s"}`,
		`{"driver": "memory", "dsn": "memory://shop", "prefix": "shop:", "default_ttl": "30s"}`,
		`{"driver": "nowhere"}`,
	} {
		if err := run(file); err != nil {
			fmt.Println("error:", err)
		}
	}
}

func run(file string) error {
	var cfg dlock.Config
	if err := json.Unmarshal([]byte(file), &cfg); err != nil {
		return err
	}
	c := newContainer()
	locker, err := c.Locker(&cfg)
	if err != nil {
		return err
	}
	defer func() {
		if err := locker.Close(); err != nil {
			log.Print(err)
		}
	}()
	return newOrders(locker).ship(context.Background(), "123", cfg.Driver)
}

// container knows how to make the parts of the application.
type container struct {
	// backends makes a driver.Backend from a client that the application has anyway. The Locker closes the backend, and the backend leaves
	// the client open.
	backends map[string]func() driver.Backend
}

func newContainer() *container {
	return &container{backends: map[string]func() driver.Backend{
		"injected": func() driver.Backend { return memory.New() },
	}}
}

// Locker returns the Locker that cfg asks for.
func (c *container) Locker(cfg *dlock.Config) (dlock.Locker, error) {
	if backend, ok := c.backends[cfg.Driver]; ok {
		return dlock.New(backend(), cfg)
	}
	return dlock.OpenConfig(cfg)
}

// orders is a service that knows nothing of drivers.
type orders struct{ locker dlock.Locker }

func newOrders(l dlock.Locker) *orders { return &orders{l} }

func (o *orders) ship(ctx context.Context, id, via string) error {
	return dlock.Do(ctx, o.locker, "order:"+id, func(ctx context.Context) error {
		fmt.Printf("shipping order %s under a lock of driver %s\n", id, via)
		return ctx.Err()
	})
}
