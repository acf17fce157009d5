package model

// grant makes a hold of a grant, unless it is too late for that.
func (a *acq) grant(fence, start int64) {
	p, rules := a.p, a.p.sim.rules
	if !rules.StartAtSend {
		start = p.local()
	}
	a.fence, a.deadline = fence, start+a.ttl
	if rules.Margin {
		a.deadline -= margin(a.ttl)
	}
	if p.local() >= a.deadline {
		a.tooLate()
		return
	}
	a.state, a.kept, a.keptTTL = held, start, a.ttl
	p.sim.o.localGrant(p.sim, a)
	if a.renew {
		p.after(start+a.ttl/3-p.local(), func() { a.renewal(a.ttl) })
	}
	a.watch()
	a.work()
}

// tooLate starts again with another token; the old one leaves.
func (a *acq) tooLate() {
	p := a.p
	if p.sim.tracing {
		p.sim.logf(p.name(), "%d with f=%d is too late", a.tok, a.fence)
	}
	a.state = over
	p.sim.seen[tooLates]++
	p.sim.o.left(p.sim, a.tok, p.local()+a.ttl)
	if p.sim.rules.CancelPastD {
		a.clean(p.local() + a.ttl)
	}
	b := &acq{p: p, ttl: a.ttl, wait: a.wait, renew: a.renew, forgets: a.forgets, hold: a.hold}
	b.tok = p.newToken(b.ttl)
	p.cur = b
	b.begin()
}

// watch ends the hold at D.
func (a *acq) watch() {
	d := a.deadline
	a.p.after(d-a.p.local(), func() {
		if a.state == held && a.deadline == d {
			a.lose()
		}
	})
}

// work is what the application does under the lock.
func (a *acq) work() {
	p := a.p
	a.turn++
	n := a.turn
	if a.renew && !p.sim.w.tight && p.sim.chance(25) {
		p.sim.o.extended = true
		p.after(a.hold/2, func() { a.renewal(2 * a.ttl) }) // Extend
	}
	p.after(a.hold, func() {
		if a.state == held && a.turn == n && (!a.forgets || a.renew) {
			a.unlock()
		}
	})
}

func (a *acq) believes() bool { return a.state == held && a.p.local() < a.deadline }

// renewal keeps the hold alive.
func (a *acq) renewal(ttl int64) {
	p := a.p
	if !a.believes() {
		return
	}
	sent := p.local()
	a.lastSent = sent
	o := opRenew
	if p.sim.rules.KeepFenceWhileHeld && (!p.sim.w.cluster || ttl > a.keptTTL || sent-a.kept >= p.sim.w.keep/2) {
		o = opRenewKeep
	}
	p.call(request{op: o, tok: a.tok, ttl: ttl, fence: a.fence - int64(a.handed)}, min(a.ttl/6, (a.deadline-sent)/3), func(r reply, ok bool) {
		switch {
		case a.state != held:
		case !ok:
			p.after(p.sim.between(ms, a.ttl/20), func() { a.renewal(ttl) })
		case r.kind != rRenewed:
			a.lose()
		default:
			a.renewed(sent, ttl, o, r)
		}
	}, func(reply) {})
}

func (a *acq) renewed(sent, ttl int64, o op, r reply) {
	asked := ttl
	if !a.p.sim.rules.StartAtSend {
		sent = a.p.local()
	}
	if o == opRenewKeep {
		a.kept, a.keptTTL = sent, ttl
	}
	d := sent + ttl
	if !a.p.sim.rules.DeadlineFromAsked {
		d = sent + max(ttl, r.pttl)
	}
	a.p.sim.o.renewed(a.p.sim, a, d, sent+asked)
	if a.p.sim.rules.Margin {
		d -= margin(ttl)
	}
	if d > a.deadline {
		a.deadline = d
		a.watch()
	}
	if ttl == a.ttl {
		a.p.after(sent+ttl/3-a.p.local(), func() { a.renewal(ttl) })
	}
}

// lose is the end of a hold that was not unlocked. Some applications notice.
func (a *acq) lose() {
	p := a.p
	if p.sim.tracing {
		p.sim.logf(p.name(), "has lost %d", a.tok)
	}
	a.state = over
	p.sim.seen[holdsLost]++
	if p.sim.tokens[a.tok].forgotten = a.forgets; !a.forgets {
		a.clean(a.lastSent + 2*a.ttl)
	}
	p.later()
}

// unlock passes the hold on locally, or releases it.
func (a *acq) unlock() {
	p := a.p
	if !a.believes() {
		a.lose()
		return
	}
	if p.jobs > 0 && a.handed < fenceRun-1 && a.deadline-p.local() >= a.ttl/2 && !p.sim.w.tight && p.sim.chance(20) {
		p.jobs--
		a.handed++
		p.sim.seen[localHandovers]++
		a.fence++
		p.sim.o.localGrant(p.sim, a)
		a.work()
		return
	}
	a.state = over
	a.release(2)
	p.later()
}

// release takes the token of a hold out of the store.
func (a *acq) release(tries int) {
	p, o := a.p, opCancel
	if p.sim.w.cluster && tries == 2 {
		o = opReleaseOne
	}
	p.call(request{op: o, tok: a.tok}, second, func(r reply, ok bool) {
		switch {
		case ok && r.kind == rMarked:
			a.release(1)
		case !ok && tries > 1:
			a.release(tries - 1)
		case !ok || a.open > 0:
			a.clean(a.lastSent + 2*a.ttl)
		}
	}, func(reply) {})
}
