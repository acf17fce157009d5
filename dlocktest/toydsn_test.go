package dlocktest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// toys are the stores that a DSN can open.
var toys struct {
	sync.Map
	last atomic.Int64
}

type toyDriver struct{}

func init() { driver.Register("dlocktest-toy", toyDriver{}) }

func registerToy(t testing.TB, s *toy) (dsn string) {
	dsn = fmt.Sprintf("toy://%d", toys.last.Add(1))
	toys.Store(dsn, s)
	t.Cleanup(func() { toys.Delete(dsn) })
	return dsn
}

func (toyDriver) Open(dsn string) (driver.Backend, error) {
	if s, ok := toys.Load(dsn); ok {
		return s.(*toy).openDSN()
	}
	accepts := false
	toys.Range(func(_, s any) bool {
		accepts = accepts || s.(*toy).has("dsn-of-any-kind-accepted")
		return true
	})
	if accepts {
		return newToy("", oddities{}).client(), nil
	}
	return nil, fmt.Errorf("toy: %w: it must be toy:// and a number", driver.ErrInvalidDSN)
}

func (s *toy) openDSN() (driver.Backend, error) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	switch {
	case s.has("dsn-opens-another-store"):
		return newToy("", oddities{}).client(), nil
	case s.has("dsn-connects-at-once") && down:
		return nil, errToyDown
	case s.odd.optional:
		return bare{s.client()}, nil
	}
	return s.client(), nil
}
