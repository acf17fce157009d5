//go:build linux || darwin

package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
)

// store is a directory of its own. In an outage the one above it is elsewhere: a directory that has just been moved itself would be made anew.
func store(t *testing.T) dlocktest.Store {
	dir := newDir(t)
	above, away := filepath.Dir(dir), filepath.Dir(dir)+".away"
	must := func(err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	return dlocktest.Store{
		Open:   func(t testing.TB) driver.Backend { return open(t, dir) },
		Driver: "file", DSN: "file://" + dir,
		Delete: func(key string) { must(os.Remove(path(dir, key))) },
		Outage: func(down bool) {
			if down {
				must(os.Rename(above, away))
			} else {
				must(os.Rename(away, above))
			}
		},
	}
}

func TestConformance(t *testing.T) {
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 100 * time.Millisecond,
		Pushed: true,
		Skip:   map[string]string{"wait-no-overtaking-delete": "the queue is in the file that is deleted"},
		New: func(t *testing.T) dlocktest.Store {
			t.Parallel()
			return store(t)
		},
	})
}
