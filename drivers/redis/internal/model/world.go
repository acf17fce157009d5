package model

import (
	"fmt"
	"math/rand/v2"
)

// world is what a seed draws: how many clients there are and which faults happen to them.
type world struct {
	kind      string
	clients   int
	ttl       int64 // T; half of the clients may use 2 T
	mixedTTL  bool
	cluster   bool
	keep      int64
	skips     int
	jobHold   int64 // most holds are shorter
	faultsEnd int64
	horizon   int64

	net         bool
	slowPercent int
	lossPercent int
	maxDelay    int64

	acquiresOnly bool // the network hurts nothing else

	subs     bool // subscriptions are cut, stall, fall silent
	procs    bool // processes crash and stop
	loses    bool // the server loses its data, or comes back with an older snapshot
	stalls   bool // it stands still for a while
	forward  bool // its clock is stepped forward
	backward bool // or back
	farBack  bool // once, by more than F is kept for
	breaks   bool // an operator breaks holds
	foreign  bool // a client takes the lock by plain SET NX
	plain    bool // most leases are not renewed
	leaves   bool // leases run out, waiters give up, some only try

	tight bool // nothing happens at all: requests can be counted
}

func (w *world) calm() bool {
	return !w.net && !w.subs && !w.procs && !w.loses && !w.stalls && !w.forward && !w.backward
}

// exclusion tells whether exclusion is promised in this world.
func (w *world) exclusion() bool { return !w.loses && !w.forward }

// fencesRise tells whether rising fences are promised.
func (w *world) fencesRise() bool { return !w.loses || !w.backward }

// settled is when nothing of the faults is under way any more.
func (w *world) settled() int64 {
	if w.calm() {
		return 0
	}
	return w.faultsEnd + w.maxDelay + 10*ms
}

func (w *world) String() string {
	return fmt.Sprintf("%s: %d clients, T=%dms cluster=%v keep=%ds skips=%d net=%v subs=%v procs=%v loses=%v stalls=%v forward=%v backward=%v breaks=%v foreign=%v leaves=%v",
		w.kind, w.clients, w.ttl/ms, w.cluster, w.keep/second, w.skips, w.net, w.subs, w.procs, w.loses, w.stalls, w.forward, w.backward, w.breaks, w.foreign, w.leaves)
}

// kinds of worlds, in the order of the seed's remainder.
var kinds = [...]string{"calm", "tight", "net", "subs", "procs", "server", "foreign", "mix", "stale", "abandoned"}

// drawWorld draws a world of the kind that the seed's remainder says.
func drawWorld(seed uint64, rng *rand.Rand) world {
	half := func() bool { return rng.IntN(2) == 0 }
	w := world{clients: 3 + rng.IntN(4), ttl: []int64{second, 2 * second, 6 * second}[rng.IntN(3)], keep: 300 * second, skips: maxSkips}
	w.jobHold = w.ttl / 20
	w.cluster, w.mixedTTL, w.leaves, w.breaks = half(), rng.IntN(4) == 0, half(), rng.IntN(4) == 0
	w.kind = kinds[seed%uint64(len(kinds))]
	switch w.kind {
	case "calm":
	case "tight":
		w.tight = true
		w.mixedTTL, w.leaves, w.breaks = false, false, false
		w.ttl, w.jobHold = 6*second, 5*ms
	case "net":
		w.net = true
	case "subs":
		w.subs = true
	case "procs":
		w.procs, w.net = true, half()
	case "server":
		w.loses, w.forward, w.backward, w.subs, w.stalls = half(), rng.IntN(3) == 0, half(), half(), half()
		w.farBack = w.backward && !w.loses && !w.forward && half()
	case "foreign":
		w.foreign = true
		w.net, w.subs = rng.IntN(3) == 0, rng.IntN(3) == 0
	case "stale": // hand-overs arrive late, and holds are not renewed
		w.net, w.subs, w.leaves, w.plain, w.breaks = true, true, true, true, half()
		w.clients, w.jobHold = 3+rng.IntN(2), w.ttl*3/2
	case "abandoned": // hardly anybody is in the way: what was abandoned gets the lock
		w.net, w.acquiresOnly, w.leaves, w.clients = true, true, true, 1+rng.IntN(3)
	case "mix":
		w.net, w.subs, w.procs, w.foreign, w.backward = half(), half(), half(), rng.IntN(4) == 0, rng.IntN(4) == 0
		w.loses, w.stalls = rng.IntN(4) == 0, rng.IntN(4) == 0
	}
	if !w.tight && rng.IntN(4) == 0 {
		w.skips = 1 + rng.IntN(2)
	}
	if !w.tight && !w.backward && rng.IntN(4) == 0 {
		w.keep = w.ttl // five minutes pass quickly here
	}
	if w.farBack {
		w.keep, w.clients = w.ttl/4, 1+rng.IntN(2)
	}
	w.slowPercent, w.lossPercent = 2+rng.IntN(40), rng.IntN(25)
	w.faultsEnd = int64(1+rng.IntN(3)) * w.ttl
	if w.net || w.subs || w.stalls {
		w.maxDelay = w.ttl / 4
		if w.kind != "abandoned" && half() {
			w.maxDelay += rng.Int64N(w.ttl * 5 / 2)
		}
	}
	switch w.kind {
	case "abandoned":
		w.slowPercent, w.lossPercent = 40, 25
	case "stale":
		w.slowPercent, w.lossPercent, w.faultsEnd = 30, 30, 5*w.ttl
	}
	w.horizon = w.settled() + 60*w.ttl
	return w
}

