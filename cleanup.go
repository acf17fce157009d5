package dlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	sweepLimit   = 400 * time.Millisecond // the longest that one release in the background may take
	firstPause   = 10 * time.Millisecond  // between two of them, at first
	longestPause = 500 * time.Millisecond // and in the end
	closingPause = 50 * time.Millisecond  // and when the Locker closes
	maxReleases  = 2                      // how many of one stray may be out
)

// sweepClass tells releases in the background apart, so that those that may wait leave the others their places.
type sweepClass uint8

const (
	sweepFirst sweepClass = iota // of a token that the store has not called gone since its last request returned
	sweepAgain                   // in case a request is still in the network
	sweepHung                    // of a key whose calls hang
	sweepClasses
)

// maxSweeps is how many releases of each class are under way at the same time, and maxClosingSweeps how many when the Locker closes. The first ones have
// to keep pace with the attempts that are given up.
var maxSweeps, maxClosingSweeps = [sweepClasses]int{56, 8, 4}, [sweepClasses]int{64, 64, 16}

// doubt is what is not known of the requests that might have put a token into the store. An acquire that failed may have been applied, and may
// still be in the network.
type doubt struct {
	unsure   int       // requests whose outcome is not known
	last     time.Time // no such request was sent after this
	left     []*call   // those that have not even returned
	releases []*call   // that were left behind
}

// add notes that the outcome of c is not known, or that it was granted and is not wanted. The mutex is held.
func (d *doubt) add(c *call) {
	d.unsure++
	d.last = time.Now()
	if !c.answered {
		d.left = append(d.left, c)
	}
}

// stray is a token that may be in the store although nobody wants it. It is released again and again until it was removed, or until whatever
// might still be on its way has expired by itself: "not the owner" does not end it.
type stray struct {
	task
	l         *locker
	key       string
	claim     driver.Claim
	ttl       time.Duration
	doubt     doubt
	held      *hold // whose token it is, when Close released it
	pause     time.Duration
	waiting   bool // for a place among the sweeps
	sweeping  bool // a release is under way in the background
	class     sweepClass
	out       int       // releases that have not returned
	loose     int       // those of them that were left behind
	swept     bool      // the store said that the token is not there, since a request of the token last returned
	sweptAt   time.Time // when the last release was sent that was answered so
	unheard   bool      // the token may have been there, and gone, since a release was last answered
	confirmed bool      // the store has removed the token
	trouble   trouble
	gone      bool
}

// clean sees to it that the token of claim leaves the store, as far as there is doubt about that. From then on the token must not be used to
// acquire.
func (l *locker) clean(key string, claim driver.Claim, d doubt, ttl time.Duration) {
	if d.unsure > 0 {
		l.addStray(&stray{l: l, key: key, claim: claim, ttl: ttl, doubt: d})
	}
}

func (l *locker) addStray(s *stray) {
	if isClosed(l.stopped) {
		l.unsettled.tokens++
		return
	}
	d := s.doubt
	s.pause, s.unheard, s.doubt.left = firstPause, true, nil
	for _, c := range d.releases {
		s.follow(c)
	}
	for _, c := range d.left {
		if c.answered {
			s.judge(c)
		} else {
			c.stray = s
			s.doubt.left = append(s.doubt.left, c)
		}
	}
	if s.settled(time.Now()) {
		return
	}
	e := l.entry(s.key)
	e.strays = append(e.strays, s)
	l.strays++
	s.due(time.Now())
}

// follow hears of a release that was left behind, if that succeeds after all.
func (s *stray) follow(c *call) {
	switch {
	case c.sent.IsZero() || !c.left:
	case c.answered:
		s.judge(c)
	default:
		c.stray = s
		s.loose++
		s.out++
	}
}

// judge takes into account how a call that was left behind came out.
func (s *stray) judge(c *call) {
	switch {
	case c.kind == callRelease:
		s.heard(c)
	case c.err != nil && !c.mayHaveWritten():
		s.doubt.unsure--
	default:
		s.doubt.last = time.Now()
		s.swept, s.unheard = false, true
	}
}

