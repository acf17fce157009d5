package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
)

const runHelp = `Run waits for the lock named KEY, runs the command while it holds the lock, and
releases it when the command has ended.

The command inherits stdin, stdout and stderr, and finds the key in DLOCK_KEY
and the fence, a number that rises with every grant of the lock, in DLOCK_FENCE
(unset if the driver has no fences). DLOCK_RUN marks it and what it starts. The
rest of the environment is dlock's own, DLOCK_DSN with its password too.

SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command and everything
it started, SIGUSR1 and SIGUSR2 to the command alone, each once. On a terminal
the command stays in dlock's process group, so that Ctrl-C, Ctrl-Z and reading
work as if dlock were not there. A job that is stopped does not renew its lock.

If the lock is lost the command and everything it started get SIGTERM, and
SIGKILL after --kill-after. If dlock itself is killed they get SIGKILL.

While it waits and stderr is a terminal, run shows who has the lock. A store
that cannot be reached at the start is reported within five seconds; trouble
with it later is ridden out until --wait, or until the lock is lost.

The exit code is the command's, or 128 plus the number of the signal that ended
it, or one of these:

   64  the command line or the configuration is wrong
   69  the backend failed
   75  another owner has the lock (or what -E says)
   76  the lock was lost while the command ran
  126  the command cannot be run
  127  the command does not exist`

// runner is one dlock run.
type runner struct {
	s         *settings
	st        *store
	nursery   nursery
	key       string
	command   []string
	ttl       time.Duration // 0: the default
	wait      time.Duration // 0: as long as it takes
	killAfter time.Duration
	conflict  int // exit code when another owner has the lock
	noWait    bool
	quiet     bool
	verbose   bool
}

func newRun(s *settings) *cobra.Command {
	r := runner{s: s}
	cmd := &cobra.Command{
		Use:               "run KEY [flags] -- command [args...]",
		Short:             "Run a command while holding a lock",
		Long:              runHelp,
		Example:           "  dlock run demo -- echo hello\n  dlock run nightly --no-wait --ttl 30s -- ./report.sh",
		ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.read(cmd, args); err != nil {
				return exit{code: exitUsage, err: err}
			}
			return r.run(cmd)
		},
		DisableFlagsInUseLine: true,
	}
	f := cmd.Flags()
	f.DurationVar(&r.ttl, "ttl", 0, "how long the lock outlives a dlock that vanished (default 10s)")
	f.DurationVarP(&r.wait, "wait", "w", 0, "wait at most this long for the lock (default: as long as it takes)")
	f.BoolVarP(&r.noWait, "no-wait", "n", false, "do not wait for the lock")
	f.IntVarP(&r.conflict, "conflict-exit-code", "E", exitNotAcquired, "exit `code` when another owner has the lock")
	f.DurationVar(&r.killAfter, "kill-after", 5*time.Second, "from SIGTERM to SIGKILL when the lock is lost")
	f.String("owner", "", "who holds the lock, for people who look; env DLOCK_OWNER (default host:pid)")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing about who has the lock")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "log what happens to the lock on stderr")
	return cmd
}

// read checks what is on the command line.
func (r *runner) read(cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0:
		return errors.New("run wants a key, then --, then a command: dlock run KEY -- command args")
	case dash != 1:
		return fmt.Errorf("run wants one key before --, not %d", dash)
	case len(args) == 1:
		return errors.New("run wants a command after --")
	case given("ttl") && (r.ttl < dlock.MinTTL || r.ttl > dlock.MaxTTL):
		return fmt.Errorf("--ttl is %v; accepted is %v to %v", r.ttl, dlock.MinTTL, dlock.MaxTTL)
	case given("wait") && r.wait <= 0:
		return fmt.Errorf("--wait is %v; it must be more than 0 (see --no-wait)", r.wait)
	case given("wait") && r.noWait:
		return errors.New("--wait and --no-wait exclude each other")
	case r.killAfter < 0:
		return fmt.Errorf("--kill-after is %v; it must not be negative", r.killAfter)
	case r.conflict < 0 || r.conflict > 255:
		return fmt.Errorf("--conflict-exit-code is %d; it must be 0 to 255", r.conflict)
	}
	r.key, r.command = args[0], args[1:]
	return checkKey(r.key)
}

