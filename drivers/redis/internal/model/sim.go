package model

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Config says what to simulate.
type Config struct {
	Seed  uint64
	Rules Rules

	// Trace makes the Result tell everything that happened.
	Trace bool

	// Outcome leaves out the checks of the keys' inner order (which end a run before anybody could notice), so that only what matters
	// to users is a violation.
	Outcome bool
}

// Result is what came of it.
type Result struct {
	Violation string // empty: none
	Trace     string
	World     string // the kinds of faults there were
	Events    int
	Seen      [sights]int
}

// sight is something that worlds must bring about, or else they prove little.
type sight int

const (
	grants sight = iota
	handovers
	localHandovers
	skippedSilent
	skippedUnreached
	staleDropped
	earlyMessages
	tooLates
	unknownCancelled
	goneRequeued
	missedMessages
	holdsLost
	holdsBroken
	sights
)

func (c sight) String() string {
	return [...]string{
		"grants", "hand-overs", "local hand-overs", "waiters skipped because they were silent", "waiters skipped because they were not reached",
		"stale hand-overs dropped", "hand-overs heard of before the reply", "grants that came too late", "unknown tokens cancelled",
		"waiters that were gone and enqueued again", "grants found without their message", "holds lost", "holds broken",
	}[c]
}

// Run simulates one seed.
func Run(cfg Config) Result {
	s := newSim(cfg)
	s.start()
	for s.violation == "" && s.step() {
		s.check()
	}
	if s.violation == "" {
		s.checkEnd()
	}
	return Result{s.violation, s.trace.String(), s.w.String(), s.events, s.seen}
}

// event is something that happens at a true time.
type event struct {
	at, seq int64
	do      func()
}

// sim is one simulated world: a server, its clients, the network between them and the faults.
type sim struct {
	cfg   Config
	rules *Rules
	rng   *rand.Rand
	w     world

	now    int64 // true time
	seq    int64
	heap   []event
	events int

	store     store
	wallAhead int64 // the server's wall clock minus true time
	down      bool
	stalled   int64   // the server does nothing before
	snapshot  store   // what a replica has
	request   request // the one being executed
	subs      []*subscription
	procs     []*proc
	tokens    []tokenInfo // by token

	seen      [sights]int
	o         oracle
	violation string
	tracing   bool
	trace     strings.Builder
}

// tokenInfo is what the oracles know of a token.
type tokenInfo struct {
	proc     *proc
	ttl      int64
	flying   int   // acquires and enqueues on their way to the server
	removed  bool  // the store confirmed its removal when none was on its way
	granted  int64 // the fence of its last grant
	given    int64 // when that was
	handed   bool  // in somebody else's request
	broken   int64 // the fence that Break took from it
	brokenAt int64
	told     bool // that the break happened

	forgotten bool  // the application lets its lease run out
	cleaned   int64 // local: its process takes care of it until then
}

// epoch is the server's wall clock at the beginning. The trace leaves it out.
const epoch = 1_000_000 * second

func newSim(cfg Config) *sim {
	s := &sim{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6c6f636b)), tracing: cfg.Trace}
	s.rules = &s.cfg.Rules
	s.w = drawWorld(cfg.Seed, s.rng)
	s.wallAhead = epoch
	s.tokens = make([]tokenInfo, 1, 64)
	s.store = store{rules: s.rules, cluster: s.w.cluster, keep: s.w.keep, skips: s.w.skips, seenIn: &s.seen, publish: s.publish, granted: s.onGrant}
	s.snapshot = s.store.clone()
	s.o.used = make(map[int64]token)
	return s
}

func (s *sim) start() {
	for i := range s.w.clients {
		p := s.newProc(2 + s.rng.IntN(3))
		p.at(s.between(0, s.w.ttl/int64(1+i%3)), p.nextJob)
	}
	if s.w.foreign {
		s.foreignClient()
	}
	s.planFaults()
}

func (s *sim) wall() int64 { return s.now + s.wallAhead }

// schedule makes do happen at a true time.
func (s *sim) schedule(at int64, do func()) {
	s.seq++
	s.heap = append(s.heap, event{max(at, s.now), s.seq, do})
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.before(i, up) {
			break
		}
		s.heap[i], s.heap[up] = s.heap[up], s.heap[i]
		i = up
	}
}

func (s *sim) before(i, j int) bool {
	a, b := &s.heap[i], &s.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

// step lets the next thing happen, and reports whether there was one.
func (s *sim) step() bool {
	if len(s.heap) == 0 {
		return false
	}
	e := s.heap[0]
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap[last] = event{}
	s.heap = s.heap[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if s.before(c, least) {
				least = c
			}
		}
		if least == i {
			break
		}
		s.heap[i], s.heap[least] = s.heap[least], s.heap[i]
		i = least
	}
	if e.at > s.w.horizon {
		return false
	}
	s.now = e.at
	s.events++
	e.do()
	return true
}

