package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dlock-go/dlock/driver"
)

const breakHelp = `Break takes the lock named KEY from its holder: for one that hangs and goes on
renewing. It shows the holder, asks, and breaks exactly the one it showed, by
its fence; if another has the lock by then, nothing happens. The lock goes to
whoever is next. The holder learns of it at its next renewal, after a third of
its TTL, and dlock run then stops its command. Until then both may believe they
hold the lock, so look at what the holder does first.

The exit code is 0 if the lock was broken and 1 if not: nobody held it, the
holder has changed, or the answer was no.`

// breaker is one dlock break.
type breaker struct {
	s         *settings
	yes, json bool
	fence     uint64
}

func newBreak(s *settings) *cobra.Command {
	b := breaker{s: s}
	cmd := &cobra.Command{
		Use:               "break KEY",
		Short:             "Take a lock from its holder",
		Long:              breakHelp,
		ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyIn(cmd, args)
			if err != nil {
				return exit{code: exitUsage, err: err}
			}
			return b.run(cmd, key)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&b.yes, "yes", "y", false, "do not ask")
	f.Uint64Var(&b.fence, "fence", 0, "break the holder with this fence only (default: the one that has the lock now)")
	f.BoolVar(&b.json, "json", false, "print the holder that was broken as a JSON object; wants --yes")
	return s.limited(takesKey(cmd))
}

func (b *breaker) run(cmd *cobra.Command, key string) error {
	asks := !b.yes
	switch {
	case asks && b.json:
		return exit{code: exitUsage, err: errors.New("--json wants --yes: a script cannot be asked")}
	case asks && !term.IsTerminal(int(os.Stdin.Fd())):
		return exit{code: exitUsage, err: errors.New("stdin is no terminal to ask at; use --yes")}
	case cmd.Flags().Changed("fence") && b.fence == 0:
		return exit{code: exitUsage, err: errors.New("--fence is 0, which no holder has that can be broken")}
	}
	var info driver.Info
	err := b.s.with(cmd, func(ctx context.Context, st *store) (err error) {
		info, err = st.inspect(ctx, key)
		return err
	})
	switch {
	case err != nil:
		return err
	case !held(info):
		return exit{code: exitNo, err: fmt.Errorf("nobody holds %q", key)}
	case b.fence != 0 && b.fence != info.Fence:
		return exit{code: exitNo, err: fmt.Errorf("nothing was broken: the holder of %q has fence %d, not %d", key, info.Fence, b.fence)}
	}
	if !b.json {
		if err := describe(cmd.OutOrStdout(), info, time.Now()); err != nil {
			return err
		}
	}
	if asks && !b.confirmed() {
		return exit{code: exitNo, err: errors.New("nothing was broken")}
	}
	// The answer may have taken its time: the backend is opened anew.
	if err := b.s.with(cmd, func(ctx context.Context, st *store) error { return st.breakLock(ctx, info) }); err != nil {
		return err
	}
	if b.json {
		return writeJSON(cmd.OutOrStdout(), asJSON(info), "  ")
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "broken")
	return written(err)
}

// confirmed asks, and takes nothing but yes for a yes.
func (b *breaker) confirmed() bool {
	fmt.Fprint(os.Stderr, "Break it? [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
