package redis

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// newDialer makes connections as the client library does by default, but gives up when ctx ends also while it waits for the server's part of TLS.
func newDialer(timeout time.Duration, config *tls.Config) dialFunc {
	plain := &net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	if config == nil {
		return plain.DialContext
	}
	return (&tls.Dialer{NetDialer: plain, Config: config}).DialContext // without a ServerName the server is checked by the name it is dialled at
}

// forgiving has the first use of a connection fail, instead of the making of it. A pool of the client library counts for all its life the connections that
// it failed to make, those that were given up because nobody wanted them included, and from a certain number on refuses to try for up to a second.
func forgiving(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return unmade{dialError{err}}, nil
		}
		return conn, nil
	}
}

// forgivingHook is forgiving for a client that has its dialer from the client library.
type forgivingHook struct{}

func (forgivingHook) DialHook(next redis.DialHook) redis.DialHook {
	return redis.DialHook(forgiving(next))
}

func (forgivingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (forgivingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// unmade is a connection that could not be made.
type unmade struct{ err error }

func (u unmade) Read([]byte) (int, error)       { return 0, u.err }
func (u unmade) Write([]byte) (int, error)      { return 0, u.err }
func (unmade) Close() error                     { return nil }
func (unmade) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (unmade) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (unmade) SetDeadline(time.Time) error      { return nil }
func (unmade) SetReadDeadline(time.Time) error  { return nil }
func (unmade) SetWriteDeadline(time.Time) error { return nil }

// dialError is a layer around an error for the client library to take off.
type dialError struct{ err error }

func (e dialError) Error() string { return e.err.Error() }
func (e dialError) Unwrap() error { return e.err }