// between returns a random number from lo up to hi.
func (s *sim) between(lo, hi int64) int64 {
	if hi <= lo {
		return lo
	}
	return lo + s.rng.Int64N(hi-lo)
}

func (s *sim) chance(percent int) bool { return s.rng.IntN(100) < percent }

// logf adds a line to the trace. Callers ask s.tracing first.
func (s *sim) logf(who, format string, args ...any) {
	fmt.Fprintf(&s.trace, "%9d %-6s %-56s | %s\n", s.now, who, fmt.Sprintf(format, args...), s.store.String())
}

// fail notes the first violation.
func (s *sim) fail(format string, args ...any) {
	if s.violation == "" {
		s.violation = fmt.Sprintf(format, args...)
		if s.tracing {
			s.logf("ORACLE", "%s", s.violation)
		}
	}
}

// exec runs a script at the server.
func (s *sim) exec(r request) reply {
	s.store.expire(s.wall())
	s.o.before(s, r)
	s.request = r
	a := s.store.run(s.wall(), r)
	a.at = s.now
	s.o.after(s, r, a)
	if s.tracing && (r.op != opForeignLock || a.kind == rGranted) {
		s.logf("server", "%v(%d) by p%d: %v", r.op, r.tok, r.proc, a)
	}
	return a
}

// delay is how long a message is under way.
func (s *sim) delay(acquires bool) int64 {
	d := s.between(100, 1500)
	if s.netFault(acquires) && s.chance(s.w.slowPercent) {
		d += s.between(0, s.w.maxDelay)
	}
	return d
}

func (s *sim) loses(acquires bool) bool { return s.netFault(acquires) && s.chance(s.w.lossPercent) }

// netFault reports whether the network may hurt a message; acquires tells whether it belongs to an acquire or enqueue.
func (s *sim) netFault(acquires bool) bool {
	return s.w.net && s.now < s.w.faultsEnd && (acquires || !s.w.acquiresOnly)
}

// subscription is a connection on which a process hears of hand-overs.
type subscription struct {
	proc       *proc
	registered bool // at the server
	acked      bool // at the client
	ackAt      int64
	since      int64 // ackAt by the process' clock
	stalled    int64 // nothing arrives before
	silent     bool  // nothing arrives at all, and nobody notices
	lastAt     int64 // when the last message arrived: they keep their order
	slow       int   // hand-overs that were noticed late
}

func (b *subscription) healthy(now int64) bool {
	return b != nil && b.acked && b.registered && !b.silent && now >= b.stalled
}

// publish sends a hand-over to a process, and returns how many connections it went to.
func (s *sim) publish(id int, tok token, fence int64) int {
	n := 0
	for _, b := range s.subs {
		if !b.registered || b.proc.id != id {
			continue
		}
		n++
		if b.silent {
			continue
		}
		b.lastAt = max(s.now+s.between(100, 1500), b.stalled, b.lastAt+1)
		s.schedule(b.lastAt, func() {
			if b.acked || b.registered {
				b.proc.deliver(func() { b.proc.message(tok, fence) })
			}
		})
	}
	return n
}

// call is a request of a process and its time limit.
type call struct {
	answered bool
}

// call sends r. done is called once, with ok false when the limit has passed; late is called if the reply comes after that.
func (p *proc) call(r request, limit int64, done func(a reply, ok bool), late func(a reply)) {
	s, c := p.sim, new(call)
	r.proc = p.id
	s.o.requests++
	adds := r.op == opAcquire || r.op == opEnqueue
	if adds {
		s.tokens[r.tok].flying++
	}
	if s.tracing {
		s.logf(p.name(), "sends %v(%d)", r.op, r.tok)
	}
	if !s.loses(adds) {
		s.schedule(max(s.now+s.delay(adds), s.stalled), func() {
			if adds {
				s.tokens[r.tok].flying--
			}
			if s.down {
				return
			}
			a := s.exec(r)
			if s.loses(adds) {
				return
			}
			s.schedule(s.now+s.delay(adds), func() {
				p.deliver(func() {
					if s.tracing {
						s.logf(p.name(), "is told: %v(%d) %v", r.op, r.tok, a)
					}
					if a.more && s.rules.PassOnUntilAlive {
						p.cancel(r.tok, 1)
					}
					if c.answered {
						late(a)
						return
					}
					c.answered = true
					done(a, true)
				})
			})
		})
	} else if adds {
		s.tokens[r.tok].flying--
	}
	p.after(limit, func() {
		if !c.answered {
			c.answered = true
			done(reply{}, false)
		}
	})
}
