package dlocktest

import (
	"errors"
	"runtime"
	"strings"
)

var errMisplaced = errors.New("dlocktest: the Locker does not belong to this testing/synctest bubble")

// misplaced fails the test, and returns an error, if the calling goroutine is not in the synctest
// bubble that l belongs to. The clocks differ, and a channel or timer of the one world ends the
// process, or hangs, in the other.
func (l *Locker) misplaced(op string) error {
	if bubble() == l.bubble {
		return nil
	}
	l.t.Helper()
	l.t.Errorf("dlocktest: %s: the Locker was made outside this testing/synctest bubble; "+
		"call NewLocker in the function that synctest.Test runs", op)
	return errMisplaced
}

// bubble returns the number of the synctest bubble that the calling goroutine is in, empty if it is
// in none. The head of a stack trace is the only place that tells.
func bubble() string {
	var buf [128]byte
	head, _, _ := strings.Cut(string(buf[:runtime.Stack(buf[:], false)]), "\n")
	_, number, _ := strings.Cut(head, "synctest bubble ")
	return number
}
