// Leader runs two replicas of a service of which one leads at a time. The leader holds a lock by key and works until it loses it; the other waits
// and takes over. In a real service the replicas are processes on a driver that all of them can reach, and leading goes on for good.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

const store = "memory://leader"

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var replicas sync.WaitGroup
	leads := make(chan struct{})
	for _, name := range []string{"a", "b"} {
		replicas.Go(func() { replica(ctx, name, leads) })
	}
	<-leads
	takeAway("leader")
	<-leads
	cancel()
	replicas.Wait()
}

// replica leads whenever it can, until ctx ends.
func replica(ctx context.Context, name string, leads chan<- struct{}) {
	locker, err := dlock.Open("memory", store, &dlock.Config{Owner: name})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	for {
		if err := locker.Lock(ctx, "leader", dlock.WithTTL(3*time.Second)); err != nil {
			return // ctx has ended; anything else that passes Lock retries by itself
		}
		lead(ctx, locker, name, leads)
		switch err := locker.Unlock(context.WithoutCancel(ctx), "leader"); {
		case errors.Is(err, dlock.ErrOwnershipLost):
			fmt.Println(name, "lost the lead")
		case err != nil:
			log.Print(err)
		default:
			fmt.Println(name, "resigned")
		}
	}
}

// lead works until the lock is lost or ctx ends.
func lead(ctx context.Context, locker dlock.Locker, name string, leads chan<- struct{}) {
	lease, _ := dlock.LeaseOf(locker, "leader")
	fmt.Println(name, "leads")
	for {
		select {
		case leads <- struct{}{}:
			leads = nil // once is enough
		case <-lease.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// takeAway does what an operator can: it breaks the lock of whoever has it. The next in line leads at once, while the one who lost it learns of that
// from its next renewal; what both do in between only a fence can put in order.
func takeAway(key string) {
	ctx := context.Background()
	b, err := memory.Driver{}.Open(store)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	info, err := b.(driver.Inspector).Inspect(ctx, key)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("an operator takes the lead from", info.Owner)
	if err := b.(driver.Breaker).Break(ctx, key, info.Fence); err != nil {
		log.Print(err)
	}
}
