package redis

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver"
)

var errRing = driver.Permanent(errors.New(
	"redis: a *redis.Ring cannot keep locks, because its shards are not one store; use a *redis.Client or a *redis.ClusterClient"))

// refusing is a Backend on a client that cannot be used. Every call says why.
type refusing struct{ err error }

var _ driver.Pinger = refusing{}

// Acquire implements [driver.Backend].
func (r refusing) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, r.err
}

// Renew implements [driver.Backend].
func (r refusing) Renew(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, r.err
}

// Release implements [driver.Backend].
func (r refusing) Release(context.Context, driver.Claim) error { return r.err }

// Ping implements [driver.Pinger].
func (r refusing) Ping(context.Context) error { return r.err }

// Close implements [driver.Backend].
func (refusing) Close() error { return nil }
