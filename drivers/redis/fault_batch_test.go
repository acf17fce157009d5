package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// G1
func TestAHeldKeyThatBecomesAListIsLostAloneAndTheOthersAreRenewed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := backend(t, s.Addr)
	var claims []driver.Claim
	for i := range 51 {
		claims = append(claims, faulttest.Claim(fmt.Sprint("k", i), 30*time.Second))
		acquire(t, b, claims[i])
	}
	const bad = 25
	s.do(t, "del", claims[bad].Key)
	s.do(t, "rpush", claims[bad].Key, "x")
	s.do(t, "pexpire", claims[bad].Key, 30_000)
	for i, r := range b.RenewBatch(t.Context(), claims) {
		switch {
		case i == bad && !errors.Is(r.Err, driver.ErrNotOwner):
			t.Errorf("the renewal of a key that is a list = %v, want ErrNotOwner", r.Err)
		case i != bad && r.Err != nil:
			t.Errorf("the renewal of %q = %v", claims[i].Key, r.Err)
		}
	}
	if err := b.Release(t.Context(), claims[bad]); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("the release of a key that is a list = %v, want ErrNotOwner", err)
	}
	if err := b.Break(t.Context(), claims[bad].Key, 1); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("the breaking of a key that is a list = %v, want ErrNotOwner", err)
	}
	if info, err := b.Inspect(t.Context(), claims[bad].Key); err != nil || info.Owner == "" || info.Fence != 0 {
		t.Errorf("Inspect of a key that is a list = %+v, %v; want a foreign owner", info, err)
	}
	if _, err := b.Acquire(t.Context(), claims[bad]); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Acquire of a key that is a list = %v, want it refused for good", err)
	}
	if v := s.do(t, "lrange", claims[bad].Key, 0, -1); fmt.Sprint(v) != "[x]" {
		t.Errorf("the list is %v, want it untouched", v)
	}
}

// G1
func TestAnEngineKeepsTheOtherHoldsWhenOneKeyBecomesAHash(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	s := startServer(t)
	l := locker(t, s.Addr, ttl)
	var leases []*dlock.Lease
	for i := range 50 {
		leases = append(leases, faulttest.Hold(t, l, fmt.Sprint("k", i)))
	}
	s.do(t, "del", "k7")
	s.do(t, "hset", "k7", "a", "b")
	s.do(t, "pexpire", "k7", 30_000)
	faulttest.Ended(t, leases[7], 5*ttl)
	if err := leases[7].Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("Unlock of the key that was overwritten = %v, want ErrOwnershipLost", err)
	}
	lost, now := 0, time.Now()
	for i, x := range leases {
		if i == 7 {
			continue
		}
		faulttest.Eventually(t, patience, "it is renewed", func() bool { return !x.Held() || x.ValidUntil().After(now.Add(ttl)) })
		if !x.Held() {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of 49 other holds were lost", lost)
	}
}

// G1
func TestAKeyThatTheUserMayNotUseAnyMoreDoesNotSpoilTheRenewalOfTheOthers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	user := limitedUser(t, s.Server, "&dlock:*")
	b := openBackend(t, "redis://"+user+s.Addr)
	claims := []driver.Claim{faulttest.Claim("app:bad", 30*time.Second)}
	for i := range 20 {
		claims = append(claims, faulttest.Claim(fmt.Sprint("app:good:", i), 30*time.Second))
	}
	for _, c := range claims {
		acquire(t, b, c)
	}
	s.do(t, "acl", "setuser", "app", "resetkeys", "~app:good:*")
	for i, r := range b.RenewBatch(t.Context(), claims) {
		switch {
		case i == 0 && (r.Err == nil || errors.Is(r.Err, driver.ErrNotOwner)):
			t.Errorf("the renewal of a key that is out of bounds = %v, want the server's answer", r.Err)
		case i > 0 && r.Err != nil:
			t.Errorf("the renewal of %q = %v", claims[i].Key, r.Err)
		}
	}
}

// G1
func TestACommandThatIsRefusedInARenewalIsToldForEachLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := openBackend(t, "redis://"+limitedUser(t, s.Server, "&dlock:*")+s.Addr)
	mine, lost := faulttest.Claim("app:mine", 30*time.Second), faulttest.Claim("app:lost", 30*time.Second)
	acquire(t, b, mine)
	s.do(t, "acl", "setuser", "app", "-pexpire")
	r := b.RenewBatch(t.Context(), []driver.Claim{lost, mine})
	if !errors.Is(r[0].Err, driver.ErrNotOwner) {
		t.Errorf("the renewal of what is not held = %v, want ErrNotOwner", r[0].Err)
	}
	if r[1].Err == nil || errors.Is(r[1].Err, driver.ErrNotOwner) || !strings.Contains(r[1].Err.Error(), "can't run this command") {
		t.Errorf("the renewal that is refused = %v, want the server's answer", r[1].Err)
	}
}

// TestACompanionOfAnotherTypeDoesNotBarTheWay: its name is ours alone, so what is there is removed, and the lock goes on.
func TestACompanionOfAnotherTypeDoesNotBarTheWay(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"f", "q", "w"} {
		t.Run(suffix, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			a, b := backend(t, s.Addr), backend(t, s.Addr)
			spoil := func(key string) {
				s.do(t, "del", companion(key, suffix))
				s.do(t, "sadd", companion(key, suffix), "x")
				s.do(t, "pexpire", companion(key, suffix), 30_000)
			}
			// Before somebody waits.
			c, w := faulttest.Claim("k", 10*time.Second), faulttest.Claim("k", 6*time.Second)
			acquire(t, a, c)
			spoil("k")
			told := make(chan struct{}, 100)
			got := waitTold(t.Context(), b, w, func() { told <- struct{}{} })
			faulttest.Receive(t, "the answer that it waits", told)
			release(t, a, c)
			within(t, patience, "the lock", got)
			release(t, b, w)
			// While somebody does, who learns of it by asking.
			c, w = faulttest.Claim("l", 10*time.Second), faulttest.Claim("l", 6*time.Second)
			acquire(t, a, c)
			got = waitTold(t.Context(), b, w, func() { told <- struct{}{} })
			faulttest.Receive(t, "the answer that it waits", told)
			spoil("l")
			release(t, a, c)
			within(t, patience, "the lock", got)
			release(t, b, w)
		})
	}
}
