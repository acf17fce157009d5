package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
)

const runHelp = `Run waits for the lock named KEY, runs the command while it holds the lock, and
releases it when the command has ended.

The command inherits stdin, stdout and stderr, and finds the key in DLOCK_KEY
and the fence, a number that rises with every grant of the lock, in DLOCK_FENCE
(unset if the driver has no fences). SIGINT and SIGTERM are passed on to it. If
the lock is lost the command gets SIGTERM, and SIGKILL five seconds later. A
dlock that is itself killed with SIGKILL cannot stop its command.

The exit code is the command's, or 128 plus the number of the signal that ended
it, or one of these:

   64  the command line or the configuration is wrong
   69  the backend failed
   75  another owner has the lock
   76  the lock was lost while the command ran
  126  the command cannot be run
  127  the command does not exist

So far the only driver is memory, whose locks exist in one process: two dlock
commands do not exclude each other yet.`

// runner is one dlock run.
type runner struct {
	cfg     dlock.Config
	key     string
	command []string
	ttl     time.Duration // 0: the default
	wait    time.Duration // 0: as long as it takes
	noWait  bool
}

func newRun() *cobra.Command {
	var r runner
	cmd := &cobra.Command{
		Use:     "run KEY [flags] -- command [args...]",
		Short:   "Run a command while holding a lock",
		Long:    runHelp,
		Example: "  dlock run demo -- echo hello\n  dlock run nightly --no-wait --ttl 30s -- ./report.sh",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.read(cmd, args); err != nil {
				return exit{exitUsage, err}
			}
			return r.run()
		},
		DisableFlagsInUseLine: true,
	}
	f := cmd.Flags()
	f.DurationVar(&r.ttl, "ttl", 0, "how long the lock outlives a dlock that vanished (default 10s)")
	f.DurationVar(&r.wait, "wait", 0, "wait at most this long for the lock (default: as long as it takes)")
	f.BoolVar(&r.noWait, "no-wait", false, "do not wait for the lock")
	f.StringVar(&r.cfg.Driver, "driver", envOr("DLOCK_DRIVER", "memory"), "`name` of the driver; see dlock drivers; env DLOCK_DRIVER")
	f.StringVar(&r.cfg.DSN, "dsn", "", "where the locks are, in the driver's own form; env DLOCK_DSN")
	return cmd
}

func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// read checks what is on the command line and takes the rest from the environment.
func (r *runner) read(cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0:
		return errors.New("run wants a key, then --, then a command: dlock run KEY -- command args")
	case dash != 1:
		return fmt.Errorf("run wants one key before --, not %d", dash)
	case len(args) == 1:
		return errors.New("run wants a command after --")
	case given("ttl") && r.ttl <= 0:
		return fmt.Errorf("--ttl is %v; it must be more than 0", r.ttl)
	case given("wait") && r.wait <= 0:
		return fmt.Errorf("--wait is %v; it must be more than 0 (see --no-wait)", r.wait)
	case given("wait") && r.noWait:
		return errors.New("--wait and --no-wait exclude each other")
	}
	r.key, r.command = args[0], args[1:]
	r.cfg.Prefix = os.Getenv("DLOCK_PREFIX")
	if !given("dsn") { // not as the flag's default, which --help would show
		r.cfg.DSN = os.Getenv("DLOCK_DSN")
	}
	return nil
}

// run holds the lock around the command.
func (r *runner) run() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)

	locker, err := dlock.OpenConfig(&r.cfg)
	if err != nil {
		return exit{exitUsage, err}
	}
	defer locker.Close() //nolint:errcheck // whatever was held has been unlocked, and that was reported
	lease, err := r.acquire(locker, signals)
	if err != nil {
		return err
	}
	ran := supervise(r.child(lease), lease, signals)
	return r.release(lease, ran)
}

// acquire gets the lock, unless a signal comes first.
func (r *runner) acquire(locker dlock.Locker, signals <-chan os.Signal) (*dlock.Lease, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	got := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s := <-signals:
			cancel(exit{exitSignal + number(s), fmt.Errorf("%v while waiting for %q", s, r.key)})
		case <-got:
		}
	}()
	lease, err := r.ask(ctx, locker)
	close(got)
	<-watched
	var stopped exit
	switch {
	case errors.As(context.Cause(ctx), &stopped):
		if lease != nil {
			_ = lease.Unlock(ctx)
		}
		return nil, stopped
	case err != nil:
		return nil, exit{codeOf(err), err}
	case lease == nil:
		return nil, exit{exitNotAcquired, fmt.Errorf("%q is held by another owner", r.key)}
	}
	return lease, nil
}

func (r *runner) ask(ctx context.Context, locker dlock.Locker) (*dlock.Lease, error) {
	var opts []dlock.LockOption
	if r.ttl != 0 {
		opts = append(opts, dlock.WithTTL(r.ttl))
	}
	if r.noWait {
		lease, _, err := dlock.TryAcquire(ctx, locker, r.key, opts...)
		return lease, err
	}
	if r.wait > 0 {
		c, cancel := context.WithTimeout(ctx, r.wait)
		defer cancel()
		ctx = c
	}
	return dlock.Acquire(ctx, locker, r.key, opts...)
}

// codeOf is the exit code for a lock that was not had.
func codeOf(err error) int {
	switch {
	case errors.Is(err, dlock.ErrNotAcquired):
		return exitNotAcquired
	case errors.Is(err, dlock.ErrInvalidKey), errors.Is(err, dlock.ErrInvalidTTL):
		return exitUsage
	default:
		return exitUnavailable
	}
}

// release gives the lock back. A loss outweighs whatever the command's exit code was.
func (r *runner) release(lease *dlock.Lease, ran error) error {
	err := lease.Unlock(context.Background())
	switch {
	case errors.Is(err, dlock.ErrOwnershipLost):
		return exit{exitLost, err}
	case err != nil:
		complain(err)
	}
	return ran
}
