//nolint:errcheck // the deferred Close reads as it would in a program
package dlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/dlock-go/dlock"
)

// account is the resource. It keeps the largest fence that has written to it; in a database this is one more column:
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
type account struct {
	balance int
	fence   uint64
}

var errStale = errors.New("a later holder has written already")

func (a *account) set(ctx context.Context, balance int) error {
	fence, ok := dlock.Fence(ctx)
	switch {
	case !ok:
		return errors.New("no fence")
	case fence < a.fence:
		return errStale
	}
	a.balance, a.fence = balance, fence
	return nil
}

// A write that carries the fence is safe even from a holder that lost the lock and does not know it yet.
func ExampleFence() {
	ctx := context.Background()
	locker, _ := dlock.Open("memory", "", &dlock.Config{})
	defer locker.Close()

	var acc account
	var late context.Context // what a holder would use that was paused and woke up too late
	_ = dlock.Do(ctx, locker, "account:7", func(ctx context.Context) error {
		late = ctx
		return acc.set(ctx, 100)
	})
	_ = dlock.Do(ctx, locker, "account:7", func(ctx context.Context) error {
		return acc.set(ctx, 200)
	})
	fmt.Println(acc.set(late, 150))
	fmt.Println(acc.balance)
	// Output:
	// a later holder has written already
	// 200
}
