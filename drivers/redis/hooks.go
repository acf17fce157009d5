package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// watched calls functions of the application, which may block and look at no context, for a client
// of our own. Each runs on a goroutine that is left behind when the call it is needed for has
// ended.
type watched struct {
	running chan struct{} // bounds those that do not return

	// begin derives the context of a call. Nil: it is what the client library gives.
	begin func(context.Context) (ctx context.Context, end context.CancelFunc, err error)
}

const (
	// maxRunning is how many functions of the application may be running before further ones wait
	// for one to return.
	maxRunning = 64

	// hookLimit is how long one may take when whoever needs it has no limit: another one may fare
	// better.
	hookLimit = 30 * time.Second
)

func newWatched() watched { return watched{running: make(chan struct{}, maxRunning)} }

// callWatched calls f, and returns when it has returned or ctx ends. What came too late is handed
// to late, unless that is nil.
func callWatched[T any](ctx context.Context, w watched, what string, f func(context.Context) (T, error), late func(T)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, hookLimit)
	defer cancel()
	var none T
	if w.begin != nil {
		var end context.CancelFunc
		var err error
		if ctx, end, err = w.begin(ctx); err != nil {
			return none, err
		}
		defer end()
	}
	type result struct {
		value T
		err   error
	}
	select {
	case w.running <- struct{}{}:
	case <-ctx.Done():
		return none, hookError(what, ctx.Err())
	}
	came := make(chan result)
	go func() {
		defer func() {
			_ = recover() // of late
			<-w.running
		}()
		value, err := guarded(ctx, what, f)
		select {
		case came <- result{value, err}:
		case <-ctx.Done():
			if err == nil && late != nil {
				late(value)
			}
		}
	}()
	select {
	case r := <-came:
		return r.value, r.err
	case <-ctx.Done():
		return none, hookError(what, ctx.Err())
	}
}

// guarded calls f. A panic would end the process, because nobody else can catch it on this goroutine.
func guarded[T any](ctx context.Context, what string, f func(context.Context) (T, error)) (value T, err error) {
	returned := false
	defer func() {
		if !returned {
			err = dialError{fmt.Errorf("the application's %s has panicked: %v", what, recover())}
		}
	}()
	value, err = f(ctx)
	returned = true
	return value, err
}

// hookError has a layer for the client library to take off.
func hookError(what string, err error) error {
	return dialError{fmt.Errorf("the application's %s has not returned: %w", what, err)}
}

// options has the functions in o called by w.
func (w watched) options(o *redis.Options) {
	o.CredentialsProvider, o.CredentialsProviderContext = nil, w.credentials(o.CredentialsProvider, o.CredentialsProviderContext)
	o.StreamingCredentialsProvider = w.streaming(o.StreamingCredentialsProvider)
	o.OnConnect = w.onConnect(o.OnConnect)
	if o.Limiter != nil {
		o.Limiter = watchedLimiter{w, o.Limiter}
	}
}

// clusterOptions is options for a cluster.
func (w watched) clusterOptions(o *redis.ClusterOptions) {
	o.Dialer = w.dialer(o.Dialer)
	o.CredentialsProvider, o.CredentialsProviderContext = nil, w.credentials(o.CredentialsProvider, o.CredentialsProviderContext)
	o.StreamingCredentialsProvider = w.streaming(o.StreamingCredentialsProvider)
	o.OnConnect = w.onConnect(o.OnConnect)
}

// dialer has a dialer called by w. A connection that comes too late is closed.
func (w watched) dialer(dial dialFunc) dialFunc {
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return callWatched(ctx, w, "Dialer", func(ctx context.Context) (net.Conn, error) { return dial(ctx, network, addr) }, hangUp)
	}
}

type (
	provider        = func() (string, string)
	contextProvider = func(context.Context) (string, string, error)
	connectFunc     = func(context.Context, *redis.Conn) error
)

func (w watched) credentials(plain provider, withContext contextProvider) contextProvider {
	if withContext == nil && plain == nil {
		return nil
	}
	if withContext == nil {
		withContext = func(context.Context) (user, password string, _ error) {
			user, password = plain()
			return user, password, nil
		}
	}
	return func(ctx context.Context) (string, string, error) {
		c, err := callWatched(ctx, w, "CredentialsProvider", func(ctx context.Context) (c [2]string, err error) {
			c[0], c[1], err = withContext(ctx)
			return c, err
		}, nil)
		return c[0], c[1], err
	}
}

func (w watched) onConnect(f connectFunc) connectFunc {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, conn *redis.Conn) error {
		_, err := callWatched(ctx, w, "OnConnect", func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx, conn) }, nil)
		return err
	}
}

func (w watched) streaming(p auth.StreamingCredentialsProvider) auth.StreamingCredentialsProvider {
	if p == nil {
		return nil
	}
	return watchedStream{w, p}
}

// watchedStream is a source of credentials whose methods are called by watched.
type watchedStream struct {
	watched
	source auth.StreamingCredentialsProvider
}

// Subscribe implements [auth.StreamingCredentialsProvider].
func (s watchedStream) Subscribe(listener auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	type subscription struct {
		auth.Credentials
		leave auth.UnsubscribeFunc
	}
	leave := func(x subscription) {
		if x.leave != nil {
			_ = x.leave()
		}
	}
	x, err := callWatched(context.Background(), s.watched, "StreamingCredentialsProvider", func(context.Context) (x subscription, err error) {
		x.Credentials, x.leave, err = s.source.Subscribe(listener)
		return x, err
	}, leave)
	return x.Credentials, func() error {
		go harmless(func() { leave(x) }) // whoever closes a connection does not wait for the application
		return nil
	}, err
}

// watchedLimiter is a limiter whose methods are called by watched.
type watchedLimiter struct {
	watched
	redis.Limiter
}

var errUnused = errors.New("redis: nothing was sent")

// Allow implements [redis.Limiter].
func (l watchedLimiter) Allow() error {
	_, err := callWatched(context.Background(), l.watched, "Limiter", func(context.Context) (struct{}, error) { return struct{}{}, l.Limiter.Allow() },
		func(struct{}) { l.Limiter.ReportResult(errUnused) })
	return err
}

// ReportResult implements [redis.Limiter]. What was allowed is reported in any case.
func (l watchedLimiter) ReportResult(result error) {
	report := sync.OnceFunc(func() { l.Limiter.ReportResult(result) })
	_, err := callWatched(context.Background(), l.watched, "Limiter", func(context.Context) (struct{}, error) {
		report()
		return struct{}{}, nil
	}, nil)
	if err != nil {
		go harmless(report)
	}
}

// harmless calls f, which is the application's, and whose panic nobody else can catch.
func harmless(f func()) {
	defer func() { _ = recover() }()
	f()
}
