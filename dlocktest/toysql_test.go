package dlocktest

import (
	"context"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

// The bugs of this file are those of authors who write their first driver for a database.

// byToken returns l, or, by a driver with this bug, the lock of which token is the holder: the key is
// missing in its WHERE.
func (s *toy) byToken(bug string, l *toyLock, token string) *toyLock {
	if !s.has(bug) {
		return l
	}
	for _, other := range s.locks {
		if other.claim.Token == token {
			return other
		}
	}
	return l
}

// like reports whether key is LIKE prefix, in which nothing is escaped.
func like(key, prefix string) bool {
	pattern := strings.NewReplacer("%", ".*", "_", ".").Replace(regexp.QuoteMeta(prefix))
	return regexp.MustCompile("(?s)^" + pattern).MatchString(key)
}

// unheard reports whether the message that the key of this name is free reaches nobody: the name of
// its channel was cut, or is no text.
func (s *toy) unheard(name string) bool {
	return s.has("no-wake-up-for-long-keys") && len(name) > 63 || s.has("no-wake-up-for-binary-keys") && !utf8.ValidString(name)
}

// poll is a Wait without a queue. The store is locked, but not while it waits.
func (c *toyClient) poll(ctx context.Context, claim driver.Claim, queued func()) (driver.Grant, error) {
	for {
		queued()
		c.s.step(20 * time.Millisecond)
		switch {
		case ctx.Err() != nil:
			return driver.Grant{}, ctx.Err()
		case c.closed:
			return driver.Grant{}, errToyClosed
		}
		if g, err := c.take(ctx, claim); err == nil {
			return g, nil
		}
	}
}
