package dlocktest_test

import (
	"testing"
	"testing/synctest"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
)

// use calls every method of l. Each of them has to fail the test.
func use(t *testing.T, fake *fakeTB, l *dlocktest.Locker) {
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Lock":       func() error { return l.Lock(ctx, "k") },
		"TryLock":    func() error { _, err := l.TryLock(ctx, "k"); return err },
		"Unlock":     func() error { return l.Unlock(ctx, "held") },
		"Acquire":    func() error { _, err := l.Acquire(ctx, "k"); return err },
		"TryAcquire": func() error { _, _, err := l.TryAcquire(ctx, "k"); return err },
		"Close":      func() error { return l.Close() },
		"Unwrap":     func() error { return dlock.Ping(ctx, l) },
	} {
		if err := call(); err == nil {
			t.Errorf("%s of a Locker from outside the bubble returned nil", name)
		}
		fake.failedOnce(t, "dlocktest: "+name+": the Locker was made outside this testing/synctest bubble")
	}
	for name, call := range map[string]func(){
		"Lose":   func() { l.Lose("held") },
		"Expire": func() { l.Expire("held") },
		"Fail":   func() { l.Fail(nil) },
		"Held":   func() { l.Held("held") },
		"Peer":   func() { l.Peer() },
	} {
		call()
		fake.failedOnce(t, "dlocktest: "+name+": the Locker was made outside this testing/synctest bubble")
	}
}

func TestLockerUsedInABubbleItDoesNotBelongToFailsTheTest(t *testing.T) {
	fake := &fakeTB{TB: t, cleaned: true}
	outside := dlocktest.NewLocker(fake)
	if err := outside.Lock(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { use(t, fake, outside) })
	var inside *dlocktest.Locker
	var inner *fakeTB
	synctest.Test(t, func(t *testing.T) {
		inner = &fakeTB{TB: t}
		inside = dlocktest.NewLocker(inner)
		if err := inside.Lock(t.Context(), "held"); err != nil {
			t.Fatal(err)
		}
	})
	use(t, inner, inside)
	synctest.Test(t, func(t *testing.T) { use(t, inner, inside) })
	if err := outside.Unlock(t.Context(), "held"); err != nil {
		t.Errorf("Unlock where the Locker was made = %v", err)
	}
}

func TestLockerWithATestFromOutsideItsBubbleFailsTheTest(t *testing.T) {
	fake := &fakeTB{TB: t, cleaned: true}
	synctest.Test(t, func(t *testing.T) {
		locker := dlocktest.NewLocker(fake)
		if err := locker.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	})
	for _, do := range fake.cleanups {
		do()
	}
	fake.failedOnce(t, "NewLocker was called in a testing/synctest bubble with a t from outside")
}
