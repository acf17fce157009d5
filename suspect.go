package dlock

import (
	"strings"
	"sync"
	"time"
)

// suspectPause is how far apart renewals of one hold are that a driver causes by its suspicions.
const suspectPause = 5 * time.Millisecond

// suspects are the keys that the driver suspects to be lost. They have a mutex of their own, so that the driver never waits for the engine.
type suspects struct {
	mu     sync.Mutex
	keys   map[string]struct{}
	asking bool
}

// suspect is what a driver.LossWatcher calls.
func (l *locker) suspect(key string) {
	key, ours := strings.CutPrefix(key, l.cfg.Prefix)
	if !ours || isClosed(l.closing) {
		return
	}
	s := &l.suspects
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[string]struct{}{}
	}
	s.keys[key] = struct{}{}
	if !s.asking {
		s.asking = true
		go l.askSuspects()
	}
}

func (l *locker) askSuspects() {
	for {
		s := &l.suspects
		s.mu.Lock()
		keys := s.keys
		s.keys, s.asking = nil, len(keys) > 0
		s.mu.Unlock()
		if len(keys) == 0 {
			return
		}
		l.mu.Lock()
		now := time.Now()
		for key := range keys {
			e := l.keys[key]
			if e == nil {
				continue
			}
			for _, h := range []*hold{e.holder, e.aside} {
				if h != nil && !h.over() && h.renew {
					h.askSoon(now)
					l.watch(h)
				}
			}
		}
		l.unlock()
	}
}

// askSoon plans a renewal at once, because the driver suspects a loss. One that is out may have been sent before the loss, so another one
// follows when it has returned.
func (h *hold) askSoon(now time.Time) {
	switch {
	case h.queued:
	case h.outs > 0:
		h.doubted = true
	default:
		soon := now.Sub(h.l.began)
		if h.doubtAt > 0 {
			soon = max(soon, h.doubtAt+suspectPause)
		}
		if at := h.l.began.Add(soon); at.Before(h.renewAt) {
			h.doubtAt, h.renewAt = max(soon, 1), at
		}
	}
}
