package model

type state int

const (
	trying  state = iota // an acquire is under way
	waiting              // Wait is under way
	pausing              // between two attempts with the same token
	held
	over
)

// ack is an enqueue or re-assertion that was answered "queued".
type ack struct {
	sent   int64
	stored int64 // F
}

// acq is one acquisition and the hold that comes of it. Its times are the process' own.
type acq struct {
	p     *proc
	tok   token
	ttl   int64
	state state

	wait     bool
	renew    bool
	forgets  bool // the lease is not released but runs out
	patience int64
	hold     int64

	attempts int
	adds     int   // acquires and enqueues that were sent
	open     int   // those that were not answered
	lastSent int64 // acquire, enqueue, re-assertion or renewal

	// One Wait call.
	entered bool // the enqueue was sent
	since   int64
	acks    []ack
	told    int64 // the highest F that came with "not you"
	toldAt  int64
	pending int64 // a hand-over that came before the reply it counts from
	free    int64 // true time since when it knows that nobody has the lock; 0: it does not
	timer   int

	// The hold.
	fence    int64
	deadline int64 // D
	kept     int64 // when F's expiry was moved last
	keptTTL  int64 // and for which TTL
	handed   int   // local hand-overs
	turn     int
}

func margin(ttl int64) int64 { return max(2*ms, ttl/100) }

func (a *acq) interval() int64 { return min(a.ttl/3, longestReassert) }

// begin starts the acquisition. The caller's context may end at any time.
func (a *acq) begin() {
	if a.patience > 0 {
		a.p.after(a.patience, func() {
			if a.state != held && a.state != over {
				a.giveUp()
			}
		})
	}
	a.attempt()
}

// attempt is one call of the backend: Wait or Acquire.
func (a *acq) attempt() {
	p := a.p
	a.attempts++
	if !a.wait {
		a.state = trying
		a.try()
		return
	}
	a.state, a.entered, a.acks, a.told, a.pending, a.free = waiting, false, nil, 0, 0, 0
	ready := p.sub != nil && p.sub.acked
	if !ready {
		p.subscribe()
	}
	if ready || !p.sim.rules.SubscribeFirst {
		a.enqueue()
	}
}

// giveUp is the end of the caller's context.
func (a *acq) giveUp() {
	if a.p.sim.tracing {
		a.p.sim.logf(a.p.name(), "gives up %d", a.tok)
	}
	a.quit(a.adds > 0)
	a.p.later()
}

// quit ends the acquisition, and the token with it.
func (a *acq) quit(unsure bool) {
	a.state = over
	a.p.reuse = a.tok
	if unsure {
		a.clean(a.p.local() + a.ttl)
	}
}

// again pauses before the next attempt with the same token.
func (a *acq) again() {
	a.state = pausing
	a.p.after(a.p.sim.between(25*ms, 200*ms), func() {
		if a.state == pausing {
			a.attempt()
		}
	})
}

func (a *acq) try() {
	p, n := a.p, a.attempts
	sent := p.local()
	a.lastSent = sent
	a.add()
	p.call(request{op: opAcquire, tok: a.tok, ttl: a.ttl}, a.ttl/3, func(r reply, ok bool) {
		a.settle(ok)
		switch {
		case a.state != trying || a.attempts != n:
			if ok {
				a.lateReply(r)
			}
		case !ok && n == 1:
			a.again()
		case !ok:
			a.giveUp()
		case r.kind == rHeld:
			a.quit(a.open > 0)
			p.later()
		default:
			a.grant(r.fence, sent)
		}
	}, func(r reply) {
		a.settle(true)
		a.lateReply(r)
	})
}

// add and settle count the requests that may put the token into the store.
func (a *acq) add() {
	a.adds++
	a.open++
}

func (a *acq) settle(answered bool) {
	if answered {
		a.open--
	}
}

// lateReply is called for a reply that no call waits for any more.
func (a *acq) lateReply(r reply) {
	if r.kind == rGranted || r.kind == rHolder || r.kind == rQueued {
		a.p.unwanted(a.tok)
	}
}

func (a *acq) enqueue() {
	a.entered = true
	a.ask(opEnqueue)
}

func (a *acq) reassert() { a.ask(opReassert) }