// run holds the lock around the command.
func (r *runner) run(cmd *cobra.Command) error {
	signals := catchSignals()
	defer signal.Stop(signals)
	survivePipes()
	defer r.nursery.buryOrphans()()
	locker, err := r.open(cmd)
	if err != nil {
		return err
	}
	defer locker.Close() //nolint:errcheck // whatever was held has been unlocked, and that was reported
	lease, err := r.acquire(locker, signals)
	if err != nil {
		return said(err) // closing may take its time
	}
	ran := r.supervise(lease, signals)
	return r.release(lease, ran)
}

// open makes a Locker on a backend that can be asked about the holder, too.
func (r *runner) open(cmd *cobra.Command) (dlock.Locker, error) {
	st, err := r.s.open(cmd)
	if err != nil {
		return nil, err
	}
	if r.wait != 0 {
		r.s.WaitTimeout = r.wait
	}
	if r.ttl != 0 {
		r.s.DefaultTTL = r.ttl
	}
	var opts []dlock.Option
	if r.verbose {
		opts = append(opts, dlock.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	}
	locker, err := dlock.New(st.Backend, &r.s.Config, opts...)
	if err != nil {
		_ = st.Close()
		return nil, exit{code: exitUsage, err: err}
	}
	r.st = st
	return locker, nil
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
			cancel(r.interrupted(s))
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
	case err == nil && lease == nil, errors.Is(err, dlock.ErrNotAcquired):
		return nil, r.notAcquired()
	case err != nil:
		return nil, exit{code: codeOf(err), err: err}
	}
	return lease, nil
}

// interrupted is the exit for a signal that came before the command was started.
func (r *runner) interrupted(s os.Signal) exit {
	why := fmt.Errorf("%v while waiting for %q", s, r.key)
	return exit{exitSignal + number(s), why, s == os.Interrupt && hasTerminal()}
}

// firstLimit is how long the first attempt may take.
const firstLimit = 5 * time.Second

// ask begins with an attempt that does not wait: a store that is down is reported soon, where the wait would ride it out.
func (r *runner) ask(ctx context.Context, locker dlock.Locker) (*dlock.Lease, error) {
	if r.s.WaitTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.s.WaitTimeout)
		defer cancel()
	}
	lease, ok, err := r.try(ctx, locker)
	if ok || err != nil || r.noWait || ctx.Err() != nil {
		return lease, err
	}
	defer r.showWait()()
	return dlock.Acquire(ctx, locker, r.key)
}

func (r *runner) try(ctx context.Context, locker dlock.Locker) (*dlock.Lease, bool, error) {
	first, cancel := context.WithTimeout(ctx, firstLimit)
	defer cancel()
	lease, ok, err := dlock.TryAcquire(first, locker, r.key)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("the store has not answered within %v: %w", firstLimit, err)
	}
	return lease, ok, err
}

// notAcquired says who has the lock.
func (r *runner) notAcquired() error {
	if r.quiet {
		return exit{code: r.conflict}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return exit{code: r.conflict, err: fmt.Errorf("%q is held by %s", r.key, r.holder(ctx))}
}

// codeOf is the exit code for a lock that was not had.
func codeOf(err error) int {
	if errors.Is(err, dlock.ErrInvalidKey) || errors.Is(err, dlock.ErrInvalidTTL) {
		return exitUsage
	}
	return exitUnavailable
}

// release gives the lock back. A loss outweighs whatever the command's exit code was.
func (r *runner) release(lease *dlock.Lease, ran error) error {
	err := lease.Unlock(context.Background())
	switch {
	case errors.Is(err, dlock.ErrOwnershipLost):
		return exit{code: exitLost, err: err}
	case err != nil:
		complain(err)
	}
	return ran
}
