//go:build linux || darwin

package file_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	filedriver "github.com/dlock-go/dlock/drivers/file"
)

// asChild in the environment makes the test binary be a process of a test; see children.
const asChild = "DLOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if role, ok := children[os.Getenv(asChild)]; ok {
		role(os.Args[1])
		os.Exit(0)
	}
	// A sync shows only when the machine crashes, and takes most of the time where the disk is busy.
	filedriver.WithoutSync()
	_ = flag.Set("test.parallel", "6") // most tests wait for time to pass
	goleak.VerifyTestMain(m)
}
