package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// Diagnose implements [driver.Doctor].
func (b *Backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	var found []driver.Finding
	if b.shared {
		found = append(found, driver.Finding{
			ID: "redis-shared-pool", Level: "warning", Text: "renewals share the connection pool of the application",
			Advice: "open the driver by DSN, or, without Sentinel, give it a *redis.Client or *redis.ClusterClient, of which it can make a client for renewals",
		})
	}
	nodes, err := b.masters(ctx)
	if err != nil {
		return nil, classify("diagnose", err)
	}
	for _, n := range nodes {
		more, err := b.examine(ctx, n.client)
		if err != nil {
			return nil, classify("diagnose", err)
		}
		for _, f := range more {
			if n.addr != "" {
				f.Text = n.addr + ": " + f.Text
			}
			found = append(found, f)
		}
	}
	rank := []string{"error", "warning", "info"}
	slices.SortStableFunc(found, func(x, y driver.Finding) int { return slices.Index(rank, x.Level) - slices.Index(rank, y.Level) })
	return found, nil
}

// examine looks at one server.
func (b *Backend) examine(ctx context.Context, node redis.Cmdable) ([]driver.Finding, error) {
	var found []driver.Finding
	add := func(id, level, text, advice string) {
		found = append(found, driver.Finding{ID: id, Level: level, Text: text, Advice: advice})
	}
	info := map[string]string{}
	text, err := node.Info(ctx).Result()
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		add("redis-info", "info", "the server does not let this user read INFO, so that little can be checked", "")
		return found, nil
	case err != nil:
		return nil, err
	}
	readInfo(text, info)
	version := info["redis_version"]
	add("redis-version", "info", "the server has version "+version, "")
	if older(version, 6, 2) {
		add("redis-version-old", "error", "version "+version+" is too old", "use Redis 6.2 or newer, or Valkey")
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
		add("redis-eviction", "error", "maxmemory-policy "+policy+" may evict locks that are held",
			"set maxmemory-policy noeviction, or keep locks on a server of their own")
	}
	if info["aof_enabled"] == "0" {
		add("redis-persistence", "warning", "the server does not write an append-only file: a restart forgets the locks that are held",
			"set appendonly yes, or keep the server down for longer than the longest TTL when it restarts")
	}
	if n, _ := strconv.Atoi(info["connected_slaves"]); n > 0 && b.opt.replicas == 0 {
		add("redis-replicas", "warning", fmt.Sprintf("grants do not wait for the server's replicas (%d connected): a failover may forget a lock", n),
			"set replicas=1 or more in the DSN; fences stay in order in any case")
	}
	if info["cluster_enabled"] == "1" {
		readInfo(node.ClusterInfo(ctx).Val(), info)
		if state := info["cluster_state"]; state != "" && state != "ok" {
			add("redis-cluster", "error", "the cluster is in state "+state, "see CLUSTER INFO")
		}
	}
	b.examineClock(ctx, node, add)
	return found, nil
}

// examineClock compares the server's clock with ours, as far as one round trip allows.
func (b *Backend) examineClock(ctx context.Context, node redis.Cmdable, add func(id, level, text, advice string)) {
	before := time.Now()
	theirs, err := node.Time(ctx).Result()
	if err != nil {
		return
	}
	off := theirs.Sub(before.Add(time.Since(before) / 2)).Round(time.Millisecond)
	if off > time.Second || off < -time.Second {
		add("redis-clock", "warning", fmt.Sprintf("the server's clock is %v away from this machine's", off),
			"let both follow a time server; a step forward ends locks early")
	}
}
