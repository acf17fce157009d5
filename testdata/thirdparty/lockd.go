// Package lockd is a dlock driver for lockd, a lock server that is asked in lines of JSON over TCP. Import it for its side effect and open
// lockd://host:port.
//
// It makes one connection per call: not fast, but nothing is shared, so a call that hangs disturbs no other.
package lockd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("lockd", Driver{}) }

// Request is a line to the server. The key is bytes, because JSON has no strings that are not text.
type Request struct {
	Op    string        `json:"op"` // "acquire", "renew", "release" or "ping"
	Key   []byte        `json:"key"`
	Token string        `json:"token"`
	TTL   time.Duration `json:"ttl"`
}

// Reply is a line from the server.
type Reply struct {
	Status string `json:"status"` // "ok", "held" or "not-owner"
	Fence  uint64 `json:"fence"`
}

// Driver opens lockd://host:port.
type Driver struct{}

// Open parses dsn. It does not connect.
func (Driver) Open(dsn string) (driver.Backend, error) {
	d, err := driver.ParseDSN(dsn, "lockd")
	if err != nil {
		return nil, fmt.Errorf("lockd: %w", err)
	}
	if len(d.Hosts) != 1 || d.User != "" || d.Password != "" || d.Path != "" {
		return nil, fmt.Errorf("lockd: %w: it must be lockd://host:port", driver.ErrInvalidDSN)
	}
	if err := d.Err(); err != nil {
		return nil, fmt.Errorf("lockd: %w", err)
	}
	return New(d.Hosts[0]), nil
}

// Backend is one client of a server.
type Backend struct {
	addr   string
	ctx    context.Context // ends at Close
	cancel context.CancelFunc

	mu    sync.Mutex // of open, and between Close and the beginning of a call
	calls sync.WaitGroup
	open  map[string]int // acquires that were given up and may still be applied, by token
}

var _ driver.Pinger = (*Backend)(nil)

var (
	errClosed = errors.New("lockd: closed")
	errOpen   = errors.New("lockd: release: not found, but an acquire has no answer yet and may still be applied")
)

// New returns a client of the server at addr.
func New(addr string) *Backend {
	ctx, cancel := context.WithCancel(context.Background())
	return &Backend{addr: addr, ctx: ctx, cancel: cancel, open: map[string]int{}}
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return b.grant(ctx, "acquire", c)
}

// Renew implements [driver.Backend].
func (b *Backend) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return b.grant(ctx, "renew", c)
}

func (b *Backend) grant(ctx context.Context, op string, c driver.Claim) (driver.Grant, error) {
	r, err := b.call(ctx, op, c)
	if err != nil {
		return driver.Grant{}, err
	}
	// The engine counts the TTL from the moment of this call, which is before the server began to.
	return driver.Grant{Fence: r.Fence, TTL: c.TTL}, nil
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, c driver.Claim) error {
	b.mu.Lock()
	open := b.open[c.Token] > 0
	b.mu.Unlock()
	_, err := b.call(ctx, "release", c)
	if open && errors.Is(err, driver.ErrNotOwner) {
		return errOpen
	}
	return err
}

// Ping implements [driver.Pinger].
func (b *Backend) Ping(ctx context.Context) error {
	_, err := b.call(ctx, "ping", driver.Claim{})
	return err
}

// Close ends the calls that are under way and waits for them.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.calls.Wait()
	return nil
}

// call asks the server once. Only what the server said becomes ErrHeld or ErrNotOwner.
func (b *Backend) call(ctx context.Context, op string, c driver.Claim) (Reply, error) {
	b.mu.Lock()
	if b.ctx.Err() != nil {
		b.mu.Unlock()
		return Reply{}, errClosed
	}
	b.calls.Add(1)
	b.mu.Unlock()
	defer b.calls.Done()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	r, err := b.exchange(ctx, Request{Op: op, Key: []byte(c.Key), Token: c.Token, TTL: c.TTL})
	switch {
	case err != nil && ctx.Err() != nil:
		return Reply{}, fmt.Errorf("lockd: %s: %w", op, ctx.Err())
	case err != nil:
		return Reply{}, fmt.Errorf("lockd: %s: %w", op, err)
	case r.Status == "held":
		return Reply{}, driver.ErrHeld
	case r.Status == "not-owner":
		return Reply{}, driver.ErrNotOwner
	case r.Status != "ok":
		return Reply{}, fmt.Errorf("lockd: %s: the server answered %q", op, r.Status)
	}
	return r, nil
}

// exchange sends a line and reads one, until ctx ends.
func (b *Backend) exchange(ctx context.Context, q Request) (r Reply, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", b.addr)
	if err != nil {
		return r, err
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err = json.NewEncoder(conn).Encode(q); err == nil {
		err = json.NewDecoder(conn).Decode(&r)
	}
	if q.Op == "acquire" && errors.Is(err, os.ErrDeadlineExceeded) {
		b.leave(conn, q.Token)
		return r, err
	}
	conn.Close()
	return r, err
}

// leave keeps the connection of an acquire that was given up until the server answers or closes it.
// A server that does neither for a minute is taken for gone.
func (b *Backend) leave(conn net.Conn, token string) {
	conn.SetDeadline(time.Now().Add(time.Minute))
	stop := context.AfterFunc(b.ctx, func() { conn.Close() })
	b.mu.Lock()
	b.open[token]++
	b.mu.Unlock()
	b.calls.Go(func() {
		conn.Read(make([]byte, 1))
		stop()
		conn.Close()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.open[token]--; b.open[token] == 0 {
			delete(b.open, token)
		}
	})
}
