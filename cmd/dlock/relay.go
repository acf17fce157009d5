package main

import (
	"slices"
	"syscall"
	"time"
)

const (
	// grace is how long a signal that reached us alone is kept back on a terminal: timeout(1) sends
	// one to its child and then the same to the whole group, and may be interrupted in between.
	grace = 100 * time.Millisecond
	// twin is how close two signals are that count as one. The system, too, makes one of those that
	// come before the first was taken.
	twin = 50 * time.Millisecond
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

	group []syscall.Signal             // sent to the group; ours has not been taken yet
	dealt map[syscall.Signal]time.Time // when the last one was passed on at once
	kept  []keptSignal                 // came to us alone, in order
	due   <-chan time.Time             // when something that is kept has to be passed on
}

type keptSignal struct {
	signal syscall.Signal
	since  time.Time
}

// take deals with a signal that came to us.
func (r *relay) take(s syscall.Signal) {
	known := r.look()
	again := time.Since(r.dealt[s]) < twin
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
		r.kept = append(r.kept, keptSignal{s, time.Now()})
	}
	r.arm()
}

// flush passes on what was kept for long enough.
func (r *relay) flush() {
	r.look()
	for len(r.kept) > 0 && time.Since(r.kept[0].since) >= grace {
		s := r.kept[0].signal
		r.kept = r.kept[1:]
		r.deal(s, r.sentToGroup(s))
	}
	r.arm()
}

// deal passes s on. The other half of what was sent to us and to the group may still come, or have
// come meanwhile.
func (r *relay) deal(s syscall.Signal, toGroup bool) {
	r.pass(s, toGroup)
	if toGroup || r.ask == nil {
		if r.dealt == nil {
			r.dealt = map[syscall.Signal]time.Time{}
		}
		r.dealt[s] = time.Now()
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
	if len(r.kept) > 0 {
		r.due = time.After(time.Until(r.kept[0].since.Add(grace)))
	}
}
