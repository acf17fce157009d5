package redis_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faulttest"
)

func TestAChannelWithWhiteSpaceIsRefused(t *testing.T) {
	t.Parallel()
	const want = `redis: invalid DSN: parameter "channel" must not contain white space`
	for _, dsn := range []string{"redis://h?channel=my%20app:", "redis+cluster://h?channel=%09", "redis+sentinel://h/m?channel=a%0Ab", "unix:///s?channel=a+b"} {
		if _, err := (redisdriver.Driver{}).Open(dsn); !errors.Is(err, driver.ErrInvalidDSN) || err.Error() != want {
			t.Errorf("Open(%q) = %v, want %s", dsn, err, want)
		}
	}

	s := startServer(t)
	b := redisdriver.New(plainClient(t, s.Addr), redisdriver.WithChannel("my app:")).(*redisdriver.Backend)
	t.Cleanup(func() { _ = b.Close() })
	c := faulttest.Claim("k", 10*time.Second)
	if _, err := b.Wait(limited(t, 20*time.Second), c, func() {}); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Wait = %v, want the channel refused for good", err)
	}
	if v := s.value(t, "k"); v != "" {
		t.Errorf("the lock has %q, want that nothing was sent", v)
	}
	acquire(t, b, c) // which needs no channel
}
