package dlocktest

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/dlock-go/dlock"
)

// Between the choice of a holder and the moment that its key is taken it may unlock, and the next
// one have the key.
func TestTakeSparesTheNextHolder(t *testing.T) {
	for name, how := range map[string]cut{"Lose": cutGone, "Expire": cutSilent} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLocker(t)
			chosen, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := chosen.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			next, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if c, ok := l.b.take(l.storeKey("k"), chosen.Fence(), how); ok {
				t.Errorf("%s took the key from %q, who has the fence %d", name, c.Owner, next.Fence())
			}
			if err := next.Extend(t.Context(), l.ttl()); err != nil {
				t.Errorf("%s of the holder before: Extend of the next one = %v", name, err)
			}
			if _, ok := l.b.take(l.storeKey("k"), next.Fence(), how); !ok {
				t.Errorf("%s did not take the key from its holder", name)
			}
			if err := next.Unlock(t.Context()); err == nil || errors.Is(err, dlock.ErrOwnershipLost) != (how == cutGone) {
				t.Errorf("Unlock after %s = %v", name, err)
			}
		})
	}
}
