//nolint:errcheck // the deferred Close reads as it would in a program
package dlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/drivers/memory"
)

func Example() {
	locker, err := dlock.Open("memory", "", &dlock.Config{Prefix: "myapp:"})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = dlock.Do(context.Background(), locker, "order:123", func(ctx context.Context) error {
		// ctx ends the moment the lock can no longer be relied on.
		fmt.Println("shipping order 123")
		return ctx.Err()
	})
	if err != nil {
		log.Print(err)
	}
	// Output: shipping order 123
}
