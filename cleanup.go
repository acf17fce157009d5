package dlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	sweepLimit    = 400 * time.Millisecond // the longest that one release in the background may take
	firstPause    = 10 * time.Millisecond  // between two of them, at first
	longestPause  = 500 * time.Millisecond // and in the end
	maxSweeps     = 16                     // how many there are at the same time
	sweepFullWait = 10 * time.Millisecond  // when there are more to do
)

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
	l        *locker
	key      string
	claim    driver.Claim
	ttl      time.Duration
	doubt    doubt
	pause    time.Duration
	sweeping bool // a release is under way in the background
	loose    int  // releases that were left behind and have not returned
	gone     bool
}

// clean sees to it that the token of claim leaves the store, as far as there is doubt about that. From then on the token must not be used to
// acquire.
func (l *locker) clean(key string, claim driver.Claim, d doubt, ttl time.Duration) {
	if d.unsure == 0 || isClosed(l.stopped) {
		return
	}
	s := &stray{l: l, key: key, claim: claim, ttl: ttl, doubt: d, pause: firstPause}
	s.doubt.left = nil
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
	e := l.entry(key)
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
	}
}

// judge takes into account how a call that was left behind came out.
func (s *stray) judge(c *call) {
	switch {
	case c.kind == callRelease && c.err == nil:
		s.removed()
	case c.kind == callRelease:
	case c.err != nil && !c.mayHaveWritten(c.err):
		s.doubt.unsure--
	default:
		s.doubt.last = time.Now()
	}
}

// answered is called when a call that was left behind has returned.
func (s *stray) answered(c *call, now time.Time) {
	if c.kind == callRelease {
		s.loose--
	}
	s.doubt.left = slices.DeleteFunc(s.doubt.left, func(o *call) bool { return o == c })
	s.judge(c)
	if s.gone || s.settled(now) {
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
	s.doubt.unsure--
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
	s.l.sched.remove(&s.task)
	s.l.strays--
	if e := s.l.keys[s.key]; e != nil {
		e.strays = slices.DeleteFunc(e.strays, func(o *stray) bool { return o == s })
		s.l.tidy(e)
	}
}

// due is called when it is time to release the token, again.
func (s *stray) due(now time.Time) {
	switch {
	case s.gone || s.sweeping:
	case s.l.sweeps >= maxSweeps:
		s.l.sched.add(&s.task, s, now.Add(sweepFullWait), 0)
	default:
		s.l.sweeps++
		s.sweeping = true
		go s.sweep()
	}
}

// sweep makes one attempt in the background.
func (s *stray) sweep() {
	c := &call{kind: callRelease, claim: s.claim}
	answered, _ := s.l.ask(context.Background(), c, sweepLimit)
	s.l.mu.Lock()
	defer s.l.unlock()
	s.follow(c)
	s.l.sweeps--
	s.sweeping = false
	now := time.Now()
	s.took(c, answered, now)
	if !s.gone {
		s.l.sched.add(&s.task, s, latest(now, c.sent.Add(s.pause)), 0)
		s.pause = min(2*s.pause, longestPause)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// took takes the answer of one release. A Locker that closes is content with any answer from the store, as it cannot wait.
func (s *stray) took(c *call, answered bool, now time.Time) {
	removed := answered && c.err == nil
	if removed {
		s.removed()
	}
	sure := removed || answered && errors.Is(c.err, driver.ErrNotOwner)
	switch {
	case s.settled(now), sure && isClosed(s.l.closing) && len(s.doubt.left) == 0, isClosed(s.l.stopped):
		s.drop()
	}
}

// sweepNow releases the strays of e on behalf of a caller who was told that the key is held: it might be by one of them. It reports whether one
// was removed, or may just have been, since swept was read, so that it is worth asking again.
func (l *locker) sweepNow(ctx context.Context, e *entry, swept int) (again bool, err error) {
	l.mu.Lock()
	strays := slices.Clone(e.strays)
	l.mu.Unlock()
	for _, s := range strays {
		if err := ctx.Err(); err != nil {
			return false, because{errCleaning, err}
		}
		c := &call{kind: callRelease, claim: s.claim}
		answered, why := l.ask(ctx, c, releaseLimit)
		if answered {
			why = c.err
		}
		l.mu.Lock()
		s.follow(c)
		s.took(c, answered, time.Now())
		again = again || s.sweeping || s.loose > 0 // whose answer may be on its way
		l.unlock()
		if why != nil && !errors.Is(why, driver.ErrNotOwner) {
			return false, because{errCleaning, why}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return again || e.swept != swept, nil
}

var errCleaning = errors.New("an earlier attempt on this key is still being cleaned up")
