package gather_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/internal/gather"
)

func TestWhatIsStuckTakesNoPlaceOnceWhatOvertookItHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		stuck, alone := make(chan struct{}), s.Alone
		s.Alone = func(ctx context.Context, r *request) {
			if r.name == "a" || r.name == "b" {
				<-stuck
				r.answered = true
				return
			}
			alone(ctx, r)
		}
		s.do(t, t.Context(), "a", "b", "c")
		s.came(t)
		time.Sleep(patience)
		s.came(t, "c")
		s.do(t, t.Context(), "d")
		s.came(t, "c") // as long as nothing has returned the way may be barred
		s.answer <- struct{}{}
		s.came(t, "c", "d")
		s.do(t, t.Context(), "e")
		s.came(t, "c", "d", "e") // straight, beside the two that are stuck
		close(stuck)
		s.do(t, t.Context(), "f", "g")
		s.came(t, "c", "d", "e") // their return gives nobody a place
		s.answer <- struct{}{}
		s.came(t, "c", "d", "e", "fg")
		s.answer <- struct{}{}
		s.answer <- struct{}{}
		synctest.Wait()
		s.do(t, t.Context(), "h", "i", "j")
		s.came(t, "c", "d", "e", "fg", "h", "i")
		for range 3 {
			s.answer <- struct{}{}
		}
	})
}

func TestARequestThatNobodyWaitsForIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		connected := make(chan struct{})
		var begun []string
		s.Together = func(batch []*request) {
			<-connected
			for _, r := range batch {
				if r.Begin() {
					begun = append(begun, r.name)
				}
				r.answered = true
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.do(t, t.Context(), "a", "b")
		left := s.do(t, ctx, "c")
		s.do(t, t.Context(), "d")
		s.answer <- struct{}{} // now c and d are on their way
		synctest.Wait()
		cancel()
		if err := <-left; err == nil {
			t.Error("the call whose context has ended has no error")
		}
		close(connected)
		synctest.Wait()
		if len(begun) != 1 || begun[0] != "d" {
			t.Errorf("%q were sent, want only d", begun)
		}
		s.answer <- struct{}{}
	})
}

func TestATicketKnowsWhetherItsRequestMayHaveBeenSent(t *testing.T) {
	var late, sent gather.Ticket
	late.Leave()
	if late.Begin() || late.Sent() || !late.Gone() {
		t.Error("what nobody waits for was sent")
	}
	if !sent.Begin() || !sent.Sent() {
		t.Error("what somebody waits for was not sent")
	}
	sent.Leave()
	if !sent.Sent() || sent.Begin() {
		t.Error("what was sent once is sent again although nobody waits for it")
	}
}
