package model

import "strconv"

const (
	longestReassert = 2 * second
	pollForeign     = 100 * ms
	missingGrace    = 100 * ms // how long a message may come after the reply that told the same
	unsureGrace     = 10 * ms  // how long a reply may come after the message
	cleanupLimit    = 400 * ms
	longestPause    = 500 * ms
)

// proc is a client process: an engine with one backend, both in small. It does one thing at a time, but what it has abandoned
// goes on in the background.
type proc struct {
	sim     *sim
	id      int
	ppm     int64 // how fast its clock runs
	alive   bool
	stopped bool
	inbox   []func() // what waits for SIGCONT
	resumed int64

	jobs int
	cur  *acq
	sub  *subscription // the one in use, acknowledged or not
	next *subscription // the one that is to replace it

	lastFence int64 // of the hand-overs heard of
	reuse     token
}

func (s *sim) newProc(jobs int) *proc {
	p := &proc{sim: s, id: len(s.procs) + 1, ppm: s.between(990_100, 1_009_900), alive: true, jobs: jobs}
	s.procs = append(s.procs, p)
	return p
}

func (p *proc) name() string { return "p" + strconv.Itoa(p.id) }

// local is the time by the process' own monotonic clock.
func (p *proc) local() int64 { return p.sim.now * p.ppm / 1_000_000 }

// at runs do at a true time, if the process lives then; while it is stopped, do waits.
func (p *proc) at(t int64, do func()) { p.sim.schedule(t, func() { p.deliver(do) }) }

// after runs do when d has passed by the process' clock.
func (p *proc) after(d int64, do func()) {
	p.at(p.sim.now+max(0, d)*1_000_000/p.ppm+1, do)
}

func (p *proc) deliver(do func()) {
	switch {
	case !p.alive:
	case p.stopped:
		p.inbox = append(p.inbox, do)
	default:
		do()
	}
}

// resume is SIGCONT. What has piled up is done in any order.
func (p *proc) resume() {
	p.stopped, p.resumed = false, p.sim.now
	if p.sim.tracing && p.alive {
		p.sim.logf(p.name(), "goes on")
	}
	todo := p.inbox
	p.inbox = nil
	p.sim.rng.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
	for _, do := range todo {
		p.at(p.sim.now, do)
	}
}

// nextJob is the application: it wants the lock, again.
func (p *proc) nextJob() {
	if p.jobs == 0 {
		p.cur = nil
		return
	}
	p.jobs--
	s := p.sim
	a := &acq{p: p, ttl: s.w.ttl, wait: true, renew: true}
	if s.w.mixedTTL && p.id%2 == 0 {
		a.ttl *= 2
	}
	a.tok = p.newToken(a.ttl)
	a.hold = s.between(ms, s.w.jobHold)
	if !s.w.tight && s.chance(20) {
		a.hold = s.between(ms, 2*a.ttl)
	}
	if s.w.leaves {
		a.wait = !s.chance(20)
		a.renew = !s.chance(20) && (!s.w.plain || !s.chance(50))
		a.forgets = s.chance(20)
		if a.wait && s.chance(30) {
			a.patience = s.between(ms, 2*a.ttl)
			if s.chance(50) {
				a.patience = s.between(ms, a.ttl/20) // while the acquire is in flight
			}
		}
	}
	p.cur = a
	a.begin()
}

// later goes on with the next job after some time.
func (p *proc) later() {
	s := p.sim
	pause := s.w.jobHold * 2
	if !s.w.tight && s.chance(40) {
		pause = s.w.faultsEnd / 2
	}
	if s.w.farBack {
		pause = 4 * s.w.ttl
	}
	p.after(s.between(0, pause), p.nextJob)
}

func (p *proc) newToken(ttl int64) token {
	s := p.sim
	if tok := p.reuse; tok != noToken && !s.rules.NewTokenAfterRelease {
		p.reuse = noToken
		return tok
	}
	s.tokens = append(s.tokens, tokenInfo{proc: p, ttl: ttl})
	return token(len(s.tokens) - 1)
}

