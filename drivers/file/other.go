//go:build !linux && !darwin

package file

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/dlock-go/dlock/driver"
)

func newBackend(place) (driver.Backend, error) {
	return nil, fmt.Errorf("file: there are no locks in files on %s, only on linux and darwin: %w", runtime.GOOS, errors.ErrUnsupported)
}

func isHome(string, int) bool { return false }
