package gather_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/internal/gather"
)

var errClosed = errors.New("closed")

type request struct {
	gather.Ticket
	name     string
	answered bool
}

// server answers a batch when it is told to, or after a while.
type server struct {
	gather.Gate[*request]
	pause  time.Duration
	answer chan struct{} // nil: after the pause

	mu   sync.Mutex
	seen [][]string // what came, together or alone
}

const (
	width    = 2
	patience = time.Second
)

func newServer() *server {
	s := &server{answer: make(chan struct{})}
	s.Width, s.Patience, s.Closed = width, patience, errClosed
	s.Alone = func(ctx context.Context, r *request) { s.serve(ctx, r) }
	s.Together = func(batch []*request) { s.serve(context.Background(), batch...) }
	return s
}

func (s *server) serve(ctx context.Context, batch ...*request) {
	names := make([]string, len(batch))
	for i, r := range batch {
		names[i] = r.name
	}
	s.mu.Lock()
	s.seen = append(s.seen, names)
	s.mu.Unlock()
	if s.answer == nil {
		time.Sleep(s.pause)
	} else {
		select {
		case <-s.answer:
		case <-ctx.Done():
			return
		}
	}
	for _, r := range batch {
		r.answered = true
	}
}

// came checks what has come so far.
func (s *server) came(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, names := range s.seen {
		got = append(got, join(names))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q came, want %q", got, want)
	}
}

func join(names []string) (s string) {
	for _, n := range names {
		s += n
	}
	return s
}

// do sends requests one after another, and returns when they are under way or have gathered.
func (s *server) do(t *testing.T, ctx context.Context, names ...string) <-chan error {
	t.Helper()
	errs := make(chan error, len(names))
	for _, n := range names {
		go func() {
			r := &request{name: n}
			err := s.Do(ctx, r)
			if err == nil && !r.answered && ctx.Err() == nil {
				t.Errorf("%s: no error and no answer", n)
			}
			errs <- err
		}()
		synctest.Wait()
	}
	return errs
}

func TestRequestsGoStraightUntilTheGateIsFullAndThenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.do(t, t.Context(), "a", "b", "c", "d", "e")
		s.came(t, "a", "b")
		if n := s.Gathered(); n != 3 {
			t.Errorf("%d have gathered, want 3", n)
		}
		s.answer <- struct{}{}
		s.came(t, "a", "b", "cde")
		s.do(t, t.Context(), "f", "g")
		s.came(t, "a", "b", "cde")
		s.answer <- struct{}{}
		s.came(t, "a", "b", "cde", "fg")
		s.answer <- struct{}{}
		s.answer <- struct{}{}
		s.do(t, t.Context(), "h", "i")
		s.came(t, "a", "b", "cde", "fg", "h", "i")
		s.answer <- struct{}{}
		s.answer <- struct{}{}
	})
}

func TestWhatMayNotGoTogetherGoesOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.Pick = func(gathered []*request) (batch, rest []*request) { // never two of a name
			for _, r := range gathered {
				if slices.ContainsFunc(batch, func(x *request) bool { return x.name == r.name }) {
					rest = append(rest, r)
				} else {
					batch = append(batch, r)
				}
			}
			return batch, rest
		}
		s.do(t, t.Context(), "a", "b", "c", "d", "c", "c")
		s.answer <- struct{}{}
		s.came(t, "a", "b", "cd")
		s.answer <- struct{}{}
		s.came(t, "a", "b", "cd", "c")
		time.Sleep(patience) // the rest too has not to wait for longer
		s.came(t, "a", "b", "cd", "c", "c")
		for range 3 {
			s.answer <- struct{}{}
		}
	})
}

