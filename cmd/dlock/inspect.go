package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock/driver"
)

func newInspect(s *settings) *cobra.Command {
	var asJSONWanted bool
	cmd := &cobra.Command{
		Use:   "inspect KEY",
		Short: "Show who holds a lock and who waits for it",
		Long: `Inspect shows who holds the lock named KEY, since when, its fence, what is left
of its TTL, and who waits for it. The exit code is 0 if somebody holds it and 1
if nobody does.`,
		ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyIn(cmd, args)
			if err != nil {
				return exit{code: exitUsage, err: err}
			}
			return s.with(cmd, func(ctx context.Context, st *store) error {
				info, err := st.inspect(ctx, key)
				if err != nil {
					return err
				}
				if asJSONWanted {
					err = writeJSON(cmd.OutOrStdout(), asJSON(info), "  ")
				} else {
					err = describe(cmd.OutOrStdout(), info, time.Now())
				}
				if err == nil && !held(info) {
					err = exit{code: exitNo}
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSONWanted, "json", false, "print a JSON object")
	return s.limited(takesKey(cmd))
}

// describe prints one lock for people.
func describe(w io.Writer, i driver.Info, now time.Time) error {
	lines := [][2]string{{"key", printable(i.Key)}}
	if held(i) {
		lines = append(lines, [2]string{"held by", owner(i)})
		if !i.Since.IsZero() {
			lines = append(lines, [2]string{"held for", age(i, now) + ", since " + i.Since.Local().Format(time.DateTime)})
		}
		lines = append(lines, [2]string{"ttl left", brief(i.TTL)}, [2]string{"fence", fmt.Sprint(i.Fence)})
	} else {
		lines = append(lines, [2]string{"held by", "nobody"})
	}
	for n, who := range i.Waiters {
		lines = append(lines, [2]string{fmt.Sprintf("waiting %d", n+1), printable(who)})
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%-10s %s\n", l[0], l[1]); err != nil {
			return written(err)
		}
	}
	return nil
}
