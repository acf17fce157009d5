package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// clusterMode is whether the server is part of a cluster. The server is asked, because a plain client may talk to a node of one.
type clusterMode struct{ atomic.Bool }

func (m *clusterMode) on() bool { return m.Load() }

// ready fails when b was closed, ctx is done, or the server is too old; the server is asked on first use.
func (b *Backend) ready(ctx context.Context) error {
	if err := b.open(ctx); err != nil {
		return err
	}
	if b.checked.Load() {
		return nil
	}
	select {
	case b.asking <- struct{}{}:
		free := sync.OnceFunc(func() { <-b.asking })
		defer free()
		defer time.AfterFunc(askAlone, free).Stop()
	case <-ctx.Done():
		return classify(opVersion, ctx.Err())
	case <-b.closed:
		return errClosed
	}
	if b.checked.Load() {
		return nil
	}
	return b.check(ctx)
}

const (
	opVersion = "ask for the server's version"

	// askAlone is how long one call asks before the next one may, too: it may be stuck where another would not be.
	askAlone = 100 * time.Millisecond
)

// check asks the server what it is. One call at a time does: each has a connection of its own meanwhile, and there may be thousands of calls at the start.
func (b *Backend) check(ctx context.Context) error {
	var info map[string]string
	err := b.pipe.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		info, err = readServer(ctx, client)
		return err
	})
	if err != nil {
		return classify(opVersion, err)
	}
	if version := info["redis_version"]; version != "" && older(version, 6, 2) {
		return driver.Permanent(fmt.Errorf("redis: the server has version %s; dlock needs 6.2 or newer", version))
	}
	_, clustered := b.client.(*redis.ClusterClient)
	b.cluster.Store(clustered || info["cluster_enabled"] == "1")
	b.checked.Store(true)
	return nil
}

// readServer reads what the server says of itself. The answer to HELLO is short and needs no right; servers and proxies that do not know it are asked for more.
// A server that does not let us ask says nothing.
func readServer(ctx context.Context, client redis.UniversalClient) (map[string]string, error) {
	values := map[string]string{}
	reply, err := client.Do(ctx, "hello").Result()
	if err == nil && readHello(reply, values) {
		return values, nil
	}
	if err := unaskable(err); err != nil {
		return nil, err
	}
	for _, section := range []string{"server", "cluster"} {
		text, err := client.Info(ctx, section).Result()
		if failed := unaskable(err); failed != nil {
			return nil, failed
		}
		readInfo(text, values)
	}
	return values, nil
}

// unaskable returns the error if it does not come of the question itself.
func unaskable(err error) error {
	var answer redis.Error
	if errors.As(err, &answer) && !refusesAll(answer.Error()) {
		return nil
	}
	return err
}

// readHello takes from the answer to HELLO what INFO says too, under the names that it has there. It reports whether it was all there.
func readHello(reply any, into map[string]string) bool {
	hello := map[any]any{}
	switch v := reply.(type) {
	case map[any]any:
		hello = v
	case []any:
		for i := 0; i+1 < len(v); i += 2 {
			hello[v[i]] = v[i+1]
		}
	}
	version, ok1 := hello["version"].(string)
	mode, ok2 := hello["mode"].(string)
	if !ok1 || !ok2 || hello["server"] != "redis" && hello["server"] != "valkey" {
		return false // it is something else, whose version says nothing
	}
	into["redis_version"] = version
	if mode == "cluster" {
		into["cluster_enabled"] = "1"
	}
	return true
}

// refusesAll reports whether an answer has nothing to do with the question: what the server is must then be asked another time.
func refusesAll(answer string) bool {
	return slices.ContainsFunc([]string{
		"NOAUTH", "WRONGPASS", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ERR max number of clients",
		"ERR Client names cannot contain ", "ERR DB index is out of range", "ERR invalid DB index", "ERR SELECT is not allowed",
	}, func(begin string) bool { return strings.HasPrefix(answer, begin) })
}

func readInfo(text string, into map[string]string) {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			into[name] = value
		}
	}
}

// older reports whether version comes before major.minor. What cannot be read is not old.
func older(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(parts[0])
	i, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (a < major || a == major && i < minor)
}

// master is a server that has locks.
type master struct {
	client redis.Cmdable
	addr   string // empty where there is only one
}

// masters returns the server, or every master of a cluster.
func (b *Backend) masters(ctx context.Context) ([]master, error) {
	c, ok := b.client.(*redis.ClusterClient)
	if !ok {
		return []master{{client: b.client}}, nil
	}
	var mu sync.Mutex
	var list []master
	err := c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, master{node, node.Options().Addr})
		return nil
	})
	return list, err
}
