package model

import "slices"

// run executes one script.
func (s *store) run(now int64, r request) reply {
	s.expire(now)
	switch r.op {
	case opAcquire:
		return s.acquire(now, r, false)
	case opEnqueue:
		return s.acquire(now, r, true)
	case opReassert:
		return s.reassert(now, r)
	case opRenew:
		return s.renew(now, r, false)
	case opRenewKeep:
		return s.renew(now, r, true)
	case opReleaseOne:
		return s.releaseOne(r)
	case opCancel:
		return s.cancel(now, r)
	case opBreak:
		return s.breakHold(now, r)
	case opForeignLock:
		return s.foreignLock(now, r)
	default:
		return s.foreignUnlock()
	}
}

// acquire is acquire.lua; enqueue tells whether a lock that is not to be had is waited for.
func (s *store) acquire(now int64, r request, enqueue bool) reply {
	if s.lock.tok == noToken { // SET L … NX PX ttl succeeded
		old := s.fence // SET F <end> PX … GET
		if !old.set || !old.w || !s.rules.QueueNotOvertaken {
			return s.take(now, r.tok, r.ttl, "acquire")
		}
		// Somebody queues: what SET wrote is taken back, and the lock goes to the first live waiter.
		if enqueue {
			s.enqueue(now, r)
		}
		s.handover(now, r.tok, "acquire")
		if s.lock.tok == noToken && len(s.queue.toks) == 0 {
			return s.take(now, r.tok, r.ttl, "acquire")
		}
		if s.lock.tok == r.tok {
			return reply{kind: rGranted, fence: s.holderFence()}
		}
		return s.waiting(now, r.tok, enqueue)
	}
	if s.lock.tok == r.tok {
		if s.rules.RefreshOnSameToken {
			s.refresh(now, r.ttl, true)
		}
		return reply{kind: rHolder, fence: s.holderFence()}
	}
	if enqueue {
		s.enqueue(now, r)
	}
	return s.waiting(now, r.tok, enqueue)
}

// waiting is the reply to a token that does not hold the lock.
func (s *store) waiting(now int64, tok token, queued bool) reply {
	a := reply{kind: rHeld, foreign: s.lock.tok == foreign}
	if s.fence.set {
		a.stored = s.fence.end
	}
	switch {
	case s.lock.tok == noToken:
		a.pttl = 0
	case s.lock.exp == 0:
		a.pttl = -1
	default:
		a.pttl = s.lock.exp - now
	}
	if queued {
		if a.pos = slices.Index(s.queue.toks, tok); a.pos >= 0 {
			a.kind = rQueued
		} else {
			a.kind, a.pos = rGone, 0
		}
	}
	return a
}

// holderFence is the first fence of the run that F ends: the holder's grant was the last one.
func (s *store) holderFence() int64 {
	if !s.rules.FenceRunEnd {
		return s.fence.end
	}
	return s.fence.end - fenceRun + 1
}

// nextFence returns the first of the next run and what F stores for it.
func (s *store) nextFence(now int64) (first, end int64) {
	first = 1
	if s.rules.FenceFromTime {
		first = now
	}
	if s.fence.set && s.rules.FenceFromStored {
		first = max(first, s.fence.end+1)
	}
	if !s.rules.FenceRunEnd {
		return first, first
	}
	return first, first + fenceRun - 1
}

// take gives a free lock to the caller. It does not look at the queue: F said that there is none.
func (s *store) take(now int64, tok token, ttl int64, by string) reply {
	first, end := s.nextFence(now)
	s.give(now, tok, ttl, end, false, by)
	return reply{kind: rGranted, fence: first}
}

// give writes L and F for a grant; waits tells whether somebody is left in the queue.
func (s *store) give(now int64, tok token, ttl, end int64, waits bool, by string) {
	s.lock.tok, s.lock.exp, s.lock.plus = tok, now+ttl, waits && s.rules.MarkAfterHandover
	exp := s.keptUntil(now, end, ttl)
	if waits {
		exp = max(exp, s.fence.exp) // w must not go before Q does
	}
	s.fence.set, s.fence.end, s.fence.w, s.fence.exp = true, end, waits, exp
	s.granted(tok, s.holderFence(), by)
}

