package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// G2
func TestCloseUnderLoadLeavesNoKey(t *testing.T) {
	t.Parallel()
	rounds := 20
	if n, err := strconv.Atoi(os.Getenv("DLOCK_ROUNDS")); err == nil {
		rounds = n
	}
	s := startServer(t)
	bad, left := 0, 0
	var longest time.Duration
	for round := range rounds {
		took, err := closeUnderLoad(t, s.Addr, fmt.Sprint("g2-", round, "-"))
		longest = max(longest, took)
		locks := s.locks(t, fmt.Sprint("g2-", round, "-"))
		switch {
		case err != nil:
			t.Logf("round %d: Close = %v; %d keys are left", round, err, locks)
		case locks > 0:
			bad++
			left += locks
		}
	}
	t.Logf("%d closes, the longest took %v", rounds, longest)
	if bad > 0 {
		t.Errorf("%d of %d closes returned nil and left %d keys, want none", bad, rounds, left)
	}
}

// closeUnderLoad closes a Locker that 24 goroutines use, and says how long that took.
func closeUnderLoad(t *testing.T, addr, prefix string) (time.Duration, error) {
	t.Helper()
	l := locker(t, addr, 30*time.Second)
	var wg sync.WaitGroup
	for range 24 {
		wg.Go(func() {
			for {
				x, err := dlock.Acquire(context.Background(), l, prefix+strconv.Itoa(rand.IntN(64)))
				if err != nil {
					return
				}
				if x.Unlock(context.Background()) != nil {
					return
				}
			}
		})
	}
	time.Sleep(time.Duration(5+rand.IntN(15)) * time.Millisecond)
	began := time.Now()
	err := l.Close()
	took := time.Since(began)
	wg.Wait()
	return took, err
}

// locks returns how many locks there are whose names begin like this.
func (s *server) locks(t testing.TB, prefix string) int {
	t.Helper()
	n := 0
	keys := s.admin.Scan(context.Background(), 0, prefix+"*", 1000).Iterator()
	for keys.Next(context.Background()) {
		if !strings.ContainsAny(keys.Val(), "{") { // a companion
			n++
		}
	}
	if err := keys.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAReleaseThatFindsNothingIsNotBelievedBeforeTheAcquireIsAnswered has an acquire that is held up in the network while its release goes another way.
func TestAReleaseThatFindsNothingIsNotBelievedBeforeTheAcquireIsAnswered(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := faultproxy.New(t, s.Addr)
	var slow atomic.Bool
	slow.Store(true)
	b := onClient(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			addr = p.Addr
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}))
	release(t, b, claimed(t, b, "warm"))
	c := faulttest.Claim("open", 30*time.Second)
	p.Set(faultproxy.Rules{HoldUp: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.Acquire(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Acquire = %v, want the error of its context", err)
	}
	slow.Store(false)
	if err := b.Release(t.Context(), c); err == nil || errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release while the acquire is on its way = %v, want that nothing is known", err)
	}
	p.Heal()
	faulttest.Eventually(t, patience, "the acquire arrives", func() bool { return s.value(t, "open") != "" })
	faulttest.Eventually(t, patience, "the release removes it", func() bool { return b.Release(t.Context(), c) == nil })
	if err := b.Release(t.Context(), c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release of nothing when all was answered = %v, want ErrNotOwner", err)
	}
}