// planFaults draws when the faults happen.
func (s *sim) planFaults() {
	w := &s.w
	at := func(do func()) { s.schedule(s.between(0, w.faultsEnd), do) }
	times := func(n int, do func()) {
		for range s.rng.IntN(n + 1) {
			at(do)
		}
	}
	if w.subs {
		times(6, s.hurtSubscription)
	}
	if w.procs {
		times(4, s.crashProc)
		times(6, s.stopProc)
	}
	if w.loses {
		times(2, s.loseData)
		times(20, func() { s.snapshot = s.store.clone() })
	}
	if w.stalls {
		times(2, func() { s.stalled = s.now + s.between(0, w.maxDelay) })
	}
	if w.forward {
		times(2, func() { s.stepClock(s.between(0, w.ttl)) })
	}
	if w.farBack {
		at(s.stepFarBack)
	} else if w.backward {
		times(2, func() { s.stepClock(-s.between(0, w.ttl)) })
	}
	if w.breaks {
		times(3, s.operator)
	}
}

func (s *sim) stepClock(by int64) {
	s.wallAhead += by
	if by < 0 {
		s.o.steppedBack -= by
	}
	if s.tracing {
		s.logf("clock", "stepped by %d", by)
	}
}

// stepFarBack sets the clock back by more than F is kept for, if F is there. (When it is not, fences may become lower: that is a limit of the protocol.)
func (s *sim) stepFarBack() {
	if s.store.expire(s.wall()); s.store.fence.set {
		s.stepClock(-s.between(2*s.w.ttl, 6*s.w.ttl))
	}
}

func (s *sim) anyProc() *proc {
	p := s.procs[s.rng.IntN(len(s.procs))]
	if !p.alive {
		return nil
	}
	return p
}

// hurtSubscription cuts a subscription, stalls it, or makes it silent for ever.
func (s *sim) hurtSubscription() {
	p := s.anyProc()
	if p == nil || p.sub == nil {
		return
	}
	b := p.sub
	how := s.rng.IntN(3)
	if s.w.plain {
		how = 1
	}
	switch how {
	case 0:
		if s.tracing {
			s.logf(p.name(), "subscription cut")
		}
		s.cut(b)
	case 1:
		b.stalled = max(b.stalled, s.now+s.between(0, s.w.maxDelay))
		if s.tracing {
			s.logf(p.name(), "subscription stalls until %d", b.stalled)
		}
	default:
		b.silent = true
		if s.tracing {
			s.logf(p.name(), "subscription is silent")
		}
	}
}

// cut ends a subscription; server and client notice at different times.
func (s *sim) cut(b *subscription) {
	b.silent = true
	s.schedule(s.now+s.between(0, 200*ms), func() { b.registered = false })
	s.schedule(s.now+s.between(0, 200*ms), func() { b.proc.deliver(func() { b.proc.subscriptionLost(b) }) })
}

func (s *sim) crashProc() {
	p := s.anyProc()
	if p == nil {
		return
	}
	if s.tracing {
		s.logf(p.name(), "crashes")
	}
	p.alive = false
	until := s.now + ms
	if s.chance(30) {
		until = s.now + s.between(0, s.w.ttl) // the server still believes in the connection
	}
	for _, b := range s.subs {
		if b.proc == p {
			s.schedule(until, func() { b.registered, b.acked = false, false })
		}
	}
	if s.chance(70) {
		q := s.newProc(max(1, p.jobs))
		q.at(s.now+s.between(ms, s.w.ttl), q.nextJob)
	}
}

func (s *sim) stopProc() {
	p := s.anyProc()
	if p == nil || p.stopped {
		return
	}
	until := s.now + s.between(0, 2*s.w.ttl)
	if s.tracing {
		s.logf(p.name(), "stops until %d", until)
	}
	p.stopped = true
	s.schedule(min(until, s.w.faultsEnd), func() { p.resume() })
}

// loseData restarts the server without its data, or with what a replica had.
func (s *sim) loseData() {
	if s.down {
		return
	}
	if s.chance(50) {
		s.store.clear()
	} else {
		s.store = s.snapshot.clone()
	}
	if s.tracing {
		s.logf("server", "comes back with other data")
	}
	s.o.lostData(s)
	s.down = true
	s.schedule(s.now+s.between(ms, 100*ms), func() { s.down = false })
	for _, b := range s.subs {
		if b.registered {
			b.registered, b.silent = false, true
			s.schedule(s.now+s.between(0, 50*ms), func() { b.proc.deliver(func() { b.proc.subscriptionLost(b) }) })
		}
	}
}

// operator breaks the holder that he was shown a moment ago.
func (s *sim) operator() {
	s.store.expire(s.wall())
	if s.store.lock.tok <= 0 || !s.store.fence.set {
		return
	}
	shown := s.store.holderFence()
	s.schedule(s.now+s.between(0, 50*ms), func() {
		if !s.down {
			s.exec(request{op: opBreak, fence: shown})
		}
	})
}

// foreignClient takes the lock now and then by SET NX and releases it without telling anybody.
func (s *sim) foreignClient() {
	ttl := s.w.ttl
	if s.chance(30) && !s.w.loses { // a replica could bring it back for ever
		ttl = 0
	}
	turns := 1 + s.rng.IntN(4)
	var lock func()
	lock = func() {
		if turns == 0 || s.now > s.w.faultsEnd {
			return
		}
		if s.down || s.exec(request{op: opForeignLock, ttl: ttl}).kind != rGranted {
			s.schedule(s.now+s.between(ms, 50*ms), lock)
			return
		}
		turns--
		s.o.foreignUntil = s.now + s.between(ms, s.w.ttl*9/10)
		s.schedule(s.o.foreignUntil, func() {
			s.exec(request{op: opForeignUnlock})
			s.schedule(s.now+s.between(ms, s.w.ttl), lock)
		})
	}
	s.schedule(s.between(0, s.w.ttl), lock)
}
