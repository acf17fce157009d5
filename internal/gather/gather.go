// Package gather has requests that meet on their way to a server travel together.
package gather

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Gate is what requests go out through. One that finds it free goes straight. Those that come while others are under way gather, and go out together when one of
// those has returned: many requests at once cost a server, and the way there, little more than one.
//
// The exported fields are set before the first use.
type Gate[R Request] struct {
	// Width is how many requests or batches may be under way before further requests gather.
	Width int

	// Patience is how long requests gather behind others that do not return. Then they go out nevertheless: replies that are lost must not bar the way to
	// requests that would be answered.
	Patience time.Duration

	// Alone sends a request by itself, until ctx ends.
	Alone func(ctx context.Context, r R)

	// Together sends requests of different callers. None of their contexts may end it for the others.
	Together func(batch []R)

	// Pick divides what has gathered into a batch, which is not empty, and the rest, both in their order. Nil: everything may go together.
	Pick func(gathered []R) (batch, rest []R)

	// Closed is what Do answers after Close.
	Closed error

	mu       sync.Mutex
	underWay int    // those that count
	current  *era   // what is sent at this time belongs to it; nil: nothing was sent yet
	older    []*era // those before it that still count, oldest first
	gathered []R
	overdue  *time.Timer // runs while requests are gathered
	closed   bool
	batches  sync.WaitGroup
}

// era is the time between two overtakings. When a batch of an era has returned, what is still under way of those before it is stuck, and takes no place from
// others any more.
type era struct {
	underWay  int
	forgotten bool // it does not count any more
}

// Request is a pointer to something that has a [Ticket] embedded.
type Request interface{ ticket() *Ticket }

// Ticket makes what has it a [Request].
type Ticket struct {
	done    chan struct{} // made when the request is gathered
	state   atomic.Uint32
	refused bool // the gate was closed before it was sent
}

const (
	sent uint32 = 1 << iota
	gone
)

func (t *Ticket) ticket() *Ticket { return t }

// Begin is called just before the request is written, each time it is. It reports whether anybody still wants the answer; if not, it must not be sent.
func (t *Ticket) Begin() bool {
	for {
		s := t.state.Load()
		switch {
		case s&gone != 0:
			return false
		case s&sent != 0 || t.state.CompareAndSwap(s, s|sent):
			return true
		}
	}
}

// Leave says that nobody wants the answer any more: what was not sent yet never is.
func (t *Ticket) Leave() { t.state.Or(gone) }

// Gone reports whether Leave was called.
func (t *Ticket) Gone() bool { return t.state.Load()&gone != 0 }

// Sent reports whether Begin has let the request through.
func (t *Ticket) Sent() bool { return t.state.Load()&sent != 0 }

// Done is closed when what the request went out with has returned. It is nil for one that goes by itself.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Do sends r, by itself or with others. With an error r is not to be looked at, but for its [Ticket]: if ctx has ended it may have been sent, and will not be
// if it was not; after Close it is not.
func (g *Gate[R]) Do(ctx context.Context, r R) error {
	place, err := g.enter(r)
	if err != nil {
		return err
	}
	if place != nil {
		g.Alone(ctx, r)
		g.leave(place)
		return nil
	}
	t := r.ticket()
	select {
	case <-t.done:
		if t.refused {
			return g.Closed
		}
		return nil
	case <-ctx.Done():
		t.Leave()
		return ctx.Err()
	}
}

// enter returns a place for r to go straight out. Without one it is gathered.
func (g *Gate[R]) enter(r R) (place *era, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, g.Closed
	case g.underWay < g.Width:
		return g.take(), nil
	}
	r.ticket().done = make(chan struct{})
	if g.gathered = append(g.gathered, r); len(g.gathered) == 1 {
		g.watch()
	}
	return nil, nil
}

// take takes a place. The mutex is held.
func (g *Gate[R]) take() *era {
	if g.current == nil {
		g.current = &era{}
	}
	g.current.underWay++
	g.underWay++
	return g.current
}

// watch sees to it that what is gathered does not wait too long. The mutex is held.
func (g *Gate[R]) watch() {
	if g.overdue == nil {
		g.overdue = time.AfterFunc(g.Patience, g.overtake)
	} else {
		g.overdue.Reset(g.Patience)
	}
}

// overtake sends what has gathered although those before it have not returned.
func (g *Gate[R]) overtake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	batch := g.collect()
	if len(batch) == 0 {
		return
	}
	g.older = append(g.older, g.current)
	g.current = nil
	place := g.take()
	g.batches.Go(func() { g.send(batch, place) })
}

// forget takes the places of those that were overtaken by something that has returned by now. The mutex is held.
func (g *Gate[R]) forget(returned *era) {
	if returned.forgotten {
		return
	}
	for len(g.older) > 0 && g.older[0] != returned {
		stuck := g.older[0]
		stuck.forgotten = true
		g.underWay -= stuck.underWay
		g.older = g.older[1:]
	}
}

// leave sends what has gathered, in the place of a request that has returned.
func (g *Gate[R]) leave(place *era) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if batch, place := g.next(place); len(batch) > 0 {
		g.batches.Go(func() { g.send(batch, place) })
	}
}

// send sends a batch, and then what has gathered meanwhile, until there is nothing more.
func (g *Gate[R]) send(batch []R, place *era) {
	for len(batch) > 0 {
		g.Together(batch)
		for _, r := range batch {
			close(r.ticket().done)
		}
		runtime.Gosched() // those who have got their answers may have more to ask, and then it goes out together
		g.mu.Lock()
		g.forget(place)
		batch, place = g.next(place)
		g.mu.Unlock()
	}
}

// next frees the place of what has returned, and takes it for the batch that goes out next, if there is one. The mutex is held.
func (g *Gate[R]) next(place *era) (batch []R, taken *era) {
	place.underWay--
	if place.forgotten {
		return nil, nil
	}
	g.underWay--
	if batch = g.collect(); len(batch) > 0 {
		taken = g.take()
	}
	return batch, taken
}

// collect takes a batch out of what has gathered. The mutex is held.
func (g *Gate[R]) collect() []R {
	if len(g.gathered) == 0 {
		return nil
	}
	g.overdue.Stop()
	batch, rest := slices.DeleteFunc(g.gathered, func(r R) bool { return r.ticket().Gone() }), []R(nil)
	if g.Pick != nil && len(batch) > 0 {
		batch, rest = g.Pick(batch)
	}
	if g.gathered = rest; len(rest) > 0 {
		g.watch()
	}
	return batch
}

// Gathered returns how many requests wait to be sent together.
func (g *Gate[R]) Gathered() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.gathered)
}

// Close refuses what is not yet sent. It does not wait; [Gate.Wait] does.
func (g *Gate[R]) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, r := range g.gathered {
		r.ticket().refused = true
		close(r.ticket().done)
	}
	if g.gathered = nil; g.overdue != nil {
		g.overdue.Stop()
	}
}

// Wait waits, after Close, for the batches under way.
func (g *Gate[R]) Wait() { g.batches.Wait() }
