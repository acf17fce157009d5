package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	closeLimit        = 1500 * time.Millisecond // for releasing everything
	closeBackendLimit = 400 * time.Millisecond  // for the backend to close
	closeWorkers      = 64                      // how many releases there are at the same time
)

func (l *locker) Close() error {
	l.mu.Lock()
	if isClosed(l.closing) {
		l.unlock()
		<-l.closed
		return nil
	}
	close(l.closing)
	l.endPrompts()
	holds := l.endAll()
	l.ops++
	l.unlock()

	released := make(chan error, 1)
	go func() {
		released <- l.releaseAll(holds)
		l.opDone()
	}()
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-l.quiet:
	case <-limit.C:
	}
	l.stop()
	err := errors.Join(<-released, l.closeBackend())
	close(l.closed)
	if err != nil {
		return l.fail("close", "", err)
	}
	return nil
}

// endPrompts ends the calls on the goroutines of their callers. Releases go on.
func (l *locker) endPrompts() {
	for c := range l.prompts {
		if c.kind != callRelease {
			c.cancel(ErrClosed)
		}
	}
}

// endAll ends every hold, and hurries the clean-up.
func (l *locker) endAll() []*hold {
	var holds []*hold
	var strays []*stray
	for _, t := range l.sched.tasks {
		switch w := t.what.(type) {
		case *hold:
			holds = append(holds, w)
		case *stray:
			strays = append(strays, w)
		}
	}
	for _, h := range holds {
		l.endHold(h, ErrClosed)
	}
	now := time.Now()
	for _, s := range strays {
		s.hurry(now)
	}
	return holds
}

// releaseAll releases holds in parallel.
func (l *locker) releaseAll(holds []*hold) error {
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed int
		last   error
	)
	next := make(chan *hold)
	for range min(closeWorkers, len(holds)) {
		wg.Go(func() {
			for h := range next {
				err := l.release(context.Background(), h)
				l.tel.released(h.e.key, h.fence, err)
				if err != nil {
					mu.Lock()
					failed, last = failed+1, err
					mu.Unlock()
				}
			}
		})
	}
	for _, h := range holds {
		next <- h
	}
	close(next)
	wg.Wait()
	if failed > 0 {
		return fmt.Errorf("%d of %d locks were not released and end with their TTL: %w", failed, len(holds), last)
	}
	return nil
}

// stop has nothing sent any more.
func (l *locker) stop() {
	l.mu.Lock()
	defer l.unlock()
	close(l.stopped)
	for _, t := range l.sched.tasks {
		if c, ok := t.what.(*call); ok {
			c.cancel(ErrClosed)
		}
	}
	l.workers.due(time.Time{})
	l.sched.stop()
}

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
