package main

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock/driver"
)

func newList(s *settings) *cobra.Command {
	var asked struct{ json bool }
	cmd := &cobra.Command{
		Use:               "ls [PREFIX]",
		Short:             "List the locks that are held",
		Example:           "  dlock ls\n  dlock ls orders/\n  dlock ls --json | jq -r '.[] | select(.waiters | length > 3) | .key'",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := strings.Join(args, "")
			return s.with(cmd, func(ctx context.Context, st *store) error {
				infos, failed := st.all(ctx, prefix)
				if failed != nil && len(infos) == 0 {
					return failed
				}
				err := writeList(cmd.OutOrStdout(), infos, asked.json)
				return cmp.Or(err, failed)
			})
		},
	}
	cmd.Flags().BoolVar(&asked.json, "json", false, "print a JSON array")
	return s.limited(cmd)
}

func writeList(w io.Writer, infos []driver.Info, json bool) error {
	if json {
		return writeJSON(w, allJSON(infos), "  ")
	}
	return writeTable(w, infos, time.Now())
}

// all returns the held locks whose keys begin with prefix, sorted by key: those that were found, if there is an error.
func (s *store) all(ctx context.Context, prefix string) (infos []driver.Info, failed error) {
	for info, err := range s.list(ctx, prefix) {
		if err != nil {
			failed = cmp.Or(failed, err)
		} else {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(x, y driver.Info) int { return strings.Compare(x.Key, y.Key) })
	return infos, failed
}
