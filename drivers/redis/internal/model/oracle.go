package model

import "slices"

// oracle watches the world from outside and knows what must never happen.
type oracle struct {
	requests int
	locals   int
	marked   int // releases that had to be asked for twice: L alone does not suffice in a cluster

	top  int64           // the end of the highest run ever granted
	used map[int64]token // fences that a holder was given

	arrivals []token // waiters in the order in which they reached the server

	extended     bool
	foreignUntil int64
	steppedBack  int64

	idleSince     int64
	leftQueue     int64 // since when a release has left a free lock with a queue; 0: none has
	unwantedTok   token
	unwantedSince int64
}

const slack = 100 * ms // what a few round trips take at most when the network is well

// onGrant is called by the store for every grant.
func (s *sim) onGrant(tok token, fence int64, by string) {
	o := &s.o
	s.seen[grants]++
	t := &s.tokens[tok]
	if fence <= o.top && s.w.fencesRise() {
		s.fail("fence: %d was granted %d although %d had been reserved", tok, fence, o.top)
	}
	o.top = max(o.top, fence+fenceRun-1)
	t.granted, t.given, t.handed = fence, s.now, s.request.tok != tok
	if s.tracing {
		s.logf("server", "grants f=%d to %d in %s", fence, tok, by)
	}
	if s.w.calm() && !s.w.foreign {
		o.fifo(s, tok)
	}
	if t.handed && !s.w.cluster && !s.reachable(t.proc) {
		s.fail("liveness: %d was given the lock although its process was not subscribed", tok)
	}
	if i := slices.Index(o.arrivals, tok); i >= 0 {
		o.arrivals = slices.Delete(o.arrivals, i, i+1)
	}
}

// fifo: a grant goes to the live waiter that came first.
func (o *oracle) fifo(s *sim, tok token) {
	for _, w := range o.arrivals {
		if w == tok {
			return
		}
		if s.waitsFor(w) {
			s.fail("order: %d was granted the lock although %d had come before", tok, w)
		}
	}
}

func (s *sim) waitsFor(tok token) bool {
	a := s.tokens[tok].proc.cur
	return a != nil && a.tok == tok && a.state == waiting
}

// wants reports whether a running process has a use for the token.
func (s *sim) wants(tok token) bool {
	p := s.tokens[tok].proc
	return p.alive && p.cur != nil && p.cur.tok == tok && p.cur.state != over
}

func (s *sim) reachable(p *proc) bool {
	return slices.ContainsFunc(s.subs, func(b *subscription) bool { return b.proc == p && b.registered })
}

// left is called when a process has no use for a token any more, and takes care of it until a local time.
func (o *oracle) left(s *sim, tok token, until int64) { s.tokens[tok].cleaned = until }

func (o *oracle) before(s *sim, r request) {
	if r.op == opBreak && s.store.lock.tok > 0 && s.store.fence.set && s.store.holderFence() == r.fence {
		t := &s.tokens[s.store.lock.tok]
		s.seen[holdsBroken]++
		t.broken, t.brokenAt, t.told = r.fence, s.now, false
	}
	if r.op == opEnqueue && s.store.lock.tok != r.tok && !slices.Contains(o.arrivals, r.tok) {
		o.arrivals = append(o.arrivals, r.tok)
	}
}

// after checks what holds after every script.
func (o *oracle) after(s *sim, r request, a reply) {
	st := &s.store
	if a.kind == rMarked {
		o.marked++
	}
	if r.tok > 0 {
		t := &s.tokens[r.tok]
		if a.kind == rReleased && t.flying == 0 {
			t.removed = true
		}
		if a.kind == rHolder && a.fence != t.granted && !s.w.loses {
			s.fail("fence: holder %d was told f=%d, and was granted %d", r.tok, a.fence, t.granted)
		}
		if r.op == opRenewKeep && a.kind == rRenewed && st.holderFence() != r.fence {
			s.fail("fence: %d was renewed with f=%d although the store has f=%d", r.tok, r.fence, st.holderFence())
		}
		if a.kind == rReleased || a.kind == rNotOwner {
			if i := slices.Index(o.arrivals, r.tok); i >= 0 && r.op == opCancel {
				o.arrivals = slices.Delete(o.arrivals, i, i+1)
			}
		}
	}
	switch {
	case st.lock.tok != noToken || len(st.queue.toks) == 0:
		o.leftQueue = 0
	case a.more && o.leftQueue == 0:
		o.leftQueue = s.now
	}
	if st.lock.tok > 0 {
		o.checkHolder(s)
	}
	if len(st.queue.toks) > 0 {
		o.checkQueue(s)
	}
}

func (o *oracle) checkHolder(s *sim) {
	st := &s.store
	if st.lock.exp == 0 {
		s.fail("orphan: the lock of %d has no expiry", st.lock.tok)
	}
	if !st.fence.set {
		s.fail("fence: %d holds the lock and there is no F", st.lock.tok)
	}
	if slices.Contains(st.queue.toks, st.lock.tok) && !s.cfg.Outcome {
		s.fail("queue: %d holds the lock and is queued", st.lock.tok)
	}
	if s.tokens[st.lock.tok].removed && !s.w.loses {
		s.fail("orphan: %d was removed, no acquire was on its way, and it holds the lock", st.lock.tok)
	}
}

func (o *oracle) checkQueue(s *sim) {
	st := &s.store
	if st.queue.exp == 0 || len(st.seen.by) > 0 && st.seen.exp == 0 || st.fence.set && st.fence.exp == 0 {
		s.fail("orphan: a key has no expiry")
	}
	if st.lock.tok > 0 && !st.lock.plus && !s.cfg.Outcome {
		s.fail("queue: %v wait and the lock is marked '-'", st.queue.toks)
	}
	if !st.fence.w && !s.cfg.Outcome {
		s.fail("queue: %v wait and F has no 'w'", st.queue.toks)
	}
	for i, tok := range st.queue.toks {
		if slices.Contains(st.queue.toks[:i], tok) && !s.cfg.Outcome {
			s.fail("queue: %d is in it twice", tok)
		}
		if s.tokens[tok].removed && !s.w.loses {
			s.fail("orphan: %d was removed, no acquire was on its way, and it is queued", tok)
		}
	}
}

func (o *oracle) lostData(s *sim) { o.arrivals = nil }

// heard is called when a waiter takes a reply. (A holder that is told so by a renewal believes no more.)
func (o *oracle) heard(s *sim, tok token, a reply) {
	if tok > 0 && a.at > s.tokens[tok].brokenAt {
		s.tokens[tok].told = true
	}
}

// localGrant is called when a process begins to believe that it holds the lock, also by a local hand-over.
func (o *oracle) localGrant(s *sim, a *acq) {
	p := a.p
	o.locals++
	if s.tracing {
		s.logf(p.name(), "holds %d f=%d until %d", a.tok, a.fence, a.deadline*1_000_000/p.ppm)
	}
	if by, dup := o.used[a.fence]; dup && s.w.fencesRise() {
		s.fail("fence: %d was given to %d and to %d", a.fence, by, a.tok)
	}
	o.used[a.fence] = a.tok
	if a.handed == 0 {
		o.noticed(s, a)
	}
}

// renewed: a hold is not relied on for longer than was asked for.
func (o *oracle) renewed(s *sim, a *acq, d, most int64) {
	if d > most {
		s.fail("deadline: %d is held for %d ms longer than was asked for", a.tok, (d-most)/ms)
	}
}

// noticed: with a subscription that works, a hand-over is noticed soon; one that does not is replaced once it has shown.
func (o *oracle) noticed(s *sim, a *acq) {
	p, t := a.p, &s.tokens[a.tok]
	netWell := !s.w.net || s.w.acquiresOnly || t.given >= s.w.settled()
	if t.granted != a.fence || !t.handed || a.attempts > 1 || s.w.stalls || s.w.loses || p.sub == nil || !netWell {
		return
	}
	since := max(t.given, p.resumed, p.sub.ackAt, p.sub.stalled)
	if s.now-since <= slack {
		return
	}
	if !p.sub.silent {
		s.fail("notice: %d was given the lock at %d and noticed it at %d with a subscription that works since %d", a.tok, t.given, s.now, p.sub.ackAt)
	}
	if p.sub.slow++; p.sub.slow > 1 && s.now-since > slack+missingGrace {
		s.fail("notice: p%d did not replace a subscription that is silent", p.id)
	}
}

// blamed: a subscription that works is not replaced, unless the reply was lost that told a waiter of what it took itself. (The driver ends a Wait then.)
func (o *oracle) blamed(s *sim, tok token, r reply) {
	t := &s.tokens[tok]
	p := t.proc
	if r.kind == rHolder && !t.handed {
		return
	}
	if p.sub.healthy(s.now) && s.now-max(p.sub.stalled, p.resumed) > missingGrace {
		s.fail("churn: p%d replaces a subscription that works since %d", p.id, p.sub.ackAt)
	}
}

// check is called after every event.
func (s *sim) check() {
	s.checkExclusion()
	s.checkIdle()
	s.checkUnwanted()
}

func (s *sim) checkExclusion() {
	if !s.w.exclusion() {
		return
	}
	var first *acq
	if s.now < s.o.foreignUntil {
		first = &acq{tok: foreign}
	}
	for _, p := range s.procs {
		a := p.cur
		if !p.alive || a == nil || !a.believes() || s.exempt(a) {
			continue
		}
		if first != nil {
			s.fail("exclusion: %d (f=%d) and %d (f=%d) both hold the lock", first.tok, first.fence, a.tok, a.fence)
			return
		}
		first = a
	}
}

// exempt: an operator has broken this hold, and the process could not know that.
func (s *sim) exempt(a *acq) bool {
	t := &s.tokens[a.tok]
	return t.broken != 0 && !t.told
}

// maxTTL is the longest that a hold lasts without a renewal.
func (s *sim) maxTTL() int64 {
	if s.o.extended {
		return 2 * s.longTTL()
	}
	return s.longTTL()
}

// longTTL is the longest TTL that a client acquires with.
func (s *sim) longTTL() int64 {
	if s.w.mixedTTL {
		return 2 * s.w.ttl
	}
	return s.w.ttl
}

// free returns since when nobody has the lock who could use it; 0: somebody has.
func (s *sim) free() int64 {
	st := &s.store
	expired := st.lock.exp != 0 && s.wall() > st.lock.exp
	switch {
	case st.lock.tok == noToken:
		return s.now
	case expired:
		return st.lock.exp - s.wallAhead
	case st.lock.tok == foreign:
		return 0
	case !s.wants(st.lock.tok) && !s.tokens[st.lock.tok].forgotten:
		return s.now
	}
	return 0
}

// checkIdle: the lock is not idle for long while somebody waits for it.
func (s *sim) checkIdle() {
	o, since := &s.o, s.free()
	if since == 0 {
		o.idleSince = 0
		return
	}
	if o.idleSince == 0 {
		o.idleSince = max(1, since)
	}
	if s.now < s.w.settled() {
		return
	}
	waiter := int64(-1)
	for _, p := range s.procs {
		if a := p.cur; p.alive && !p.stopped && a != nil && a.state == waiting && a.since > 0 && (waiter < 0 || a.since < waiter) {
			waiter = a.since
		}
	}
	if waiter < 0 {
		return
	}
	s.checkTold()
	if d := s.now - max(o.idleSince, waiter, s.w.settled()); d > s.idleBound() {
		s.fail("stranded: the lock was idle for %d ms while somebody waited", d/ms)
	}
}

// checkTold: whoever knows that the lock is free and that there is a queue does something about it at once.
func (s *sim) checkTold() {
	for _, p := range s.procs {
		a := p.cur
		if !p.alive || p.stopped || a == nil || a.state != waiting || a.free == 0 {
			continue
		}
		if d := s.now - max(a.free, p.resumed, s.w.settled()); d > slack {
			s.fail("told: %d knows for %d ms that nobody has the lock", a.tok, d/ms)
		}
	}
	if since := s.o.leftQueue; since > s.w.settled() && s.now-since > slack {
		s.fail("told: a release has left a free lock with a queue %d ms ago", (s.now-since)/ms)
	}
}

func (s *sim) idleBound() int64 {
	switch {
	case s.w.foreign && s.w.calm() && s.w.leaves: // the next one does not know that the head has left
		return longestReassert + slack
	case s.w.foreign && s.w.calm():
		return pollForeign + slack + s.maxTTL()/40
	case s.w.calm():
		return 50*ms + s.maxTTL()/40
	default:
		// A waiter that died may be given the lock until it was silent for 0.8 T, and has it for T then.
		return max(s.maxTTL(), s.longTTL()*18/10) + longestReassert + slack + s.o.steppedBack
	}
}

// checkUnwanted: a token nobody wants does not keep the lock.
func (s *sim) checkUnwanted() {
	o, st := &s.o, &s.store
	if st.lock.tok <= 0 || s.wall() > st.lock.exp || s.wants(st.lock.tok) {
		o.unwantedTok = noToken
		return
	}
	if o.unwantedTok != st.lock.tok {
		o.unwantedTok, o.unwantedSince = st.lock.tok, s.now
	}
	since := max(o.unwantedSince, s.w.settled())
	if d := s.now - since; d > s.maxTTL()+slack+o.steppedBack {
		s.fail("orphan: nobody wants %d and it has the lock for %d ms", st.lock.tok, d/ms)
	}
	if s.w.acquiresOnly {
		since = o.unwantedSince
	}
	s.checkLeft(s.now - since)
}

// checkLeft: as long as its process runs, such a token is removed soon. d is how long it has the lock.
func (s *sim) checkLeft(d int64) {
	t := &s.tokens[s.store.lock.tok]
	p := t.proc
	if !p.alive || p.stopped || t.forgotten {
		return
	}
	if p.local() < t.cleaned && !s.w.loses && d > longestPause+cleanupLimit+slack {
		s.fail("orphan: p%d does not want %d any more, which has the lock for %d ms", p.id, s.store.lock.tok, d/ms)
	}
	if t.given > s.w.settled() && p.sub.healthy(s.now) && p.sub.ackAt < t.given && d > slack {
		s.fail("orphan: p%d was given the lock for %d, which it does not want, %d ms ago", p.id, s.store.lock.tok, d/ms)
	}
}

// checkEnd is called when nothing more happens, or when it takes too long.
func (s *sim) checkEnd() {
	for _, p := range s.procs {
		if p.alive && (p.jobs > 0 || p.cur != nil && p.cur.state != over) {
			s.fail("stranded: p%d has not got the lock after %d s", p.id, s.now/second)
		}
	}
	st, wall := &s.store, s.wall()
	st.expire(wall)
	limit := wall + s.maxTTL() + st.keep + s.o.steppedBack
	for _, exp := range []int64{st.lock.exp, st.fence.exp, st.queue.exp, st.seen.exp} {
		if exp > limit {
			s.fail("orphan: a key stays until %d, which is later than %d", exp, limit)
		}
	}
	if s.w.tight && s.o.requests != 2*s.o.locals+s.o.marked {
		s.fail("requests: %d for %d acquisitions", s.o.requests, s.o.locals)
	}
}
