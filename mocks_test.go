package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/mock/gomock"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
	"github.com/dlock-go/dlock/mocks"
)

var (
	_ dlock.Locker        = (*mocks.MockLocker)(nil)
	_ dlock.LeaseLocker   = (*mocks.MockLeaseLocker)(nil)
	_ driver.Driver       = (*mocks.MockDriver)(nil)
	_ driver.Backend      = (*mocks.MockBackend)(nil)
	_ driver.Waiter       = (*mocks.MockWaiter)(nil)
	_ driver.BatchRenewer = (*mocks.MockBatchRenewer)(nil)
	_ driver.Inspector    = (*mocks.MockInspector)(nil)
	_ driver.Breaker      = (*mocks.MockBreaker)(nil)
	_ driver.Pinger       = (*mocks.MockPinger)(nil)
	_ driver.Doctor       = (*mocks.MockDoctor)(nil)
	_ driver.CallModer    = (*mocks.MockCallModer)(nil)
	_ driver.LossWatcher  = (*mocks.MockLossWatcher)(nil)
)

// shop is a service as a consumer would write it.
type shop struct {
	locker  dlock.Locker
	shipped []string
}

func (s *shop) Ship(ctx context.Context, order string) error {
	return dlock.Do(ctx, s.locker, "order:"+order, func(context.Context) error {
		s.shipped = append(s.shipped, order)
		return nil
	}, dlock.WithTTL(30*time.Second))
}

func TestServiceIsTestedWithMockLocker(t *testing.T) {
	t.Run("ships under the lock", func(t *testing.T) {
		locker := mocks.NewMockLocker(gomock.NewController(t))
		gomock.InOrder(
			locker.EXPECT().Lock(gomock.Any(), "order:123", dlock.WithTTL(30*time.Second)).Return(nil),
			locker.EXPECT().Unlock(gomock.Any(), "order:123").Return(nil),
		)
		s := shop{locker: locker}
		if err := s.Ship(t.Context(), "123"); err != nil || len(s.shipped) != 1 {
			t.Errorf("Ship = %v with %v shipped; want nil with order 123", err, s.shipped)
		}
	})
	t.Run("ships nothing without it", func(t *testing.T) {
		locker := mocks.NewMockLocker(gomock.NewController(t))
		locker.EXPECT().Lock(gomock.Any(), "order:123", gomock.Any()).Return(dlock.ErrNotAcquired)
		s := shop{locker: locker}
		if err := s.Ship(t.Context(), "123"); !errors.Is(err, dlock.ErrNotAcquired) || len(s.shipped) != 0 {
			t.Errorf("Ship = %v with %v shipped; want ErrNotAcquired with nothing", err, s.shipped)
		}
	})
}

// listener is a gomock.TestReporter that keeps what it is told.
type listener struct{ said []string }

func (l *listener) Errorf(format string, args ...any) {
	l.said = append(l.said, fmt.Sprintf(format, args...))
}

// Fatalf ends the goroutine, as the one of testing.T does.
func (l *listener) Fatalf(format string, args ...any) {
	l.Errorf(format, args...)
	runtime.Goexit()
}

func TestMockMismatchNamesTheOptions(t *testing.T) {
	var heard listener
	locker := mocks.NewMockLocker(gomock.NewController(&heard))
	locker.EXPECT().Lock(gomock.Any(), "order:123", dlock.WithTTL(10*time.Second)).Return(nil)

	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = (&shop{locker: locker}).Ship(context.Background(), "123")
	}()
	<-done
	said := strings.Join(heard.said, "\n")
	for _, want := range []string{"WithTTL(30s)", "WithTTL(10s)"} {
		if !strings.Contains(said, want) {
			t.Errorf("the mismatch does not show %s:\n%s", want, said)
		}
	}
}

// decorator is a Locker around another, such as one that counts calls.
type decorator struct {
	dlock.Locker
	inner dlock.Locker
}

func (d decorator) Unwrap() dlock.Locker { return d.inner }

