package redis_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/faulttest"
)

func TestRequestsThatGoTogetherAreToldWhyTheyCouldNotConnect(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.do(t, "acl", "setuser", "app", "on", ">before", "~*", "&*", "+@all")
	b := openBackend(t, "redis://app:before@"+s.Addr)
	release(t, b, claimed(t, b, "warm"))
	s.do(t, "acl", "setuser", "app", "resetpass", ">after")
	s.do(t, "client", "kill", "user", "app")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			_, err := b.Acquire(t.Context(), faulttest.Claim(fmt.Sprint("k", i), time.Minute))
			if !errors.Is(err, driver.ErrPermanent) {
				t.Errorf("Acquire = %v, want the server's answer to the password, which is permanent", err)
			}
		})
	}
	wg.Wait()
}

func TestManyFirstCallsAskForTheVersionOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := backend(t, s.Addr)
	before := s.calls(t, "info")
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() { claimed(t, b, fmt.Sprint("k", i)) })
	}
	wg.Wait()
	if n := s.calls(t, "info") - before - 1; n != 2 { // one was the count's
		t.Errorf("300 calls at once asked for INFO %d times, want 2: of the server and of the cluster", n)
	}
}
