package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
)

func newDrivers() *cobra.Command {
	var asJSONWanted bool
	cmd := &cobra.Command{
		Use:   "drivers",
		Short: "List the drivers that this command was built with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSONWanted {
				return writeJSON(cmd.OutOrStdout(), dlock.Drivers(), "")
			}
			for _, name := range dlock.Drivers() {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), name); err != nil {
					return written(err)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSONWanted, "json", false, "print a JSON array")
	return cmd
}
