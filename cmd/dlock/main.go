// Command dlock runs a program while it holds a lock:
//
//	dlock run KEY -- command args...
//
// Run "dlock run --help" for what it promises.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes, after sysexits.h. Otherwise the code is the child's.
const (
	exitUsage       = 64 // the command line or the configuration is wrong
	exitUnavailable = 69 // the backend failed
	exitNotAcquired = 75 // another owner has the lock
	exitLost        = 76 // the lock was lost while the child ran
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

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
	return status.code
}

// complain prints err on stderr, with the name of the command in front once.
func complain(err error) {
	fmt.Fprintln(os.Stderr, "dlock: "+strings.TrimPrefix(err.Error(), "dlock: "))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:               "dlock",
		Short:             "Run programs under a distributed lock",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(newRun(), newDrivers(), newVersion())
	return root
}

// exit is an error with the exit code that it leads to.
type exit struct {
	code int
	err  error // what to print; nil: nothing
}

func (e exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }
