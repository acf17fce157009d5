// Command dlock runs a program while it holds a lock, and shows and breaks locks:
//
//	dlock run KEY -- command args...
//	dlock ls
//	dlock inspect KEY
//	dlock break KEY
//	dlock top
//	dlock doctor
//
// Run "dlock --help" for all of it and "dlock run --help" for what run promises. docs/command.md
// has recipes.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes, after sysexits.h. Otherwise the code is the child's.
const (
	exitNo          = 1  // the answer is no: nobody holds the lock, nothing was broken, the doctor found an error
	exitUsage       = 64 // the command line or the configuration is wrong
	exitUnavailable = 69 // the backend failed, or cannot do this
	exitNotAcquired = 75 // another owner has the lock
	exitLost        = 76 // the lock was lost while the child ran
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

const rootHelp = `dlock runs programs under a lock that holds on every machine that shares the
store, and shows who holds what.

Which store that is comes from the flags, else from the environment, else from
the file named by --config or DLOCK_CONFIG, else it is the file driver in its
default directory: locks of this user on this machine. The file is YAML with the
keys driver, dsn, prefix, owner, default_ttl, retry_interval, max_retries,
wait_timeout, renew_interval, reentrant and local_handovers; the variables are
the same in capitals after DLOCK_: DLOCK_DRIVER, DLOCK_DSN, DLOCK_DEFAULT_TTL.
A password belongs in the variable or the file: flags are seen by every user of
the machine.`

func main() { os.Exit(execute(os.Args[1:])) }

// execute runs one command line and returns the exit code.
func execute(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	status := exit{code: exitUsage, err: err} // what cobra itself refuses is bad usage
	errors.As(err, &status)
	if status.err != nil {
		complain(status.err)
	}
	if status.code == exitUsage {
		fmt.Fprintln(os.Stderr, `Run "dlock --help" or "dlock run --help" for usage.`)
	}
	if status.interrupted {
		dieOfInterrupt()
	}
	return status.code
}

// complain prints err on stderr, with the name of the command in front once.
func complain(err error) {
	fmt.Fprintln(os.Stderr, "dlock: "+harmless(strings.TrimPrefix(err.Error(), "dlock: ")))
}

// said prints what err has to say, and returns it without that.
func said(err error) error {
	var e exit
	if !errors.As(err, &e) || e.err == nil {
		return err
	}
	why := e.err
	e.err = nil
	briefly(func() { complain(why) })
	return e
}

// briefly calls f, which writes to stderr, and does not wait long for its end: nobody may read
// there, or a terminal may be held with Ctrl-S.
func briefly(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(100 * time.Millisecond):
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "dlock",
		Short:         "Run programs under a distributed lock",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	s := newSettings(root)
	root.AddCommand(newRun(s), newList(s), newInspect(s), newTop(s), newBreak(s), newDoctor(s))
	root.AddCommand(newDrivers(), newVersion(), newMan(), newGuard(), newWitness())
	return root
}

// exit is an error with the exit code that it leads to.
type exit struct {
	code        int
	err         error // what to print; nil: nothing
	interrupted bool  // by Ctrl-C: end of that signal, so that a shell's loop or script ends too
}

func (e exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }
