package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/faulttest"
)

// settle is longer than a message is awaited that did not come, and than it takes to subscribe anew.
const settle = 800 * time.Millisecond

// D8
func TestALockThatAWaiterTakesItselfCostsNoSubscription(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(s *server, key string){
		"the holder expired": func(s *server, key string) {
			acquire(t, backend(t, s.Addr), faulttest.Claim(key, 200*time.Millisecond))
		},
		"the holder was a foreign one": func(s *server, key string) { s.do(t, "set", key, "foreign", "px", 200) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			b := backend(t, s.Addr)
			free := faulttest.Claim("free", time.Minute)
			within(t, 10*time.Second, "a free lock", wait(t.Context(), b, free)) // opens the subscription
			release(t, b, free)
			before := s.calls(t, "subscribe")
			for i := range 5 {
				c := faulttest.Claim(fmt.Sprint("d8-", i), 10*time.Second)
				hold(s, c.Key)
				within(t, 10*time.Second, "the lock of the holder that is gone", wait(t.Context(), b, c))
				release(t, b, c)
			}
			time.Sleep(settle)
			if n := s.calls(t, "subscribe") - before; n != 0 {
				t.Errorf("%d further subscriptions were made although all messages came", n)
			}
		})
	}
}
