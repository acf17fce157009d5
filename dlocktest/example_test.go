package dlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// t is a stand-in: in a test it is the parameter.
var t = &exampleT{}

type exampleT struct{ testing.TB }

func (*exampleT) Helper()        {}
func (*exampleT) Cleanup(func()) {}

// What does a service do when it loses its lock? It is told through the context of Do.
func ExampleLocker_Lose() {
	locker := dlocktest.NewLocker(t)
	err := dlock.Do(context.Background(), locker, "order:123", func(ctx context.Context) error {
		locker.Lose("order:123")
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, context.Canceled), errors.Is(err, dlock.ErrOwnershipLost))
	// Output: true true
}

// What does a service do when another process has the lock?
func ExampleLocker_Peer() {
	locker := dlocktest.NewLocker(t)
	_ = locker.Peer().Lock(context.Background(), "cron")
	ok, err := locker.TryLock(context.Background(), "cron")
	fmt.Println(ok, err)
	// Output: false <nil>
}

// What does a service do when the store cannot be reached?
func ExampleLocker_Fail() {
	locker := dlocktest.NewLocker(t)
	locker.Fail(errors.New("connection refused"))
	ok, err := locker.TryLock(context.Background(), "cron")
	fmt.Println(ok, err)
	// Output: false dlock: trylock "cron" (dlocktest): connection refused
}

// What does a service do when the store is slow? It can tell that from a lock that another has.
func ExampleLocker_Slow() {
	locker := dlocktest.NewLocker(t)
	locker.Slow(time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err := locker.Lock(ctx, "order:123")
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, dlock.ErrNotAcquired))
	// Output: true false
}

// What does a service do when it cannot know whether its Unlock was heard? The work is done, and the lock was not lost.
func ExampleLocker_LoseReply() {
	locker := dlocktest.NewLocker(t)
	_ = locker.Lock(context.Background(), "order:123")
	locker.LoseReply()
	err := locker.Unlock(context.Background(), "order:123")
	fmt.Println(err != nil, errors.Is(err, dlock.ErrOwnershipLost), locker.Held("order:123"))
	// Output: true false false
}

// The whole test of a driver.
func ExampleRun() {
	_ = func(t *testing.T) {
		dlocktest.Run(t, dlocktest.Harness{
			New: func(t *testing.T) dlocktest.Store {
				dsn := "memory://" + t.Name()
				return dlocktest.Store{
					Driver: "memory",
					DSN:    dsn,
					Open: func(t testing.TB) driver.Backend {
						b, err := memory.Driver{}.Open(dsn)
						if err != nil {
							t.Fatal(err)
						}
						return b
					},
				}
			},
		})
	}
}
