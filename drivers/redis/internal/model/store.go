package model

import (
	"fmt"
	"slices"
	"strings"
)

// Times are in microseconds.
const (
	ms     = 1000
	second = 1000 * ms

	fenceRun = 16 // fences reserved per grant, one constant for all clients
	maxSkips = 64 // waiters passed over in one call
)

// token stands for the 32 hexadecimal digits. foreign is the value of a client that is not ours.
type token int

const (
	noToken token = 0
	foreign token = -1
)

// store is the state of one lock in Redis. Expiries are instants of the server's wall clock; 0 means that there is none.
type store struct {
	rules   *Rules
	cluster bool
	keep    int64 // how long F, Q and W outlive the TTL: five minutes
	skips   int

	lock struct {
		tok  token
		plus bool // the mark: '+' when somebody waits
		exp  int64
	}
	fence struct {
		set bool
		end int64 // of the last run
		w   bool  // somebody queues
		exp int64
	}
	queue struct {
		toks []token
		exp  int64
	}
	seen struct {
		by  []lastSeen
		exp int64
	}

	seenIn  *[sights]int
	publish func(proc int, tok token, fence int64) (receivers int)
	granted func(tok token, fence int64, by string)
}

// lastSeen is a field of W: what a hand-over has to know of a waiter.
type lastSeen struct {
	tok  token
	at   int64
	ttl  int64
	proc int
}

func (s *store) clone() store {
	c := *s
	c.queue.toks = slices.Clone(s.queue.toks)
	c.seen.by = slices.Clone(s.seen.by)
	return c
}

func (s *store) clear() {
	s.lock.tok, s.fence.set = noToken, false
	s.queue.toks, s.seen.by = nil, nil
}

// expire removes what has expired by the wall clock.
func (s *store) expire(now int64) {
	if s.lock.tok != noToken && s.lock.exp != 0 && now > s.lock.exp {
		s.lock.tok = noToken
	}
	if s.fence.set && s.fence.exp != 0 && now > s.fence.exp {
		s.fence.set = false
	}
	if s.queue.exp != 0 && now > s.queue.exp {
		s.queue.toks = nil
	}
	if s.seen.exp != 0 && now > s.seen.exp {
		s.seen.by = nil
	}
}

type op int

const (
	opAcquire op = iota
	opEnqueue
	opReassert
	opRenew
	opRenewKeep
	opReleaseOne
	opCancel
	opBreak
	opForeignLock
	opForeignUnlock
)

func (o op) String() string {
	return [...]string{"acquire", "enqueue", "reassert", "renew", "renew+F", "release1", "cancel", "break", "SET NX", "DEL"}[o]
}

type request struct {
	op    op
	tok   token
	ttl   int64
	proc  int
	fence int64
}

type kind int

const (
	rHeld     kind = iota // another has it; nothing was written
	rGranted              // this call took the lock
	rHolder               // the token had it already; the TTL was refreshed
	rQueued               // in the queue
	rGone                 // neither holder nor queued
	rRenewed              //
	rReleased             // the token was removed
	rMarked               // ours, but somebody waits: nothing was written
	rNotOwner             //
)

func (k kind) String() string {
	return [...]string{"held", "granted", "holder", "queued", "gone", "renewed", "released", "marked", "not owner"}[k]
}

// reply is what a script returns.
type reply struct {
	kind    kind
	fence   int64 // granted, holder: the first of the run
	stored  int64 // queued, gone: the end of the last run; 0: there is no F
	pttl    int64 // held, queued, gone, renewed: what is left to the holder; -1: no expiry, or a foreign holder; 0: nobody
	pos     int   // queued: waiters in front
	foreign bool
	more    bool  // the lock is free and there are more in the queue than one call looks at
	at      int64 // true time of execution; for the oracles
}

func (r reply) String() string {
	switch r.kind {
	case rGranted, rHolder:
		return fmt.Sprintf("%v f=%d", r.kind, r.fence-epoch)
	case rHeld, rQueued, rGone:
		return fmt.Sprintf("%v F=%d pttl=%d pos=%d", r.kind, max(r.stored-epoch, 0), r.pttl, r.pos)
	}
	return r.kind.String()
}

// String shows the keys as the trace prints them.
func (s *store) String() string {
	var b strings.Builder
	switch s.lock.tok {
	case noToken:
		b.WriteString("L=none")
	case foreign:
		fmt.Fprintf(&b, "L=foreign exp=%d", max(s.lock.exp-epoch, 0))
	default:
		fmt.Fprintf(&b, "L=%d%s exp=%d", s.lock.tok, map[bool]string{true: "+", false: "-"}[s.lock.plus], s.lock.exp-epoch)
	}
	if s.fence.set {
		fmt.Fprintf(&b, " F=%s%d", map[bool]string{true: "w"}[s.fence.w], s.fence.end-epoch)
	}
	if len(s.queue.toks) > 0 {
		fmt.Fprintf(&b, " Q=%v", s.queue.toks)
	}
	for _, e := range s.seen.by {
		fmt.Fprintf(&b, " W[%d]=%d", e.tok, e.at-epoch)
	}
	return b.String()
}