// refresh sets the holder's TTL again, and F's if keep is set: F has to outlive L.
func (s *store) refresh(now, ttl int64, keep bool) {
	if exp := now + ttl; exp > s.lock.exp && s.lock.exp != 0 || !s.rules.NeverShorten {
		s.lock.exp = exp
	}
	if keep && s.fence.set {
		s.fence.exp = max(s.fence.exp, s.keptUntil(now, s.fence.end, ttl))
	}
}

// keptUntil is when a fence may be forgotten that is the last of a run: when the clock has passed it, so that the next one, by the clock, is greater.
func (s *store) keptUntil(now, end, ttl int64) int64 {
	if s.rules.KeepFenceAhead {
		now = max(now, end)
	}
	return now + ttl + s.keep
}

// enqueue puts a token at the end of the queue, unless it is in it, and tells holder and newcomers that somebody waits.
func (s *store) enqueue(now int64, r request) {
	if !slices.Contains(s.queue.toks, r.tok) || !s.rules.EnqueueOnce {
		s.queue.toks = append(s.queue.toks, r.tok)
	}
	s.sawWaiter(now, r)
}

// sawWaiter notes that a queued token was heard of, and mends what says that somebody waits.
func (s *store) sawWaiter(now int64, r request) {
	if s.rules.KeysExpire {
		s.queue.exp = max(s.queue.exp, now+r.ttl+s.keep)
		s.seen.exp = max(s.seen.exp, now+r.ttl+s.keep)
	} else {
		s.queue.exp, s.seen.exp = 0, 0
	}
	e := lastSeen{r.tok, now, r.ttl, r.proc}
	if i := slices.IndexFunc(s.seen.by, func(o lastSeen) bool { return o.tok == r.tok }); i >= 0 {
		s.seen.by[i] = e
	} else {
		s.seen.by = append(s.seen.by, e)
	}
	if s.lock.tok > 0 {
		s.lock.plus = true
	}
	if !s.fence.set {
		s.fence.set, s.fence.end, s.fence.exp = true, now, 0
	}
	s.fence.w = true
	s.fence.exp = max(s.fence.exp, s.keptUntil(now, s.fence.end, r.ttl))
}

func (s *store) forget(tok token) (lastSeen, bool) {
	i := slices.IndexFunc(s.seen.by, func(o lastSeen) bool { return o.tok == tok })
	if i < 0 {
		return lastSeen{}, false
	}
	e := s.seen.by[i]
	s.seen.by = slices.Delete(s.seen.by, i, i+1)
	return e, true
}

// quiet is called when the queue may have become empty: newcomers need not look at it.
func (s *store) quiet() {
	if len(s.queue.toks) == 0 {
		s.fence.w = false
		s.seen.by = nil
	}
}

// silent reports whether a waiter was not heard of for 0.8 of its TTL. A clock that was stepped back makes nobody immortal.
func (s *store) silent(now int64, e lastSeen) bool {
	d := now - e.at
	return s.rules.LivenessSkip && max(d, -d) > e.ttl*8/10
}

// handover gives the lock to the first live waiter, or frees it. The caller's own token needs no message: the reply tells.
func (s *store) handover(now int64, self token, by string) {
	s.lock.tok = noToken
	for range s.skips {
		if len(s.queue.toks) == 0 {
			break
		}
		tok := s.queue.toks[0]
		if tok != self || s.rules.TakerLeavesQueue {
			s.queue.toks = s.queue.toks[1:]
		}
		e, known := s.forget(tok)
		if !known || tok != self && s.silent(now, e) {
			s.seenIn[skippedSilent]++
			continue
		}
		first, end := s.nextFence(now)
		if tok != self && s.publish(e.proc, tok, first) == 0 && !s.cluster && s.rules.ReceiverSkip {
			s.seenIn[skippedUnreached]++
			continue
		}
		s.seenIn[handovers]++
		s.give(now, tok, e.ttl, end, len(s.queue.toks) > 0, by)
		break
	}
	s.quiet()
}