// ask sends an enqueue or a re-assertion on behalf of the Wait call that is under way.
func (a *acq) ask(o op) {
	p, n := a.p, a.attempts
	sent := p.local()
	a.lastSent = sent
	first := o == opEnqueue && len(a.acks) == 0
	a.arm(a.interval())
	if o == opEnqueue {
		a.add()
	}
	p.call(request{op: o, tok: a.tok, ttl: a.ttl}, a.ttl/3, func(r reply, ok bool) {
		a.settle(ok && o == opEnqueue)
		switch {
		case a.state != waiting || a.attempts != n:
			if ok {
				a.lateReply(r)
			}
		case !ok && first && len(a.acks) == 0:
			a.again() // Wait returns the error; the engine calls it again
		case ok:
			a.answered(r, sent)
		}
	}, func(r reply) {
		a.settle(o == opEnqueue)
		if a.state == waiting && a.attempts == n {
			a.answered(r, sent)
		} else {
			a.lateReply(r)
		}
	})
}

// answered takes the reply to an enqueue or a re-assertion.
func (a *acq) answered(r reply, sent int64) {
	p, rules := a.p, a.p.sim.rules
	p.sim.o.heard(p.sim, a.tok, r)
	switch r.kind {
	case rGranted, rHolder:
		if r.fence <= a.told && rules.DropStale && (sent <= a.toldAt || !rules.FreshReplyWins) {
			p.sim.seen[staleDropped]++
			return
		}
		heard := a.heard()
		a.grant(r.fence, sent)
		if r.kind == rHolder || !rules.TakenNeedsNoMessage {
			p.after(missingGrace, func() { p.missed(a.tok, r, heard) })
		}
	case rQueued:
		if a.since == 0 {
			a.since = p.sim.now
		}
		a.acks = append(a.acks, ack{sent, r.stored})
		a.hear(r.stored)
		if a.free = 0; r.pttl == 0 {
			a.free = p.sim.now
		}
		a.plan(r)
		if a.pending > 0 {
			a.handedOver(a.pending)
		}
	case rGone:
		p.sim.seen[goneRequeued]++
		a.hear(r.stored)
		a.enqueue()
	}
}

// heard is when the latest request was sent that was answered "queued".
func (a *acq) heard() int64 {
	if len(a.acks) == 0 {
		return 0
	}
	return a.acks[len(a.acks)-1].sent
}

func (a *acq) hear(stored int64) {
	a.told, a.toldAt = max(a.told, stored), a.p.local()
}

// plan decides when to ask again.
func (a *acq) plan(r reply) {
	rules := a.p.sim.rules
	next := a.interval()
	if !rules.ReassertPeriodic {
		next = 1 << 40
	}
	switch {
	case r.pttl == 0:
		if rules.AskWhenFree {
			next = 0
		}
	case r.foreign || r.pttl < 0:
		if r.pos == 0 && rules.HeadPolls {
			next = min(next, pollForeign)
		}
	case rules.PTTLTimer:
		next = min(next, r.pttl+ms+2*ms*int64(r.pos))
	}
	a.arm(next)
}

// arm makes the waiter ask again after d, unless something else comes first.
func (a *acq) arm(d int64) {
	a.timer++
	n := a.timer
	a.p.after(d, func() {
		if a.timer == n && a.state == waiting && a.entered {
			a.reassert()
		}
	})
}

// handedOver takes a hand-over message.
func (a *acq) handedOver(fence int64) {
	rules := a.p.sim.rules
	if fence == 0 { // only without direct hand-over
		a.reassert()
		return
	}
	if fence <= a.told && rules.DropStale && rules.StartNotLastAcked {
		a.p.sim.seen[staleDropped]++
		a.pending = 0
		return
	}
	start, ok := a.startOf(fence)
	if !ok {
		a.p.sim.seen[earlyMessages]++
		if a.pending = fence; rules.AskWhenUnsure {
			a.p.after(unsureGrace, func() {
				if a.state == waiting && a.pending == fence {
					a.reassert()
				}
			})
		}
		return
	}
	a.grant(fence, start)
}

// startOf returns the instant from which a hand-over counts.
func (a *acq) startOf(fence int64) (start int64, ok bool) {
	rules := a.p.sim.rules
	if !rules.StartNotLastSent {
		return a.lastSent, true
	}
	for _, k := range a.acks {
		if k.sent >= start && (k.stored < fence || !rules.StartNotLastAcked) {
			start, ok = k.sent, true
		}
	}
	return start, ok
}
