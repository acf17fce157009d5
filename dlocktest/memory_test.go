package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var errDown = errors.New("connection refused")

// memoryStore is a store of drivers/memory with a network that can fail.
func memoryStore(t testing.TB) Store {
	dsn := fmt.Sprintf("memory://dlocktest-%d", stores.Add(1))
	side := openMemory(t, dsn)
	t.Cleanup(func() { _ = side.Close() })
	var mu sync.Mutex
	var down error
	var clients []*faulty
	var hung switchable
	return Store{
		Driver: "memory", DSN: dsn,
		Open: func(t testing.TB) driver.Backend {
			b := newFaulty(openMemory(t, dsn))
			client := &silent{faulty: b, hung: &hung}
			mu.Lock()
			defer mu.Unlock()
			if clients = append(clients, b); down != nil {
				b.fail(down)
			}
			return client
		},
		Hang: hung.set,
		Outage: func(isDown bool) {
			mu.Lock()
			defer mu.Unlock()
			if down = nil; isDown {
				down = errDown
			}
			for _, b := range clients {
				b.fail(down)
			}
		},
		Delete: func(key string) {
			if info, err := side.Inspect(context.Background(), key); err == nil && info.Fence != 0 {
				_ = side.Break(context.Background(), key, info.Fence)
			}
		},
	}
}

func TestMemory(t *testing.T) {
	Run(t, Harness{New: func(t *testing.T) Store { return memoryStore(t) }, Around: synctest.Test, Pushed: true})
}

func TestMemoryInRealTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds of real time")
	}
	t.Parallel()
	Run(t, Harness{
		New: func(t *testing.T) Store {
			t.Parallel()
			return memoryStore(t)
		},
		MinTTL: 60 * time.Millisecond,
		Pushed: true,
	})
}
