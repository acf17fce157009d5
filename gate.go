package dlock

import (
	"context"
	"fmt"
	"time"
)

// gate bounds the calls that were left behind: while there are as many as allowed no new ones are made. It is guarded by the Locker's mutex.
type gate struct {
	abandoned int
	ofKey     map[string]int
	freed     chan struct{} // closed when one of them returned; nil when nobody waits for that
}

// room reports whether another call for key may be made.
func (g *gate) room(key string) bool {
	switch n := g.ofKey[key]; {
	case g.abandoned >= maxAbandoned, n >= maxOfOneKey:
		return false
	case g.abandoned >= maxAbandoned/2:
		return n == 0
	default:
		return true
	}
}

// hangs reports whether calls for key have not returned.
func (g *gate) hangs(key string) bool { return g.ofKey[key] > 0 }

func (g *gate) leave(key string) {
	g.abandoned++
	if g.ofKey == nil {
		g.ofKey = map[string]int{}
	}
	g.ofKey[key]++
}

func (g *gate) returned(key string) {
	g.abandoned--
	if g.ofKey[key]--; g.ofKey[key] == 0 {
		delete(g.ofKey, key)
	}
	if g.freed != nil {
		close(g.freed)
		g.freed = nil
	}
}

// pass waits for a place among the calls that may be left behind. The mutex is held, but not while it waits.
func (l *locker) pass(ctx context.Context, key string, limit time.Duration, closing <-chan struct{}) error {
	g := &l.gate
	if g.room(key) {
		return nil
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for !g.room(key) {
		if g.freed == nil {
			g.freed = make(chan struct{})
		}
		freed, err := g.freed, error(nil)
		hung := or(g.ofKey[key], g.abandoned)
		l.unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			err = endOf(ctx)
		case <-closing:
			err = ErrClosed
		case <-late:
			err = detail{errLimit, fmt.Sprintf("%d earlier calls have not returned yet", hung)}
		}
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}
