//go:build linux || darwin

package file_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asChild in the environment makes the test binary be a process of a test; see children.
const asChild = "DLOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if role, ok := children[os.Getenv(asChild)]; ok {
		role(os.Args[1])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
