//nolint:errcheck // the deferred Close reads as it would in a program
package dlock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// A file decides which backend is used. Printing the Config does not show the DSN's secrets.
func ExampleConfig() {
	file := []byte(`{
		"driver": "memory",
		"dsn": "memory://orders",
		"prefix": "myapp:",
		"default_ttl": "30s",
		"wait_timeout": "2s"
	}`)
	var cfg dlock.Config
	if err := json.Unmarshal(file, &cfg); err != nil {
		log.Fatal(err)
	}
	locker, err := dlock.OpenConfig(&cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	fmt.Println(cfg.DefaultTTL, cfg.WaitTimeout)

	fmt.Println(json.Unmarshal([]byte(`{"default_ttl": 30}`), &cfg))
	fmt.Println(dlock.Config{Driver: "redis", DSN: "redis://app:s3cret@host:6379/0"})
	// Output:
	// 30s 2s
	// dlock: invalid config: default_ttl: want a duration in quotes such as "30s", not 30
	// dlock.Config{driver:"redis" dsn:"redis://xxxxx@host:6379/0"}
}

// container makes the Locker of an application: from a client that was injected, if there is one for the configured driver, and otherwise
// from the DSN.
type container struct {
	injected map[string]func() driver.Backend
}

func (c container) locker(cfg *dlock.Config) (dlock.Locker, error) {
	if backend, ok := c.injected[cfg.Driver]; ok {
		return dlock.New(backend(), cfg)
	}
	return dlock.OpenConfig(cfg)
}

// A container switches between injected clients by configuration, and falls back to what the DSN says.
func Example_container() {
	app := container{injected: map[string]func() driver.Backend{
		// With a Redis client of the application's own this would return a backend made from it.
		"shared": func() driver.Backend { return memory.New() },
	}}
	for _, name := range []string{"shared", "memory", "nowhere"} {
		locker, err := app.locker(&dlock.Config{Driver: name})
		if err != nil {
			fmt.Println(name, "is unknown:", errors.Is(err, dlock.ErrUnknownDriver))
			continue
		}
		fmt.Println(name, "is open")
		locker.Close()
	}
	// Output:
	// shared is open
	// memory is open
	// nowhere is unknown: true
}
