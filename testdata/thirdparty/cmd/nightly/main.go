// Command nightly makes a report once per night, on whichever of several machines is first.
//
//	nightly -driver lockd -dsn lockd://127.0.0.1:7420
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/dlock-go/dlock"

	_ "example.com/lockd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("nightly", flag.ContinueOnError)
	driver := flags.String("driver", "lockd", "the driver of the lock store")
	dsn := flags.String("dsn", "lockd://127.0.0.1:7420", "where the lock store is")
	if err := flags.Parse(args); err != nil {
		return err
	}
	locker, err := dlock.Open(*driver, *dsn, &dlock.Config{Prefix: "nightly:"})
	if err != nil {
		return err
	}
	defer locker.Close()
	return (&job{locker, report}).run(ctx, out)
}

// job is the service: work that must not run twice at the same time.
type job struct {
	locker dlock.Locker
	work   func(ctx context.Context, out io.Writer) error
}

func (j *job) run(ctx context.Context, out io.Writer) error {
	err := dlock.Do(ctx, j.locker, "report", func(ctx context.Context) error { return j.work(ctx, out) }, dlock.WithTTL(30*time.Second))
	if errors.Is(err, dlock.ErrOwnershipLost) {
		return fmt.Errorf("the report may be incomplete: %w", err)
	}
	return err
}

func report(ctx context.Context, out io.Writer) error {
	fence, _ := dlock.Fence(ctx)
	_, err := fmt.Fprintf(out, "report written under fence %d\n", fence)
	return errors.Join(err, ctx.Err())
}
