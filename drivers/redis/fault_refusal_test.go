package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// without makes a user who may do everything but some commands, and returns the beginning of the DSN of it.
func (s *server) without(t testing.TB, commands ...string) string {
	t.Helper()
	args := []any{"acl", "setuser", "app", "reset", "on", ">pw", "~*", "&*", "+@all"}
	for _, c := range commands {
		args = append(args, "-"+c)
	}
	s.do(t, args...)
	return "redis://app:pw@" + s.Addr + "/0?"
}

// refusedSoon is a Lock that must be refused for good, without waiting for the end of its context.
func refusedSoon(t *testing.T, l dlock.Locker, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.Lock(ctx, key); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Lock = %v, want it refused for good", err)
	}
}

func TestARefusalInTheMiddleOfAScriptLeavesNobodyInTheQueue(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"time", "set", "get", "hset", "rpush", "pexpire", "setrange", "pttl"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			holder, other := claimed(t, backend(t, s.Addr), "k"), locker(t, s.Addr, 10*time.Second)
			l := openLocker(t, s.without(t, command), dlock.Config{DefaultTTL: 30 * time.Second})
			refusedSoon(t, l, "k")
			if n := s.waiting(t, "k"); n != 0 {
				t.Errorf("%d wait for the lock, want none", n)
			}
			if n := s.do(t, "exists", companion("k", "w")); n != int64(0) {
				t.Error("it is noted that somebody waits")
			}
			release(t, backend(t, s.Addr), holder)
			if ok, err := other.TryLock(t.Context(), "k"); !ok || err != nil {
				t.Errorf("TryLock by another, when the lock is free = %v, %v; want true", ok, err)
			}
		})
	}
}

// TestARefusalOfTheFenceLeavesNoLock has a user who may use the lock's key and none beside it.
func TestARefusalOfTheFenceLeavesNoLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.do(t, "acl", "setuser", "app", "on", ">pw", "~k", "&*", "+@all")
	l := openLocker(t, "redis://app:pw@"+s.Addr, dlock.Config{DefaultTTL: 30 * time.Second})
	if ok, err := l.TryLock(t.Context(), "k"); ok || !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("TryLock = %v, %v; want it refused for good", ok, err)
	}
	refusedSoon(t, l, "k")
	if v := s.value(t, "k"); v != "" {
		t.Errorf("the lock has %q, want it free", v)
	}
}

// TestARefusalThatCannotBeUndoneIsNotPermanentAtFirst has a user who may enter the queue and not leave it.
func TestARefusalThatCannotBeUndoneIsNotPermanentAtFirst(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	claimed(t, backend(t, s.Addr), "k")
	dsn := s.without(t, "setrange", "lrem")
	c := faulttest.Claim("k", 30*time.Second)
	_, err := openBackend(t, dsn).Wait(t.Context(), c, func() {})
	if err == nil || errors.Is(err, driver.ErrPermanent) || !strings.Contains(err.Error(), "can't run this command") {
		t.Errorf("Wait = %v, want the refusal, and not for good: the token is in the queue", err)
	}
	if n := s.waiting(t, "k"); n != 1 {
		t.Fatalf("%d wait, want the one that could not leave", n)
	}
	l := openLocker(t, dsn, dlock.Config{DefaultTTL: 30 * time.Second})
	refusedSoon(t, l, "k")
	s.without(t, "setrange")
	faulttest.Eventually(t, 20*time.Second, "the Locker has taken its token out, as it may now", func() bool { return s.waiting(t, "k") == 1 })
}

func TestWithoutTheRightToWaitForReplicasNothingIsHeld(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l := openLocker(t, s.without(t, "wait")+"replicas=1", dlock.Config{DefaultTTL: 30 * time.Second})
	if ok, err := l.TryLock(t.Context(), "k"); ok || !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("TryLock = %v, %v; want it refused for good", ok, err)
	}
	refusedSoon(t, l, "k")
	if v := s.value(t, "k"); v != "" {
		t.Errorf("the lock has %q, want it free", v)
	}
	claimed(t, backend(t, s.Addr), "held")
	refusedSoon(t, l, "held")
	if n := s.waiting(t, "held"); n != 0 {
		t.Errorf("%d wait for the lock of another, want none", n)
	}
}

// TestAGrantThatCannotBeWithdrawnIsNotPermanent has a user who may neither wait for replicas nor release.
func TestAGrantThatCannotBeWithdrawnIsNotPermanent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := openBackend(t, s.without(t, "wait", "del")+"replicas=1")
	c := faulttest.Claim("k", 30*time.Second)
	if _, err := b.Acquire(t.Context(), c); err == nil || errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Acquire = %v, want an error that is not for good: the lock is held", err)
	}
	if v := s.value(t, "k"); !strings.Contains(v, c.Token) {
		t.Errorf("the lock has %q, want the token in it", v)
	}
}

func TestAWaiterThatLosesItsRightsIsTakenOutOfTheQueueWhenItHasThemAgain(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	claimed(t, backend(t, s.Addr), "k")
	l := openLocker(t, s.without(t), dlock.Config{DefaultTTL: 30 * time.Second})
	refused := make(chan error, 1)
	go func() { refused <- l.Lock(t.Context(), "k") }()
	faulttest.Eventually(t, 10*time.Second, "it waits", func() bool { return s.waiting(t, "k") == 1 })
	s.without(t, "eval", "evalsha")
	if err := faulttest.Receive(t, "the refusal", refused); !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Lock = %v, want it refused for good", err)
	}
	s.without(t)
	faulttest.Eventually(t, 20*time.Second, "it has left the queue", func() bool { return s.waiting(t, "k") == 0 })
}
