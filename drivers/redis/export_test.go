package redis

import (
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// Clients returns the client of a Backend, and the one that it renews with.
func Clients(b driver.Backend) (client, renewer redis.UniversalClient) {
	return b.(*Backend).client, b.(*Backend).renewer
}

// Settings returns what a DSN said about the driver itself.
func Settings(b driver.Backend) (notify bool, replicas int, channel string) {
	o := b.(*Backend).opt
	return o.notify, o.replicas, o.channel
}

// AcquireScript returns the script that enters the queue.
func AcquireScript() string { return string(acquireScript().source) }

// Channel returns where a Backend is told of hand-overs.
func Channel(b *Backend) string { return b.queue.channel }
