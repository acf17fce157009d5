//nolint:errcheck // the deferred Close and Unlock read as they would in a program
package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// Open names a driver and a store. Nothing is sent until the first call, so a readiness check asks with Ping.
func ExampleOpen() {
	locker, err := dlock.Open("memory", "memory://orders", &dlock.Config{
		Prefix:     "myapp:",
		DefaultTTL: 30 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	fmt.Println("ready:", dlock.Ping(context.Background(), locker) == nil)

	_, err = dlock.Open("postgres", "", &dlock.Config{})
	fmt.Println(errors.Is(err, dlock.ErrUnknownDriver))
	_, err = dlock.Open("memory", "", &dlock.Config{DefaultTTL: time.Millisecond})
	fmt.Println(err)
	// Output:
	// ready: true
	// true
	// dlock: open (memory): invalid config: DefaultTTL is 1ms; accepted is 10ms to 24h0m0s
}

// New is for a client that the application already has.
func ExampleNew() {
	locker, err := dlock.New(memory.New(), &dlock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	fmt.Println(locker.Lock(context.Background(), "order:123"))
	// Output: <nil>
}

// Do tells a lock that was not had from work that failed.
func ExampleDo() {
	ctx := context.Background()
	ours, _ := dlock.Open("memory", "memory://do", &dlock.Config{})
	defer ours.Close()
	theirs, _ := dlock.Open("memory", "memory://do", &dlock.Config{WaitTimeout: 500 * time.Millisecond})
	defer theirs.Close()

	err := dlock.Do(ctx, ours, "order:123", func(context.Context) error {
		err := dlock.Do(ctx, theirs, "order:123", func(context.Context) error { return nil })
		fmt.Println("theirs was busy:", errors.Is(err, dlock.ErrNotAcquired))
		return errors.New("no stock")
	})
	fmt.Println("ours:", err)
	// Output:
	// theirs was busy: true
	// ours: no stock
}

// A leader holds one key for as long as it can, and watches for the end. Here an operator takes the lock away.
func ExampleLeaseOf() {
	ctx := context.Background()
	locker, err := dlock.Open("memory", "memory://leader", &dlock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	if err := locker.Lock(ctx, "leader", dlock.WithTTL(3*time.Second)); err != nil {
		log.Fatal(err)
	}
	lease, _ := dlock.LeaseOf(locker, "leader")
	fmt.Println("leading:", lease.Held())

	takeAway("memory://leader", "leader", lease.Fence())
	<-lease.Done() // closed by the next renewal, and at ValidUntil at the latest
	fmt.Println("leading:", lease.Held())
	fmt.Println(errors.Is(lease.Err(), dlock.ErrOwnershipLost))
	fmt.Println(locker.Unlock(ctx, "leader"))
	// Output:
	// leading: true
	// leading: false
	// true
	// dlock: unlock "leader" (memory): ownership lost: not the owner
}

func takeAway(dsn, key string, fence uint64) {
	b, err := memory.Driver{}.Open(dsn)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if err := b.(driver.Breaker).Break(context.Background(), key, fence); err != nil {
		log.Fatal(err)
	}
}

// TryLock does not wait. False means that another owner has the key; trouble would be an error.
func ExampleLocker_tryLock() {
	ctx := context.Background()
	a, _ := dlock.Open("memory", "memory://cron", &dlock.Config{})
	defer a.Close()
	b, _ := dlock.Open("memory", "memory://cron", &dlock.Config{})
	defer b.Close()

	fmt.Println(a.TryLock(ctx, "nightly-report"))
	fmt.Println(b.TryLock(ctx, "nightly-report"))
	fmt.Println(a.Unlock(ctx, "nightly-report"))
	fmt.Println(b.TryLock(ctx, "nightly-report"))
	// Output:
	// true <nil>
	// false <nil>
	// <nil>
	// true <nil>
}

// Acquire returns the hold itself, for work that does not fit into one function.
func ExampleAcquire() {
	ctx := context.Background()
	locker, _ := dlock.Open("memory", "", &dlock.Config{})
	defer locker.Close()

	lease, err := dlock.Acquire(ctx, locker, "import", dlock.WithTTL(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx)
	left := time.Until(lease.ValidUntil())
	fmt.Println(lease.Key(), lease.Held(), left > 50*time.Second, left < time.Minute)
	// Output: import true true true
}
