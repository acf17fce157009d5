//go:build linux || darwin

package file_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
)

// store is a directory of its own. In an outage a plain file is in its place.
func store(t *testing.T) dlocktest.Store {
	dir := newDir(t)
	away := dir + ".away"
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
			_, err := os.Stat(away)
			switch isDown := err == nil; {
			case down && !isDown:
				must(os.MkdirAll(dir, 0o700))
				must(os.Rename(dir, away))
				must(os.WriteFile(dir, nil, 0o600))
			case !down && isDown:
				must(os.Remove(dir))
				must(os.Rename(away, dir))
			}
		},
	}
}

func TestConformance(t *testing.T) {
	dlocktest.Run(t, dlocktest.Harness{
		MinTTL: 100 * time.Millisecond,
		New: func(t *testing.T) dlocktest.Store {
			t.Parallel()
			return store(t)
		},
	})
}
