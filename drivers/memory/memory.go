// Package memory keeps locks in the memory of this process. It serves tests, examples and programs of one process, and is
// the driver to read before writing another: memory.go and store.go are a whole driver, wait.go and inspect.go are options.
//
// The DSN memory://name opens a store that is shared by name within the process and dropped at its last Close; an empty DSN and
// memory:// are the store without a name. There are no parameters. [New] makes a store that nobody else can open.
//
// In a testing/synctest bubble time is the bubble's, provided that the store was opened there.
package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("memory", Driver{}) }

var errClosed = errors.New("memory: closed")

// named holds the stores that are open by name. What outlives a store holds no timer and no channel, because it may be
// shared between synctest bubbles.
var named = struct {
	sync.Mutex
	stores map[string]*store
}{stores: map[string]*store{}}

// Driver opens stores by name. It is registered as "memory", and its zero value can be used without the registry.
type Driver struct{}

// Open returns a client of the store that dsn names, and makes the store if no client has it open.
func (Driver) Open(dsn string) (driver.Backend, error) {
	name, err := storeName(dsn)
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	named.Lock()
	defer named.Unlock()
	if named.stores[name] == nil {
		named.stores[name] = &store{name: name, locks: map[string]*lock{}}
	}
	return named.stores[name].client(), nil
}

func storeName(dsn string) (string, error) {
	if dsn == "" {
		return "", nil
	}
	d, err := driver.ParseDSN(dsn, "memory")
	if err != nil {
		return "", err
	}
	name := strings.Join(d.Hosts, ",")
	if d.User != "" || d.Password != "" || d.Path != "" || strings.ContainsAny(name, ",:[") {
		return "", fmt.Errorf("%w: it must be memory:// or memory://name, without user, password, port or path", driver.ErrInvalidDSN)
	}
	return name, d.Err()
}

// Backend is one client of a store.
type Backend struct {
	store  *store
	closed bool          // guarded by store.mu, so that nothing is written once Close has returned
	done   chan struct{} // closed by Close, to end the calls that wait
}

var (
	_ driver.Waiter       = (*Backend)(nil)
	_ driver.BatchRenewer = (*Backend)(nil)
	_ driver.Inspector    = (*Backend)(nil)
	_ driver.Breaker      = (*Backend)(nil)
	_ driver.Pinger       = (*Backend)(nil)
	_ driver.Doctor       = (*Backend)(nil)
	_ driver.CallModer    = (*Backend)(nil)
)

// New returns the only client of a store of its own.
func New() *Backend { return (&store{locks: map[string]*lock{}}).client() }

func (s *store) client() *Backend {
	s.clients++
	return &Backend{store: s, done: make(chan struct{})}
}

// enter begins an operation: it locks the store and returns the time, which never goes back from one operation to the next
// because it is read under that lock. After an error the store is not locked.
func (b *Backend) enter(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	b.store.mu.Lock()
	if b.closed {
		b.store.mu.Unlock()
		return time.Time{}, errClosed
	}
	return time.Now(), nil
}

// Ping fails after Close only: there is no network.
func (b *Backend) Ping(ctx context.Context) error {
	_, err := b.enter(ctx)
	if err == nil {
		b.store.mu.Unlock()
	}
	return err
}

// CallMode is Inline: nothing but Wait waits here.
func (b *Backend) CallMode() driver.CallMode { return driver.Inline }

// Close leaves holds until they expire, and takes this client's claims out of the queues, as if its process had vanished.
func (b *Backend) Close() error {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	close(b.done)
	s.abandon(b)
	named.Lock()
	defer named.Unlock()
	if s.clients--; s.clients == 0 && named.stores[s.name] == s {
		delete(named.stores, s.name)
	}
	return nil
}
