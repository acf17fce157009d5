//go:build !live

package redis_test

import (
	"context"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// silent keeps the client library from logging what the tests do on purpose.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	goredis.SetLogger(silent{})
	m.Run()
}
