package dlock

import (
	"context"
	"sync/atomic"
	"time"
)

// entry is what a Locker knows of one key. It exists while there is anything to know.
type entry struct {
	key    string
	users  int                   // calls that work with it
	busy   bool                  // somebody has the turn
	holder *hold                 // who, if he has the key already
	aside  *hold                 // who has the key without the turn: got by a TryLock while whoever has the turn waits
	queue  turnQueue             // who waits for the turn, first come first
	heard  heard                 // by whoever has the turn and not yet the key
	news   atomic.Pointer[heard] // what known returns, for those who leave without the mutex
	byKey  keyHold
	strays []*stray
	swept  int // how often a stray was removed from the store, or is gone and may have been there
}

// heard is what the store last said to somebody who wants a key.
type heard struct {
	busy    bool  // that another owner has it
	trouble error // nothing, but this failure
}

// stillWaiting is the error of somebody who no longer waits, because of why.
func (k heard) stillWaiting(why error) error {
	switch {
	case why == ErrClosed: //nolint:errorlint // why may be the error of anybody's context, and the mutex may be held
		return ErrClosed
	case k.busy:
		return because{ErrNotAcquired, why}
	case k.trouble != nil:
		return because{why, k.trouble}
	default:
		return why
	}
}

// known is what is known of e by those who wait behind whoever has the turn.
func (e *entry) known() heard {
	if e.holder != nil && !e.holder.over() {
		return heard{busy: true}
	}
	return e.heard
}

var nothingHeard, heardBusy = &heard{}, &heard{busy: true}

// publish makes what is known of e readable without the mutex.
func (e *entry) publish() {
	switch k := e.known(); {
	case k.busy:
		e.news.Store(heardBusy)
	case k.trouble != nil:
		e.news.Store(&heard{trouble: k.trouble})
	default:
		e.news.Store(nothingHeard)
	}
}

func (e *entry) setHeard(k heard) {
	e.heard = k
	e.publish()
}

// keyHold is the hold by key, of which a Locker has one per key.
type keyHold struct {
	lease   *Lease // nil while it is being acquired
	count   int    // Locks without their Unlock; 0: there is no hold by key
	settled chan struct{}
}

func (l *locker) entry(key string) *entry {
	e := l.keys[key]
	if e == nil {
		e = &entry{key: key}
		e.news.Store(nothingHeard)
		l.keys[key] = e
	}
	return e
}

// tidy forgets an entry that nothing is known of.
func (l *locker) tidy(e *entry) {
	if l.keys[e.key] == e && e.users == 0 && !e.busy && e.queue.first == nil && e.byKey.count == 0 && len(e.strays) == 0 && e.aside == nil {
		delete(l.keys, e.key)
	}
}

// reenter settles what can be settled without the backend: a key that is held under ctx, and a key that is held by key. Neither a lease nor
// an error means that the caller has to go on; a hold by key is then announced.
func (l *locker) reenter(ctx context.Context, e *entry, r request) (*Lease, error) {
	if r.byKey && e.byKey.count > 0 {
		return l.lockAgain(ctx, e, r)
	}
	if outer := l.heldIn(r.mark, e.key); outer != nil {
		if !l.cfg.Reentrant {
			return nil, detail{ErrLockAlreadyHeld, "under the context of its own hold"}
		}
		x := outer.h.addLease()
		if r.byKey {
			e.byKey = keyHold{lease: x, count: 1}
		}
		return x, nil
	}
	if r.byKey {
		e.byKey = keyHold{count: 1}
	}
	return nil, nil
}

// lockAgain is Lock or TryLock of a key that this Locker holds, or is acquiring, by key.
func (l *locker) lockAgain(ctx context.Context, e *entry, r request) (*Lease, error) {
	for e.byKey.lease == nil && e.byKey.count > 0 {
		if !l.cfg.Reentrant || !r.wait || l.heldIn(r.mark, e.key) != nil {
			return nil, detail{ErrLockAlreadyHeld, "it is being acquired by another call"}
		}
		if err := l.awaitSettled(ctx, e); err != nil {
			return nil, err
		}
	}
	switch {
	case e.byKey.count == 0:
		return l.reenter(ctx, e, r)
	case l.leaseErr(e.byKey.lease, time.Now()) != nil:
		return nil, detail{ErrOwnershipLost, "Unlock it before locking again"}
	case !l.cfg.Reentrant:
		return nil, ErrLockAlreadyHeld
	}
	e.byKey.count++
	return e.byKey.lease, nil
}

// awaitSettled waits until the acquisition by key that is under way has come to something.
func (l *locker) awaitSettled(ctx context.Context, e *entry) error {
	if e.byKey.settled == nil {
		e.byKey.settled = make(chan struct{})
	}
	settled := e.byKey.settled
	l.unlock()
	var why error
	select {
	case <-settled:
	case <-ctx.Done():
		why = endOf(ctx)
	case <-l.closing:
		why = ErrClosed
	}
	l.mu.Lock()
	if why != nil {
		return e.known().stillWaiting(why)
	}
	return nil
}

// settleByKey ends the announcement of a hold by key: with its lease, or with nil when there is none.
func (l *locker) settleByKey(e *entry, x *Lease) {
	if e.byKey.settled != nil {
		close(e.byKey.settled)
	}
	e.byKey = keyHold{lease: x}
	if x != nil {
		e.byKey.count = 1
	}
}

// tryTurn takes the turn of e if nobody has it. Otherwise it reports whether the one who has it holds the key.
func (l *locker) tryTurn(e *entry) (taken, held bool) {
	if h := e.holder; h != nil && !h.over() && h.expired(time.Now()) {
		l.lose(h, h.lossReason()) // which passes the turn on
	}
	if e.busy {
		return false, e.holder != nil && !e.holder.over()
	}
	e.busy = true
	return true, false
}

// awaitTurn takes the turn of e, after all who came before, and returns what it waited as, if it had to. left reports that the caller has left
// the queue and that all its other accounts with the Locker are settled.
func (l *locker) awaitTurn(ctx context.Context, e *entry) (waited *turnWaiter, left bool, err error) {
	l.mu.Lock()
	if taken, _ := l.tryTurn(e); taken {
		l.unlock()
		return nil, false, nil
	}
	w := l.turns.get()
	w.e = e
	e.queue.push(w)
	l.unlock()
	select {
	case <-w.turn:
		return w, false, nil
	case <-l.closing:
		err = ErrClosed
	case <-ctx.Done():
		err = endOf(ctx)
	}
	if w.state.CompareAndSwap(turnAwaited, turnLeft) {
		err = e.news.Load().stillWaiting(err)
		l.depart(w)
		return nil, true, err
	}
	l.mu.Lock()
	defer l.unlock()
	err = e.known().stillWaiting(err)
	l.nextTurn(e) // the turn came just then, and goes on to the next one
	return nil, false, err
}

// nextTurn gives the turn of e to the first who waits.
func (l *locker) nextTurn(e *entry) {
	e.holder = nil // what was heard of the key stays: the next one knows no better yet
	e.publish()
	for e.queue.first != nil {
		w := e.queue.first
		e.queue.remove(w)
		if w.state.CompareAndSwap(turnAwaited, turnGiven) {
			w.turn <- struct{}{}
			return
		}
	}
	e.busy = false
	e.setHeard(heard{})
	l.tidy(e)
}

// passTurn gives the turn of a hold that has it to the next.
func (l *locker) passTurn(h *hold) {
	if h.hasTurn {
		h.hasTurn = false
		l.nextTurn(h.e)
	}
}
