//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// witness is a process in our process group that has nothing to do but get the group's signals. A
// signal that reaches us was sent to the whole group if it reached the witness, too. Nothing else
// tells: the system does not say whether a signal was sent to a process or to its group.
type witness struct {
	*helper
	nursery *nursery
	answers *os.File
	lines   *bufio.Reader
}

// startWitness starts a witness. It is to end with the thread that starts it.
func startWitness(n *nursery) (*witness, error) {
	w := &witness{nursery: n}
	return w, w.start()
}

func (w *witness) start() error {
	answers, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdout.Close() //nolint:errcheck // a copy of the witness's
	attr := &syscall.SysProcAttr{}
	endWithParent(attr)
	h, err := startHelper(w.nursery, attr, stdout, "witness")
	if err != nil {
		_ = answers.Close()
		return err
	}
	w.helper, w.answers, w.lines = h, answers, bufio.NewReader(answers)
	return nil
}

func (w *witness) stop() {
	w.helper.stop()
	_ = w.answers.Close()
}

// ask returns the signals that came since it was asked last, and whether they are known. A witness
// that had not started yet when a signal came has ended of it. Then there is another one.
func (w *witness) ask() (came []syscall.Signal, known bool) {
	_, err := w.pipe.Write([]byte{'?'})
	if err == nil {
		_ = w.answers.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		var line string
		line, err = w.lines.ReadString('\n')
		came = readSignals(line)
	}
	if err == nil || os.IsTimeout(err) { // it will be asked again
		return came, true
	}
	w.stop()
	s, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && s.Signaled() && slices.Contains(passed, os.Signal(s.Signal())) {
		came, known = append(came, s.Signal()), true
	}
	return came, w.start() == nil && known
}

func readSignals(line string) (all []syscall.Signal) {
	for _, word := range strings.Fields(line) {
		var n int
		if _, err := fmt.Sscan(word, &n); err == nil {
			all = append(all, syscall.Signal(n))
		}
	}
	return all
}

// newWitness is the other process.
func newWitness() *cobra.Command {
	return &cobra.Command{
		Use:    "witness",
		Short:  "Tell which signals come to the process group",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c := make(chan os.Signal, 64)
			signal.Notify(c, append(passed, mark)...)
			for question := make([]byte, 1); ; {
				if _, err := io.ReadFull(os.Stdin, question); err != nil {
					return nil // dlock is gone
				}
				if _, err := fmt.Println(strings.Join(pending(c), " ")); err != nil {
					return nil
				}
			}
		},
	}
}

// mark is a signal that nobody sends, with a number above those that are passed on: the system
// delivers it after them.
const mark = syscall.SIGIO

// pending returns the numbers of the signals that have come up to here.
func pending(c <-chan os.Signal) (numbers []string) {
	_ = syscall.Kill(os.Getpid(), mark)
	for limit := time.After(5 * time.Second); ; {
		select {
		case s := <-c:
			if s == mark {
				return numbers
			}
			numbers = append(numbers, fmt.Sprint(number(s)))
		case <-limit:
			return numbers
		}
	}
}
