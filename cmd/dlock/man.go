package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan is how a packager gets the manual pages. They are written here and not by cobra/doc, which would bring two modules into every
// program that uses dlock, and half a millisecond into every start of this one.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages into a directory",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, c := range pages(cmd.Root()) {
				c.InitDefaultHelpFlag()
				if err := os.WriteFile(filepath.Join(args[0], pageName(c)+".1"), []byte(manPage(c)), 0o644); err != nil { //nolint:gosec // for all to read
					return exit{code: exitNo, err: err}
				}
			}
			return nil
		},
	}
}

// pages are the commands that have one: root, then those that it shows, but for help, which only repeats them.
func pages(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" {
			all = append(all, c)
		}
	}
	return all
}

// pageName is dlock-run for "dlock run".
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage is the manual page of c, in the man macros.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"dlock\" \"dlock manual\"\n", strings.ToUpper(pageName(c)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	use := c.UseLine()
	if c.HasAvailableSubCommands() {
		use = c.Name() + " command [flags]"
	}
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n", roff(use))
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", paragraphs(text))
	writeOptions(&b, "OPTIONS", c.LocalFlags())
	writeOptions(&b, "OPTIONS OF EVERY COMMAND", c.InheritedFlags())
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	writeSeeAlso(&b, c)
	return b.String()
}

// paragraphs sets text in which an indented line stands for itself.
func paragraphs(text string) string {
	var b strings.Builder
	for p := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(p, " ") {
			fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(p))
		} else {
			fmt.Fprintf(&b, ".PP\n%s\n", roff(p))
		}
	}
	return b.String()
}

func writeOptions(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		arg, usage := pflag.UnquoteUsage(f)
		name := `\fB\-\-` + roff(f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB\-` + f.Shorthand + `\fR, ` + name
		}
		if arg != "" {
			name += ` \fI` + roff(arg) + `\fR`
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", name, roff(usage))
	})
}

func writeSeeAlso(b *strings.Builder, c *cobra.Command) {
	var names []string
	if c.HasParent() {
		names = append(names, pageName(c.Parent()))
	} else {
		for _, sub := range pages(c)[1:] {
			names = append(names, pageName(sub))
		}
	}
	for i, name := range names {
		names[i] = `\fB` + roff(name) + `\fR(1)`
	}
	fmt.Fprintf(b, ".SH SEE ALSO\n%s\n", strings.Join(names, ", "))
}

// roff is text without anything that troff would take for an instruction.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
