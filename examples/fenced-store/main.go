// Fenced-store shows what a fence is for. A holder is paused until its lock has run out, another one takes over and writes, and then the
// first one wakes up and writes too. The store refuses that write, because its fence is smaller than the largest it has seen.
package main

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/drivers/memory"
)

func main() {
	ctx := context.Background()
	first, second := open(), open()
	defer func() { _, _ = first.Close(), second.Close() }()
	files := &fileStore{}

	// A hold that is not renewed stands for one whose process was paused.
	paused, err := dlock.Acquire(ctx, first, "report.txt", dlock.WithTTL(100*time.Millisecond), dlock.WithoutRenewal())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first: ", files.write("draft", paused.Fence()))

	// Do waits until the first hold has run out.
	err = dlock.Do(ctx, second, "report.txt", func(ctx context.Context) error {
		fence, _ := dlock.Fence(ctx)
		err := files.write("final", fence)
		fmt.Println("second:", err)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("first still holds the lock:", paused.Held())
	fmt.Println("first: ", files.write("old draft", paused.Fence()))
	fmt.Println("the file says:", files.text)
}

func open() dlock.Locker {
	locker, err := dlock.Open("memory", "memory://files", &dlock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

// fileStore is the resource. It keeps the largest fence that has written, beside the data and changed together with it.
type fileStore struct {
	mu    sync.Mutex
	text  string
	fence uint64
}

func (f *fileStore) write(text string, fence uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fence < f.fence {
		return fmt.Errorf("refused %q: a later holder has written", text)
	}
	f.text, f.fence = text, fence
	return nil
}
