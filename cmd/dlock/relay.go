package main

import (
	"slices"
	"syscall"
	"time"
)

// Times are counted in turns, not by the clock: on a busy machine they are longer, and so is whatever
// they wait for.
const (
	turn = 10 * time.Millisecond
	// grace is how many turns a signal that reached us alone is kept back on a terminal: timeout(1)
	// sends one to its child and then the same to the whole group, and may be interrupted in between.
	grace = 10
	// twin is for how many turns another signal of the same kind counts as the same one. The system,
	// too, makes one of those that come before the first was taken.
	twin = 5
	// twinOfGroup is the same for one that came to us alone after one that was sent to the group.
	twinOfGroup = 50
)

// relay passes on what comes to us, so that the command gets it once, whoever it was sent to: us
// alone, or our whole process group, which the command is in on a terminal.
type relay struct {
	// pass hands a signal to the command and what it started; to those in our group only if it was
	// not sent to the group.
	pass func(s syscall.Signal, toGroup bool)
	// ask returns what the group was sent since it was asked last, and whether that is known; nil:
	// the command is not in our group.
	ask func() ([]syscall.Signal, bool)
	// guess says whether the group was sent s, where that is not known.
	guess func(s syscall.Signal) bool

	group []syscall.Signal       // sent to the group; ours has not been taken yet
	twins map[syscall.Signal]int // for how many turns another one is the same
	kept  []keptSignal           // came to us alone, in order
	due   <-chan time.Time       // the next turn
}

type keptSignal struct {
	signal syscall.Signal
	turns  int
}

// take deals with a signal that came to us.
func (r *relay) take(s syscall.Signal) {
	known := r.look()
	again := r.twins[s] > 0
	switch {
	case r.ask == nil && !again:
		r.deal(s, false)
	case r.ask != nil && !known && !again:
		r.deal(s, r.guess(s))
	case r.sentToGroup(s):
		r.unkeep(s)
		r.deal(s, true)
	case !again:
		if r.unkeep(s) { // two that were sent to us alone
			r.pass(s, false)
		}
		r.kept = append(r.kept, keptSignal{signal: s})
	}
	r.arm()
}

// flush is to be called when a turn is over. It passes on what was kept for long enough.
func (r *relay) flush() {
	for s := range r.twins {
		if r.twins[s]--; r.twins[s] == 0 {
			delete(r.twins, s)
		}
	}
	if len(r.kept) > 0 {
		r.look()
	}
	kept := r.kept
	r.kept = nil
	for _, k := range kept {
		k.turns++
		switch toGroup := r.sentToGroup(k.signal); {
		case toGroup || k.turns >= grace:
			r.deal(k.signal, toGroup)
		default:
			r.kept = append(r.kept, k)
		}
	}
	r.arm()
}

// deal passes s on. The other half of what was sent to us and to the group may still come, or have
// come meanwhile.
func (r *relay) deal(s syscall.Signal, toGroup bool) {
	r.pass(s, toGroup)
	if r.twins == nil {
		r.twins = map[syscall.Signal]int{}
	}
	switch {
	case toGroup:
		r.twins[s] = twinOfGroup
	case r.ask == nil:
		r.twins[s] = twin
	}
}

// look finds out what the group was sent. It reports whether that is known.
func (r *relay) look() bool {
	if r.ask == nil {
		return false
	}
	sent, ok := r.ask()
	r.group = append(r.group, sent...)
	return ok
}

func (r *relay) sentToGroup(s syscall.Signal) bool {
	before := len(r.group)
	r.group = slices.DeleteFunc(r.group, func(g syscall.Signal) bool { return g == s })
	return len(r.group) < before
}

func (r *relay) unkeep(s syscall.Signal) bool {
	before := len(r.kept)
	r.kept = slices.DeleteFunc(r.kept, func(k keptSignal) bool { return k.signal == s })
	return len(r.kept) < before
}

func (r *relay) arm() {
	r.due = nil
	if len(r.kept)+len(r.twins) > 0 {
		r.due = time.After(turn)
	}
}
