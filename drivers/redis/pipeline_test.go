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
	m := s.monitor(t)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() { claimed(t, b, fmt.Sprint("k", i)) })
	}
	wg.Wait()
	most := 1 + int(time.Since(began)/(100*time.Millisecond)) // one that takes long does not keep the next from asking
	faulttest.Eventually(t, patience, "the witness has seen the last of them", func() bool { return m.count(`"evalsha"`) == 300 })
	if n := m.count(`"hello"`) - m.count(`"hello" "2"`); n < 1 || n > most { // each connection begins with the latter
		t.Errorf("300 calls at once asked %d times what the server is, want once, or at most %d times", n, most)
	}
	if n := m.count(`"info"`); n != 0 {
		t.Errorf("300 calls at once asked for INFO %d times, want that a server which knows HELLO is not asked for more", n)
	}
}
