package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
)

func newDrivers() *cobra.Command {
	return &cobra.Command{
		Use:   "drivers",
		Short: "List the drivers that this command was built with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range dlock.Drivers() {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), name); err != nil {
					return exit{1, err}
				}
			}
			return nil
		},
	}
}
