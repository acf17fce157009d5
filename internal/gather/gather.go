// Package gather has requests that meet on their way to a server travel together.
package gather

import (
	"context"
	"runtime"
	"slices"
	"sync"
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
	underWay int
	gathered []R
	overdue  *time.Timer // runs while requests are gathered
	closed   bool
	batches  sync.WaitGroup
}

// Request is a pointer to something that has a [Ticket] embedded.
type Request interface{ ticket() *Ticket }

// Ticket makes what has it a [Request].
type Ticket struct {
	done    chan struct{} // made when the request is gathered
	gone    bool          // nobody waits for it; guarded by the gate
	refused bool          // the gate was closed before it was sent
}

func (t *Ticket) ticket() *Ticket { return t }

// Do sends r, by itself or with others. With an error r is not to be looked at: if ctx has ended it may still be sent, or have been; after Close it is not.
func (g *Gate[R]) Do(ctx context.Context, r R) error {
	free, err := g.enter(r)
	if err != nil {
		return err
	}
	if free {
		g.Alone(ctx, r)
		g.leave()
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
		g.mu.Lock()
		defer g.mu.Unlock()
		t.gone = true
		return ctx.Err()
	}
}

// enter reports whether r may go straight out. Otherwise it is gathered.
func (g *Gate[R]) enter(r R) (free bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return false, g.Closed
	case g.underWay < g.Width:
		g.underWay++
		return true, nil
	}
	r.ticket().done = make(chan struct{})
	if g.gathered = append(g.gathered, r); len(g.gathered) == 1 {
		g.watch()
	}
	return false, nil
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
	g.underWay++
	g.mu.Unlock()
	g.leave()
}

// leave sends what has gathered, in the place of a request that has returned.
func (g *Gate[R]) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if batch := g.next(); len(batch) > 0 {
		g.batches.Go(func() { g.send(batch) })
	}
}

// send sends a batch, and then what has gathered meanwhile, until there is nothing more.
func (g *Gate[R]) send(batch []R) {
	for len(batch) > 0 {
		g.Together(batch)
		for _, r := range batch {
			close(r.ticket().done)
		}
		runtime.Gosched() // those who have got their answers may have more to ask, and then it goes out together
		g.mu.Lock()
		batch = g.next()
		g.mu.Unlock()
	}
}

// next returns the batch that takes the place of what has returned. If there is none the place is free. The mutex is held.
func (g *Gate[R]) next() (batch []R) {
	if len(g.gathered) > 0 {
		batch = g.collect()
	}
	if len(batch) == 0 {
		g.underWay--
	}
	return batch
}

// collect takes a batch out of what has gathered. The mutex is held.
func (g *Gate[R]) collect() []R {
	g.overdue.Stop()
	batch, rest := slices.DeleteFunc(g.gathered, func(r R) bool { return r.ticket().gone }), []R(nil)
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
