package redis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/faulttest"
)

// TestALockThatOnlyDeadWaitersWantIsNotHeldByAnother has more of them than a release and an attempt to acquire pass over together.
func TestALockThatOnlyDeadWaitersWantIsNotHeldByAnother(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, dead := backend(t, s.Addr), backend(t, s.Addr)
	held := faulttest.Claim("k", time.Minute)
	acquire(t, holder, held)
	const many = 200
	for range many {
		wait(t.Context(), dead, faulttest.Claim("k", time.Minute))
	}
	faulttest.Eventually(t, 20*time.Second, "all of them wait", func() bool { return s.waiting(t, "k") == many })
	_ = dead.Close()
	faulttest.Eventually(t, 10*time.Second, "nobody listens for them", func() bool { return !strings.Contains(s.do(t, "client", "list", "type", "pubsub").(string), "\n") })
	release(t, holder, held)
	if s.waiting(t, "k") <= 64 {
		t.Fatal("one attempt passes over all that are left")
	}
	if ok, err := locker(t, s.Addr, 10*time.Second).TryLock(t.Context(), "k"); !ok || err != nil {
		t.Errorf("TryLock of a lock that nobody holds = %v, %v; want true", ok, err)
	}
}
