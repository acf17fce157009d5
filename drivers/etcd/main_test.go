package etcd_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// parallel is how many tests run at the same time. Most of them wait for whole seconds to pass.
const parallel = "8"

func TestMain(m *testing.M) {
	etcdtest.Main()
	faulttest.Main()
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