func TestRequestsDoNotWaitForThoseThatAreNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.do(t, t.Context(), "a", "b", "c")
		time.Sleep(patience / 2)
		s.do(t, t.Context(), "d")
		time.Sleep(patience/2 - 1)
		s.came(t, "a", "b")
		time.Sleep(time.Nanosecond)
		s.came(t, "a", "b", "cd")
		s.do(t, t.Context(), "e")
		time.Sleep(patience)
		s.came(t, "a", "b", "cd", "e")
		for range 4 {
			s.answer <- struct{}{}
		}
		// What was made room for by overtaking is not there for ever.
		s.do(t, t.Context(), "f", "g", "h")
		s.came(t, "a", "b", "cd", "e", "f", "g")
		for range 3 {
			s.answer <- struct{}{}
		}
	})
}

func TestWhoeverGivesUpIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		s.do(t, t.Context(), "a", "b", "c")
		gone := s.do(t, ctx, "d")
		s.do(t, t.Context(), "e")
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
		s.answer <- struct{}{}
		s.came(t, "a", "b", "ce")
		s.answer <- struct{}{}
		s.answer <- struct{}{}
	})
}

func TestAGateAtWhichEveryoneHasGivenUpIsFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		s.do(t, t.Context(), "a", "b")
		s.do(t, ctx, "c", "d")
		cancel()
		synctest.Wait()
		s.answer <- struct{}{}
		s.answer <- struct{}{}
		s.do(t, t.Context(), "e", "f", "g")
		s.came(t, "a", "b", "e", "f")
		for range 3 {
			s.answer <- struct{}{}
		}
	})
}

func TestCloseRefusesWhatIsNotSentAndWaitsForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.do(t, t.Context(), "a", "b")
		sent := s.do(t, t.Context(), "c")
		s.answer <- struct{}{}
		s.came(t, "a", "b", "c")
		late := s.do(t, t.Context(), "d")
		s.Close()
		if err := <-late; !errors.Is(err, errClosed) {
			t.Errorf("what had gathered got %v, want %v", err, errClosed)
		}
		if err := s.Do(t.Context(), &request{}); !errors.Is(err, errClosed) {
			t.Errorf("what came later got %v, want %v", err, errClosed)
		}
		waited := make(chan struct{})
		go func() {
			s.Wait()
			close(waited)
		}()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("Wait has returned while a batch is under way")
		default:
		}
		s.answer <- struct{}{}
		s.answer <- struct{}{}
		<-waited
		if err := <-sent; err != nil {
			t.Errorf("what was sent got %v", err)
		}
		s.came(t, "a", "b", "c")
	})
}

// Many callers come, give up and come again while batches are answered sooner or later than the patience lasts. Everyone gets an answer or the end of its
// context, nobody waits longer than the patience for being sent, and in the end the gate is free.
func TestNoRequestIsForgotten(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			rnd := rand.New(rand.NewPCG(seed, 0))
			s.answer, s.pause = nil, time.Duration(rnd.Int64N(int64(2*patience)))
			var wg sync.WaitGroup
			for range 20 {
				rnd := rand.New(rand.NewPCG(seed, rnd.Uint64()))
				wg.Go(func() {
					for range 20 {
						time.Sleep(time.Duration(rnd.Int64N(int64(patience))))
						ctx, cancel := t.Context(), context.CancelFunc(func() {})
						if rnd.IntN(3) == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.Int64N(int64(patience))))
						}
						r, began := &request{}, time.Now()
						err := s.Do(ctx, r)
						cancel()
						switch took := time.Since(began); {
						case err == nil && !r.answered:
							t.Errorf("seed %d: neither an answer nor an error", seed)
						case err != nil && ctx.Err() == nil:
							t.Errorf("seed %d: %v", seed, err)
						case took > patience+s.pause:
							t.Errorf("seed %d: it took %v, want %v and %v at most", seed, took, patience, s.pause)
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(s.pause) // for what was sent and then given up
			synctest.Wait()
			s.seen, s.answer = nil, make(chan struct{})
			s.do(t, t.Context(), "a", "b", "c")
			s.came(t, "a", "b")
			for range 3 {
				s.answer <- struct{}{}
			}
		})
	}
}
