package dlock

import "time"

// Pause makes x look as if the process had been stopped for d just now: the clocks went on, and no timer has fired.
func (x *Lease) Pause(d time.Duration) {
	x.h.l.mu.Lock()
	defer x.h.l.mu.Unlock()
	x.h.deadline = x.h.deadline.Add(-d)
	x.h.expiry = x.h.expiry.Add(-d)
}

// Suspend makes x look as if the machine had been suspended for d just now: only the wall clock went on.
func (x *Lease) Suspend(d time.Duration) {
	x.h.l.mu.Lock()
	defer x.h.l.mu.Unlock()
	x.h.expiry = x.h.expiry.Add(-d)
}

// MaxAbandoned is the bound on calls that were left behind.
const MaxAbandoned = maxAbandoned

// Entries returns how many keys l knows something of.
func Entries(l Locker) int {
	x := l.(*locker)
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.keys)
}

// Contexts returns how many contexts x has to end.
func (x *Lease) Contexts() int {
	unlock := x.guard()
	defer unlock()
	return len(x.ends)
}

// Prompts is how many calls are under way on the goroutines of their callers.
func Prompts(l Locker) int {
	k := l.(*locker)
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.prompts)
}

// Waiting returns how many wait for the local turn of key.
func Waiting(l Locker, key string) (n int) {
	k := l.(*locker)
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.keys[key]; e != nil {
		for w := e.queue.first; w != nil; w = w.next {
			n++
		}
	}
	return n
}

// Occupy keeps the engine's mutex until free is called.
func Occupy(l Locker) (free func()) {
	k := l.(*locker)
	k.mu.Lock()
	return k.mu.Unlock
}
