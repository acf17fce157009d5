package dlocktest

import (
	"errors"
	"fmt"

	"github.com/dlock-go/dlock"
)

var lockCloseCases = []testCase{
	{"lock-close-releases", "Close", "Through a Locker: Close releases everything that is held, ends those who wait, and refuses further work.", nil, lockCloseReleases},
	{"lock-close-others", "other Lockers", "Through a Locker: Close of one Locker leaves the holds of another alone.", nil, lockCloseOthers},
}

func lockCloseReleases(t *caseT) {
	l, b := t.locker(ample), t.open()
	soon := t.soon()
	other := t.claim("other", ample)
	t.acquire(b, other)
	for i := range 5 {
		t.lock(l, fmt.Sprintf("k%d", i), callLimit)
	}
	x, _ := dlock.LeaseOf(l, "k0")
	p := t.locking(l, "other")
	t.pause(5 * t.roundTrip())
	if err := l.Close(); err != nil {
		t.Errorf("Close returned %q", err)
	}
	if !t.await(p.done, soon) {
		t.Fatalf("Lock has not returned %v after Close", soon)
	}
	if !errors.Is(p.err, dlock.ErrClosed) {
		t.Errorf("Lock that Close interrupted returned %v, want ErrClosed", p.err)
	}
	if !isClosed(x.Done()) || !errors.Is(x.Err(), dlock.ErrClosed) {
		t.Errorf("after Close a lease has the error %v, want ErrClosed", x.Err())
	}
	for i := range 5 {
		t.free(b, fmt.Sprintf("k%d", i))
	}
	t.release(b, other)
	t.free(b, "other")
	if err := l.Lock(t.ctx, "k0"); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("Lock after Close returned %v, want ErrClosed", err)
	}
}

func lockCloseOthers(t *caseT) {
	a, b, c := t.locker(t.steady()), t.locker(t.steady()), t.open()
	t.lock(a, "ka", callLimit)
	t.lock(b, "kb", callLimit)
	x, _ := dlock.LeaseOf(b, "kb")
	if err := a.Close(); err != nil {
		t.Errorf("Close returned %q", err)
	}
	for range 4 {
		t.sleep(t.steady() / 2)
		t.taken(c, "kb")
	}
	if !x.Held() {
		t.Errorf("Close of another Locker ended a hold: %v", x.Err())
	}
	t.free(c, "ka")
	t.unlock(b, "kb")
}
