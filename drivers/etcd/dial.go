package etcd

import (
	"context"
	"errors"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// dialer has the client, or makes it when it is first needed: one with a user and a password cannot be made without asking the server.
type dialer struct {
	cfg    *clientv3.Config // nil: the client is the application's
	cancel context.CancelFunc

	mu     sync.Mutex
	client *clientv3.Client
	making chan struct{} // closed when the attempt under way is over
	err    error         // of the last attempt
	cause  error         // why it could not log in: there is no connection
	closed bool
}

// newDialer makes the client, if that can be done without the server.
func newDialer(cfg *clientv3.Config) (*dialer, error) {
	d := &dialer{cfg: cfg}
	cfg.Context, d.cancel = context.WithCancel(context.Background())
	if cfg.Username != "" {
		return d, nil
	}
	var err error
	if d.client, err = clientv3.New(*cfg); err != nil {
		d.cancel()
		return nil, err
	}
	return d, nil
}

// get returns the client.
func (d *dialer) get(ctx context.Context) (*clientv3.Client, error) {
	d.mu.Lock()
	switch {
	case d.closed:
		d.mu.Unlock()
		return nil, errClosed
	case d.client != nil:
		defer d.mu.Unlock()
		return d.client, nil
	case d.making == nil:
		d.making = make(chan struct{})
		go d.make(d.making)
	}
	making := d.making
	d.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-making:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	return d.client, d.err
}

func (d *dialer) make(done chan struct{}) {
	client, err := clientv3.New(*d.cfg)
	var cause error
	if errors.Is(err, context.DeadlineExceeded) {
		cause = d.probe()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer close(done)
	d.making = nil
	if d.closed && client != nil {
		_ = client.Close()
		client = nil
	}
	d.client, d.err, d.cause = client, err, cause
}

// made returns the client if there is one.
func (d *dialer) made() *clientv3.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.client
}

// state returns the client if there is one, and else whether the last attempt to make it has failed.
func (d *dialer) state() (client *clientv3.Client, failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.client, d.err != nil
}

// close closes the client unless it is the application's.
func (d *dialer) close() error {
	d.mu.Lock()
	d.closed = true
	making := d.making
	d.mu.Unlock()
	if d.cfg == nil {
		return nil
	}
	d.cancel()
	if making != nil {
		<-making
	}
	if client := d.made(); client != nil {
		return client.Close()
	}
	return nil
}
