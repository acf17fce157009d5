package redis

import (
	"fmt"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// TestHandOversThatOvertakeTheirRepliesAreKept has hundreds of locks handed over before those who wait for them are told that they wait.
func TestHandOversThatOvertakeTheirRepliesAreKept(t *testing.T) {
	t.Parallel()
	q := &waiters{}
	q.init(&Backend{})
	q.stands.Store(true)
	const locks = 1000
	for i := range locks {
		q.deliver(fmt.Sprint("token", i, " ", 100+i))
	}
	missed := 0
	for i := range locks {
		w := &waiter{claim: driver.Claim{Token: fmt.Sprint("token", i)}}
		if err := q.add(w); err != nil {
			t.Fatal(err)
		}
		select {
		case fence := <-w.given:
			if fence != uint64(100+i) {
				t.Errorf("the fence of lock %d is %d, want %d", i, fence, 100+i)
			}
		default:
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of %d hand-overs were forgotten, want none", missed, locks)
	}
}
