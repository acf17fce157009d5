package redis_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// G4
func TestADeadlineComesFromTheTTLThatWasAskedForWhateverTheServersClockDoes(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	s := startServer(t)
	s.longest = time.Hour
	t.Run("the driver", func(t *testing.T) {
		b, c := backend(t, s.Addr), faulttest.Claim("g4", ttl)
		acquire(t, b, c)
		s.do(t, "pexpire", "g4", time.Hour.Milliseconds()) // what a clock that is set back by an hour comes to
		if g, err := b.Renew(t.Context(), c); err != nil || g.TTL != ttl {
			t.Errorf("Renew = %v, %v; want the TTL of %v that was asked for", g.TTL, err, ttl)
		}
		if g := acquire(t, b, c); g.TTL != ttl {
			t.Errorf("Acquire once more = %v, want the TTL of %v that was asked for", g.TTL, ttl)
		}
		if left := s.pttl(t, "g4"); left < time.Hour-time.Minute {
			t.Errorf("the server keeps it for %v, want that it is not shortened", left)
		}
		c.TTL = ttl - time.Microsecond
		if g, err := b.Renew(t.Context(), c); err != nil || g.TTL != ttl {
			t.Errorf("Renew with %v = %v, %v; want it rounded up", c.TTL, g.TTL, err)
		}
		release(t, b, c)
	})
	t.Run("the engine", func(t *testing.T) {
		const ttl = 4 * time.Second // which a starved machine can renew in time
		p := faultproxy.New(t, s.Addr)
		x := faulttest.Hold(t, locker(t, p.Addr, ttl), "g4")
		s.do(t, "pexpire", "g4", time.Hour.Milliseconds())
		until := x.ValidUntil()
		faulttest.Eventually(t, patience, "it is renewed twice", func() bool {
			now := x.ValidUntil()
			if left := time.Until(now); left > ttl {
				t.Fatalf("held for %v more, with a TTL of %v", left, ttl)
			}
			return now.After(until.Add(ttl / 2))
		})
		p.BlackHole()
		faulttest.Ended(t, x, 3*ttl)
		s.do(t, "pexpire", "g4", 1) // the clock is put right
		next := locker(t, s.Addr, ttl)
		if err := next.Lock(limited(t, patience), "g4"); err != nil {
			t.Fatal(err)
		}
		if x.Held() {
			t.Error("two holders believe that they hold the lock")
		}
	})
}

// G4
func TestAFenceAheadOfTheClockIsKeptUntilTheClockHasPassedIt(t *testing.T) {
	t.Parallel()
	const ahead, ttl = 2 * time.Hour, 2 * time.Minute
	for name, use := range map[string]func(t *testing.T, s *server, b *redisdriver.Backend, c driver.Claim){
		"one grant": func(t *testing.T, _ *server, b *redisdriver.Backend, c driver.Claim) {
			acquire(t, b, c)
			release(t, b, c)
		},
		"a hand-over": func(t *testing.T, s *server, b *redisdriver.Backend, c driver.Claim) {
			acquire(t, b, c)
			w := faulttest.Claim(c.Key, ttl)
			got := queued(t, s, b, w)
			release(t, b, c)
			within(t, patience, "the lock", got)
			release(t, b, w)
		},
		"waiting for a foreign holder": func(t *testing.T, s *server, b *redisdriver.Backend, c driver.Claim) {
			s.do(t, "set", c.Key, "foreign", "px", 60_000)
			got := queued(t, s, b, c)
			s.do(t, "del", c.Key)
			within(t, patience, "the lock", got)
			release(t, b, c)
		},
		"a renewal": func(t *testing.T, s *server, b *redisdriver.Backend, c driver.Claim) {
			acquire(t, b, c)
			s.do(t, "pexpire", companion(c.Key, "f"), 100_000)
			if _, err := b.Renew(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			release(t, b, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			s.longest = 3 * time.Hour
			b, c := backend(t, s.Addr), faulttest.Claim("g4", ttl)
			// The last grant was two hours from now, by a clock that has been set back since.
			last := time.Now().Add(ahead)
			s.do(t, "set", companion("g4", "f"), last.UnixMicro(), "px", (ahead + time.Hour).Milliseconds())
			use(t, s, b, c)
			stored, err := strconv.ParseInt(s.value(t, companion("g4", "f")), 10, 64)
			if err != nil || stored <= last.UnixMicro() {
				t.Errorf("the stored fence is %d (%v), want more than %d", stored, err, last.UnixMicro())
			}
			if left, want := s.pttl(t, companion("g4", "f")), time.Until(last)+ttl+4*time.Minute; left < want {
				t.Errorf("the fence is forgotten in %v, want at least %v: the clock has to pass it first", left, want)
			}
		})
	}
}

func TestTheFenceOfAReleasedLockIsKeptForFiveMinutesAndIsTheLastOfItsRun(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	s := startServer(t)
	s.longest = ttl
	b, c := backend(t, s.Addr), faulttest.Claim("k", ttl)
	g := acquire(t, b, c)
	if v, want := s.value(t, companion("k", "f")), strconv.FormatUint(g.Fence+uint64(g.Fences)-1, 10); v != want {
		t.Errorf("the server has the fence %s, want the last of the run, %s", v, want)
	}
	release(t, b, c)
	if left := s.pttl(t, companion("k", "f")); left > ttl+5*time.Minute+2*time.Second || left < 5*time.Minute {
		t.Errorf("the fence is kept for %v, want five minutes more than the TTL", left)
	}
}
