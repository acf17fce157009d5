package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// guard is a process that ends a family if we are killed, which nothing that we do ourselves can
// see to: it notices because its stdin ends. It is started before the command, so that there is no
// moment without it.
type guard struct{ *helper }

// startGuard starts the guard of a family whose command is still to be started.
func startGuard(n *nursery, f family) (guard, error) {
	h, err := startHelper(n, apart(), nil, "guard", strconv.FormatBool(f.group), f.mark, strconv.Itoa(os.Getpid()))
	return guard{h}, err
}

// watch tells the guard who the command is.
func (g guard) watch(pid int) { _, _ = fmt.Fprint(g.pipe, pid) }

// guardLimit is how long the guard looks for what it cannot end. Nobody waits for it.
const guardLimit = 30 * time.Second

// newGuard is the other process.
func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard GROUP MARK PARENT",
		Short:  "End what a killed dlock run left behind",
		Hidden: true,
		Args:   cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			ignoreSignals()
			said, _ := io.ReadAll(os.Stdin)
			f := family{mark: args[1]}
			if pid, err := strconv.Atoi(string(said)); err == nil {
				f.pid, f.group = pid, args[0] == "true"
			}
			// A pipe ends a little before its process does, and until then the command may be about
			// to start.
			waitForOrphanhood(args[2])
			f.kill(guardLimit)
			return nil
		},
	}
}

// waitForOrphanhood waits until the parent is gone, and the kernel has told its other children.
func waitForOrphanhood(parent string) {
	for end := time.Now().Add(time.Second); strconv.Itoa(os.Getppid()) == parent && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// calm is how many looks in a row have to find nobody. One look may miss a process: while it
// executes another program its environment cannot be read, and one that was started during the look
// is not in it.
const calm = 10

// untilNone looks until nobody was found for a while, or the limit has passed.
func untilNone(limit time.Duration, found func() bool) {
	end := time.Now().Add(limit)
	for none := 0; none < calm && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if none++; found() {
			none = 0
		}
	}
}