// subscribe opens a subscription in place of the one there is, which is closed when the other one works.
func (p *proc) subscribe() {
	if p.next != nil {
		return
	}
	s := p.sim
	b := &subscription{proc: p}
	p.next = b
	s.subs = append(s.subs, b)
	if s.tracing {
		s.logf(p.name(), "sends SUBSCRIBE")
	}
	if !s.loses(false) {
		s.schedule(s.now+s.delay(false), func() {
			if s.down {
				return
			}
			b.registered = p.alive
			s.schedule(s.now+s.delay(false), func() { p.deliver(func() { p.subscribed(b) }) })
		})
	}
	p.after(300*ms, func() {
		if p.next == b {
			p.next = nil
			s.schedule(s.now+ms, func() { b.registered = false })
			p.subscribe()
		}
	})
}

// subscribed is called when SUBSCRIBE was acknowledged.
func (p *proc) subscribed(b *subscription) {
	if p.next != b {
		return
	}
	s := p.sim
	if s.tracing {
		s.logf(p.name(), "is subscribed")
	}
	again := p.sub != nil
	if old := p.sub; old != nil {
		old.acked = false
		s.schedule(s.now+ms, func() { old.registered = false })
	}
	p.sub, p.next = b, nil
	b.acked, b.ackAt, b.since = true, s.now, p.local()
	if a := p.cur; a != nil && a.state == waiting {
		switch {
		case !a.entered:
			a.enqueue()
		case again && s.rules.ReassertOnReconnect:
			a.reassert()
		}
	}
}

// subscriptionLost is called when the client notices that its connection has ended.
func (p *proc) subscriptionLost(b *subscription) {
	if p.sim.tracing {
		p.sim.logf(p.name(), "notices that its subscription is gone")
	}
	b.acked = false
	if p.next == b {
		p.next = nil
	}
	if p.sub == nil || !p.sub.acked {
		p.subscribe()
	}
}

// message is called for a hand-over that was published to this process.
func (p *proc) message(tok token, fence int64) {
	if p.sim.tracing {
		p.sim.logf(p.name(), "hears that %d was given f=%d", tok, fence)
	}
	p.lastFence = max(p.lastFence, fence)
	if a := p.cur; a != nil && a.tok == tok && a.state == waiting {
		a.handedOver(fence)
		return
	}
	p.unwanted(tok)
}

// knows reports whether the engine may still use a token: it waits for it, holds it, or will try it again. Only then is a cancel that is
// on its way no danger.
func (p *proc) knows(tok token) bool {
	a := p.cur
	if a == nil || a.tok != tok {
		return false
	}
	switch a.state {
	case waiting:
		return true
	case held:
		return p.sim.rules.CancelSparesHeld
	case pausing, trying:
		return p.sim.rules.CancelSparesRetry
	}
	return false
}

// unwanted is called when something was heard of a token for which no call waits.
func (p *proc) unwanted(tok token) {
	if !p.knows(tok) && p.sim.rules.CancelUnknown {
		p.sim.seen[unknownCancelled]++
		p.cancel(tok, 3)
	}
}

// missed is called some time after a grant was found: the subscription is replaced if it still has not told of it. The waiter was queued at some time after
// heard: if the subscription is younger, the message may have gone to the one before.
func (p *proc) missed(tok token, r reply, heard int64) {
	rules := p.sim.rules
	if p.lastFence >= r.fence || p.sub == nil || !p.sub.acked || !rules.ReconnectOnMissing || heard < p.sub.since && rules.BlameTheRightOne {
		return
	}
	p.sim.seen[missedMessages]++
	p.sim.o.blamed(p.sim, tok, r)
	p.subscribe()
}

func (p *proc) cancel(tok token, tries int) {
	p.call(request{op: opCancel, tok: tok}, cleanupLimit, func(_ reply, ok bool) {
		if !ok && tries > 1 {
			p.cancel(tok, tries-1)
		}
	}, func(reply) {})
}

// clean releases a token until that was confirmed or it must have expired: whatever is under way of it has by the local time until.
func (a *acq) clean(until int64) {
	a.p.sim.o.left(a.p.sim, a.tok, until)
	a.sweep(until, 10*ms)
}

func (a *acq) sweep(until, pause int64) {
	p, rules := a.p, a.p.sim.rules
	p.call(request{op: opCancel, tok: a.tok}, cleanupLimit, func(r reply, ok bool) {
		removed := ok && r.kind == rReleased && (a.open == 0 || a.adds == 1 || !rules.CleanupCountsAll)
		if removed || p.local() >= until || ok && !rules.CleanupRepeats {
			return
		}
		p.after(pause, func() { a.sweep(until, min(2*pause, longestPause)) })
	}, func(reply) {})
}
