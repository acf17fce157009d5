package main

import (
	"context"
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
				infos, err := st.all(ctx, prefix)
				if err != nil {
					return err
				}
				if !asked.json {
					return writeTable(cmd.OutOrStdout(), infos, time.Now())
				}
				locks := make([]lockJSON, len(infos))
				for i, info := range infos {
					locks[i] = asJSON(info)
				}
				return writeJSON(cmd.OutOrStdout(), locks, "  ")
			})
		},
	}
	cmd.Flags().BoolVar(&asked.json, "json", false, "print a JSON array")
	return s.limited(cmd)
}

// all returns the held locks whose keys begin with prefix, sorted by key.
func (s *store) all(ctx context.Context, prefix string) ([]driver.Info, error) {
	var infos []driver.Info
	for info, err := range s.list(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(x, y driver.Info) int { return strings.Compare(x.Key, y.Key) })
	return infos, nil
}
