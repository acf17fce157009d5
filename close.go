package dlock

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	closeLimit        = 1500 * time.Millisecond // for releasing everything
	closeGrace        = 100 * time.Millisecond  // less than that for the last answers to be taken
	closeBackendLimit = 400 * time.Millisecond  // for the backend to close
	closeReportLimit  = 50 * time.Millisecond   // for the logger to be told
)

func (l *locker) Close() error {
	l.mu.Lock()
	if isClosed(l.closing) {
		l.unlock()
		<-l.closed
		return nil
	}
	close(l.closing)
	l.closeBy = time.Now().Add(closeLimit - closeGrace)
	l.endPrompts()
	l.endAll()
	l.unlock()

	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-l.quiet:
	case <-limit.C:
	}
	l.stop()
	err := l.closeBackend()
	l.awaitReports()
	l.mu.Lock()
	left := l.unsettled
	left.tokens += l.acquires + l.unlocking
	l.mu.Unlock()
	if left.tokens > 0 {
		err = errors.Join(left.error(), err)
	}
	close(l.closed)
	if err != nil {
		return l.fail("close", "", err)
	}
	return nil
}

func (u unsettled) error() error {
	text := fmt.Sprintf("the release of %d locks was not confirmed; they may stay in the store until their TTL has passed", u.tokens)
	if u.why == nil {
		return errors.New(text)
	}
	return fmt.Errorf("%s: %w", text, u.why)
}

// endPrompts ends the calls on the goroutines of their callers. Releases go on.
func (l *locker) endPrompts() {
	for c := range l.prompts {
		if c.kind != callRelease {
			c.cancel(ErrClosed)
		}
	}
}

// endAll ends every hold, ends the renewals, and hurries the clean-up, which every token goes through that may be in the store.
func (l *locker) endAll() {
	var holds []*hold
	for _, t := range l.sched.tasks {
		if h, ok := t.what.(*hold); ok {
			holds = append(holds, h)
		}
	}
	now := time.Now()
	for _, e := range l.keys {
		for _, s := range slices.Clone(e.strays) {
			if s.swept && len(s.doubt.left) == 0 {
				s.drop()
			} else {
				s.hurry(now)
			}
		}
	}
	for _, h := range holds {
		for _, c := range h.out[:h.outs] {
			c.cancel(ErrClosed)
		}
		if h.over() {
			l.cleanLost(h)
		} else {
			l.endHold(h, ErrClosed)
			l.releaseLast(h)
		}
	}
}

// releaseLast releases a hold that Close has ended.
func (l *locker) releaseLast(h *hold) {
	d := h.doubt
	d.unsure++
	d.last = latest(d.last, h.lastSent)
	l.addStray(&stray{l: l, key: h.e.key, claim: h.claim, ttl: h.maxTTL, doubt: d, held: h})
}

// stop refuses further requests, ends those under way, and counts what is not known to be gone.
func (l *locker) stop() {
	l.mu.Lock()
	defer l.unlock()
	close(l.stopped)
	for _, e := range l.keys {
		for _, s := range e.strays {
			if !s.settled(time.Now()) {
				l.giveUp(s)
			}
		}
	}
	for _, t := range l.sched.tasks {
		if c, ok := t.what.(*call); ok {
			c.cancel(ErrClosed)
		}
	}
	l.workers.due(time.Time{})
	l.sched.stop()
}

func (l *locker) giveUp(s *stray) {
	why := s.trouble.err
	if why == nil {
		why = errNoAnswer
	}
	l.unsettled.tokens++
	l.unsettled.why = why
	if h := s.held; h != nil {
		l.later(func() { l.tel.released(h.e.key, h.fence, why) })
	}
}

var errNoAnswer = errors.New("the backend has not answered")

func (l *locker) closeBackend() error {
	done := make(chan error, 1)
	go func() { done <- l.b.Close() }()
	limit := time.NewTimer(closeBackendLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return errors.New("the backend is still closing")
	}
}

// awaitReports waits until the logger has been told, if it does not take long.
func (l *locker) awaitReports() {
	l.mu.Lock()
	telling := l.reports.telling
	l.mu.Unlock()
	if telling == nil {
		return
	}
	limit := time.NewTimer(closeReportLimit)
	defer limit.Stop()
	select {
	case <-telling:
	case <-limit.C:
	}
}
