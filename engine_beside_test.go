package dlock_test

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

func TestALockBesideCleanUpsThatHaveJustEndedGoesOn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, n := newPlain()
		l := open(t, p, dlock.Config{DefaultTTL: time.Second})
		n.on(refuse)
		for range 3 { // each leaves a token that might be in the store, and whose releases fail
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, "TryLock", err, errNetwork)
		}
		time.Sleep(1050 * time.Millisecond) // they have expired, and the next look at them has not come yet
		n.heal()
		lock(t, l, "k")
	})
}