// heard takes the answer of a release into account.
func (s *stray) heard(c *call) {
	switch c.verdict {
	case verdictOK:
		s.removed()
		return // what another request may bring is not there yet
	case verdictNotOwner:
		if s.unheard {
			s.unheard = false
			s.countSwept()
		}
	default:
		s.unheard = true
		s.trouble.note(c.err, c.verdict)
		return
	}
	s.swept = true
	if c.sent.After(s.sweptAt) {
		s.sweptAt = c.sent
	}
}

// answered is called when a call that was left behind has returned.
func (s *stray) answered(c *call, now time.Time) {
	if c.kind == callRelease {
		s.loose--
		s.out--
	}
	s.doubt.left = slices.DeleteFunc(s.doubt.left, func(o *call) bool { return o == c })
	s.judge(c)
	if s.gone || s.settled(now) || s.finalAnswer(c) {
		s.drop()
		return
	}
	s.pause = firstPause
	if !s.sweeping {
		s.due(now)
	}
}

// removed notes that the store confirmed a removal.
func (s *stray) removed() {
	s.confirmed = true
	s.doubt.unsure--
	s.countSwept()
}

// countSwept notes for those who were told that the key is held that the token has gone.
func (s *stray) countSwept() {
	if e := s.l.keys[s.key]; e != nil {
		e.swept++
	}
}

// settled reports whether nothing of the token can be in the store any more.
func (s *stray) settled(now time.Time) bool {
	return len(s.doubt.left) == 0 && (s.doubt.unsure <= 0 || !now.Before(s.doubt.last.Add(s.ttl)))
}

// hurry has the token released soon, whatever the pause is by now.
func (s *stray) hurry(now time.Time) {
	s.l.sched.remove(&s.task)
	s.pause = firstPause
	s.due(now)
}

func (s *stray) drop() {
	if s.gone {
		return
	}
	s.gone = true
	if s.unheard && s.doubt.unsure > 0 {
		s.countSwept()
	}
	if h := s.held; h != nil && !isClosed(s.l.stopped) {
		var err error
		if !s.confirmed {
			err = driver.ErrNotOwner
		}
		s.l.later(func() { s.l.tel.released(h.e.key, h.fence, err) })
	}
	s.l.sched.remove(&s.task)
	s.l.strays--
	if e := s.l.keys[s.key]; e != nil {
		e.strays = slices.DeleteFunc(e.strays, func(o *stray) bool { return o == s })
		s.l.tidy(e)
	}
}

// due is called when it is time to release the token, again.
func (s *stray) due(now time.Time) {
	l := s.l
	switch {
	case s.gone || s.sweeping || s.waiting:
	case s.settled(now):
		s.drop()
	case s.out >= maxReleases:
		// The next one follows when one of them has returned. Until then there is only the end to wait for.
		l.sched.add(&s.task, s, latest(now.Add(longestPause), s.doubt.last.Add(s.ttl)), 0)
	case l.mode != driver.Inline && !l.gate.room(s.claim.Key):
		l.sched.add(&s.task, s, now.Add(longestPause), 0)
	default:
		s.class, s.waiting = sweepFirst, true
		switch {
		case l.gate.hangs(s.claim.Key):
			s.class = sweepHung
		case s.swept:
			s.class = sweepAgain
		}
		l.sweeps.waiting[s.class] = append(l.sweeps.waiting[s.class], s)
		l.startSweeps(s.class, now)
	}
}

// sweeps are the releases in the background, and the strays that wait for a place among them. They are guarded by the Locker's mutex.
type sweeps struct {
	waiting [sweepClasses][]*stray
	running [sweepClasses]int
}

// startSweeps gives free places to those who wait.
func (l *locker) startSweeps(class sweepClass, now time.Time) {
	most := maxSweeps
	if !l.closeBy.IsZero() {
		most = maxClosingSweeps
	}
	q := &l.sweeps
	for q.running[class] < most[class] && len(q.waiting[class]) > 0 {
		s := q.waiting[class][0]
		q.waiting[class][0] = nil
		q.waiting[class] = q.waiting[class][1:]
		s.waiting = false
		if s.gone {
			continue
		}
		q.running[class]++
		s.sweeping = true
		s.out++
		go s.sweep(s.limit(now))
	}
}