func TestDoSeesALossThroughDecorators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := memory.New()
		locker := open(t, backend, dlock.Config{})
		hidden := struct{ dlock.Locker }{locker} // has no methods but the four
		wrapped := decorator{Locker: struct{ dlock.Locker }{decorator{Locker: hidden}}, inner: decorator{Locker: hidden, inner: locker}}

		var cause error
		err := dlock.Do(t.Context(), wrapped, "k", func(ctx context.Context) error {
			fence, ok := dlock.Fence(ctx)
			if !ok {
				t.Error("no fence through the decorators")
			}
			if err := backend.Break(ctx, "k", fence); err != nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				cause = context.Cause(ctx)
			case <-time.After(time.Minute):
			}
			return ctx.Err()
		})
		if !errors.Is(cause, dlock.ErrOwnershipLost) {
			t.Errorf("cause of ctx in Do = %v, want ErrOwnershipLost", cause)
		}
		if !errors.Is(err, dlock.ErrOwnershipLost) || !errors.Is(err, context.Canceled) {
			t.Errorf("Do = %v, want fn's error joined with ErrOwnershipLost", err)
		}
	})
}

// The fallback that the doc comment of LeaseLocker describes, for a Locker that only has the four methods.
func TestAcquireDrivesAnyLockerByLockAndUnlock(t *testing.T) {
	locker := mocks.NewMockLocker(gomock.NewController(t))
	locker.EXPECT().Lock(gomock.Any(), "k").Return(nil)
	lease, err := dlock.Acquire(t.Context(), locker, "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := dlock.Fence(lease.Context(t.Context())); ok || lease.Fence() != 0 {
		t.Errorf("Fence = %d, and %v in its context; want 0 and false", lease.Fence(), ok)
	}
	if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Extend = %v, want ErrUnsupported", err)
	}
	if _, ok := dlock.LeaseOf(locker, "k"); ok {
		t.Error("LeaseOf found a lease of a Locker that has none")
	}
	if closed(lease.Done()) || !lease.Held() {
		t.Error("the lease ended before Unlock")
	}
	locker.EXPECT().Unlock(gomock.Any(), "k").DoAndReturn(func(context.Context, string) error {
		if !closed(lease.Done()) || lease.Held() {
			t.Error("the lease is held while it is being unlocked")
		}
		return nil
	})
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, dlock.ErrLockNotHeld) {
		t.Errorf("second Unlock = %v, want ErrLockNotHeld and no second call", err)
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestTryAcquireDrivesAnyLockerByTryLock(t *testing.T) {
	locker := mocks.NewMockLocker(gomock.NewController(t))
	locker.EXPECT().TryLock(gomock.Any(), "k").Return(false, nil)
	if lease, ok, err := dlock.TryAcquire(t.Context(), locker, "k"); lease != nil || ok || err != nil {
		t.Errorf("TryAcquire = %v, %v, %v; want nil, false, nil", lease, ok, err)
	}
	locker.EXPECT().TryLock(gomock.Any(), "k").Return(true, nil)
	if lease, ok, err := dlock.TryAcquire(t.Context(), locker, "k"); lease == nil || !ok || err != nil {
		t.Errorf("TryAcquire = %v, %v, %v; want a lease, true, nil", lease, ok, err)
	}
}

func TestDoUnlocksAnyLocker(t *testing.T) {
	ends := map[string]func(cancel func()) error{
		"return": func(func()) error { return nil },
		"error":  func(func()) error { return errors.New("no stock") },
		"panic":  func(func()) error { panic("no stock") },
		"Goexit": func(func()) error { runtime.Goexit(); return nil },
		"cancel": func(cancel func()) error { cancel(); return nil },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			locker := mocks.NewMockLocker(gomock.NewController(t))
			gomock.InOrder(
				locker.EXPECT().Lock(gomock.Any(), "k").Return(nil),
				locker.EXPECT().Unlock(gomock.Any(), "k").DoAndReturn(func(ctx context.Context, _ string) error { return ctx.Err() }),
			)
			done := make(chan error, 1)
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				done <- dlock.Do(ctx, locker, "k", func(context.Context) error { return end(cancel) })
			}()
			if err := <-done; name == "cancel" && err != nil {
				t.Errorf("Do = %v: Unlock was called with a context that is cancelled", err)
			}
		})
	}
}