// reassert is reassert.lua.
func (s *store) reassert(now int64, r request) reply {
	if s.lock.tok == r.tok {
		if s.rules.ReassertRefreshes {
			s.refresh(now, r.ttl, true)
		}
		return reply{kind: rHolder, fence: s.holderFence()}
	}
	if !slices.Contains(s.queue.toks, r.tok) {
		if !s.rules.ReassertNeverAdds {
			return s.acquire(now, r, true)
		}
		a := s.waiting(now, r.tok, true)
		return a
	}
	s.sawWaiter(now, r)
	if s.lock.tok == noToken && s.rules.PromoteWhenFree {
		if s.handover(now, r.tok, "reassert"); s.lock.tok == r.tok {
			return reply{kind: rGranted, fence: s.holderFence()}
		}
	}
	return s.waiting(now, r.tok, true)
}

// renew is renew.lua; keep tells whether F is among its keys: then the fence is checked and F's expiry moves too.
func (s *store) renew(now int64, r request, keep bool) reply {
	if s.lock.tok == noToken && !s.rules.RenewNeverCreates {
		s.lock.tok, s.lock.exp, s.lock.plus = r.tok, now+r.ttl, false
	}
	if s.lock.tok != r.tok {
		return reply{kind: rNotOwner}
	}
	if keep && s.fence.set && s.holderFence() != r.fence && s.rules.RenewChecksFence {
		return reply{kind: rNotOwner}
	}
	s.refresh(now, r.ttl, keep)
	return reply{kind: rRenewed, pttl: s.lock.exp - now}
}

// releaseOne is release.lua, which touches L alone.
func (s *store) releaseOne(r request) reply {
	switch {
	case s.lock.tok != r.tok:
		return reply{kind: rNotOwner}
	case s.lock.plus:
		return reply{kind: rMarked}
	}
	s.lock.tok = noToken
	return reply{kind: rReleased}
}

// cancel is cancel.lua: the token leaves, be it holder or waiter.
func (s *store) cancel(now int64, r request) reply {
	if s.lock.tok == r.tok {
		switch {
		case !s.lock.plus:
			s.lock.tok = noToken
		case !s.rules.DirectHandover:
			s.wakeFirst()
		default:
			s.handover(now, noToken, "cancel")
		}
		return reply{kind: rReleased, more: s.stranded()}
	}
	a := reply{kind: rNotOwner}
	if i := slices.Index(s.queue.toks, r.tok); i >= 0 {
		s.queue.toks = slices.Delete(slices.Clone(s.queue.toks), i, i+1)
		s.forget(r.tok)
		s.quiet()
		a.kind = rReleased
	}
	if s.lock.tok == noToken && len(s.queue.toks) > 0 && s.rules.DirectHandover {
		s.handover(now, noToken, "cancel")
		a.more = s.stranded()
	}
	return a
}

// stranded reports whether the lock is free although somebody queues, who may be dead.
func (s *store) stranded() bool {
	return s.lock.tok == noToken && len(s.queue.toks) > 0 && s.rules.DirectHandover
}

// wakeFirst is how release would work without direct hand-over.
func (s *store) wakeFirst() {
	s.lock.tok = noToken
	if len(s.queue.toks) > 0 {
		for _, e := range s.seen.by {
			if e.tok == s.queue.toks[0] {
				s.publish(e.proc, e.tok, 0)
			}
		}
	}
}

// breakHold is break.lua.
func (s *store) breakHold(now int64, r request) reply {
	if s.lock.tok <= 0 || !s.fence.set || s.holderFence() != r.fence {
		return reply{kind: rNotOwner}
	}
	s.handover(now, noToken, "break")
	return reply{kind: rReleased}
}

// foreignLock is SET NX PX by a client that knows nothing of us; ttl 0 means none.
func (s *store) foreignLock(now int64, r request) reply {
	if s.lock.tok != noToken {
		return reply{kind: rHeld}
	}
	s.lock.tok, s.lock.plus, s.lock.exp = foreign, false, 0
	if r.ttl > 0 {
		s.lock.exp = now + r.ttl
	}
	return reply{kind: rGranted}
}

func (s *store) foreignUnlock() reply {
	if s.lock.tok != foreign {
		return reply{kind: rNotOwner}
	}
	s.lock.tok = noToken
	return reply{kind: rReleased}
}