// limit is how long a release may take. When the Locker closes there may be time for one only.
func (s *stray) limit(now time.Time) time.Duration {
	if s.l.closeBy.IsZero() {
		return sweepLimit
	}
	return max(time.Millisecond, min(releaseLimit, s.l.closeBy.Sub(now)))
}

// sweep makes one attempt in the background.
func (s *stray) sweep(limit time.Duration) {
	l := s.l
	c := &call{kind: callRelease, claim: s.claim}
	answered, _ := l.ask(context.Background(), c, limit)
	l.mu.Lock()
	defer l.unlock()
	s.out--
	s.follow(c)
	class, now := s.class, time.Now()
	s.sweeping = false
	s.took(c, answered, now)
	l.sweeps.running[class]--
	l.startSweeps(class, now)
	if s.gone {
		return
	}
	l.sched.add(&s.task, s, latest(now, c.sent.Add(s.pause)), 0)
	s.pause = min(2*s.pause, longestPause)
	if !l.closeBy.IsZero() {
		s.pause = min(s.pause, closingPause)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// took takes the answer of one release that was waited for.
func (s *stray) took(c *call, answered bool, now time.Time) {
	if answered {
		s.heard(c)
	} else {
		s.unheard = true
	}
	if s.settled(now) || s.finalAnswer(c) || isClosed(s.l.stopped) {
		s.drop()
	}
}

// finalAnswer reports whether what c answered, or what was answered before, is all that can be learned. A Locker that closes cannot wait for what may be in the
// network; but while a request of the token has not returned, "not the owner" says nothing of it.
func (s *stray) finalAnswer(c *call) bool {
	return !s.l.closeBy.IsZero() && len(s.doubt.left) == 0 && s.swept && c.kind == callRelease
}

// sweepNow releases the strays of e on behalf of a caller who was told at told that the key is held: it might be by one of them. It reports
// whether one was removed, or may just have been, since swept was read, so that it is worth asking again.
func (l *locker) sweepNow(ctx context.Context, e *entry, swept int, told time.Time) (again bool, err error) {
	l.mu.Lock()
	strays := slices.Clone(e.strays)
	l.mu.Unlock()
	for _, s := range strays {
		if err := ctx.Err(); err != nil {
			return false, because{errCleaning, err}
		}
		more, err := s.sweepFor(ctx, told)
		if again = again || more; err != nil {
			return false, because{errCleaning, err}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return again || e.swept != swept, nil
}

// sweepFor makes one attempt for a caller. It reports whether the answer to another one may be on its way.
func (s *stray) sweepFor(ctx context.Context, told time.Time) (again bool, err error) {
	l := s.l
	l.mu.Lock()
	switch {
	case s.gone || s.sweptAt.After(told) && !s.sweeping: // somebody else has asked since; what was asked before says nothing
		l.unlock()
		return false, nil
	case s.out >= maxReleases:
		l.unlock()
		return false, errReleasesOut
	}
	s.out++
	l.unlock()
	c := &call{kind: callRelease, claim: s.claim}
	answered, err := l.ask(ctx, c, releaseLimit)
	v := verdictOther
	l.mu.Lock()
	s.out--
	s.follow(c)
	s.took(c, answered, time.Now())
	if answered {
		err, v = c.err, c.verdict
	}
	again = s.sweeping || s.loose > 0
	s.goOn(time.Now())
	l.unlock()
	if v == verdictOK || v == verdictNotOwner {
		err = nil
	}
	return again, err
}

// goOn has the clean-up go on in the background, which may have waited for a release of a caller's to return.
func (s *stray) goOn(now time.Time) {
	if next := now.Add(s.pause); !s.gone && !s.sweeping && !s.waiting && s.at.After(next) {
		s.l.sched.add(&s.task, s, next, 0)
	}
}

var errReleasesOut = errors.New("releases of it have not returned")

var errCleaning = errors.New("an earlier attempt on this key is still being cleaned up")
