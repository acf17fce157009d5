package dlock

import (
	"container/heap"
	"time"
)

// sched is one timer for everything that a Locker does at some time: renewals, deadlines, limits of calls, sweeps. It is guarded by the Locker's
// mutex.
type sched struct {
	tasks taskHeap
	tick  func() // runs on the timer's goroutine, without the mutex
	timer *time.Timer
	armed time.Time // when the timer fires; zero: it does not
}

// task is something to do at a time. It lives in whatever it is for.
type task struct {
	what  interface{ due(now time.Time) } // called with the mutex held
	at    time.Time
	early time.Duration // how much sooner it may be done, together with others
	place int           // in the heap, counted from 1; 0: not there
	moved bool          // it was put on the list again while it was being done
}

// add puts t on the list, moving it if it is there.
func (s *sched) add(t *task, what interface{ due(time.Time) }, at time.Time, early time.Duration) {
	t.what, t.at, t.early, t.moved = what, at, early, true
	if t.place > 0 {
		heap.Fix(&s.tasks, t.place-1)
	} else {
		heap.Push(&s.tasks, t)
	}
	s.arm()
}

// remove takes t off the list. The timer may fire once for nothing; setting it back each time would cost more.
func (s *sched) remove(t *task) {
	if t.place > 0 {
		heap.Remove(&s.tasks, t.place-1)
	}
}

// doNext does the first task, if that can be done now, and takes it off the list unless it has been put there again. It reports whether there was one.
func (s *sched) doNext(now time.Time) bool {
	if len(s.tasks) == 0 || s.tasks[0].at.Add(-s.tasks[0].early).After(now) {
		return false
	}
	t := s.tasks[0]
	t.moved = false
	t.what.due(now)
	if !t.moved {
		s.remove(t)
	}
	return true
}

// arm makes the timer fire in time for the first task.
func (s *sched) arm() {
	if len(s.tasks) == 0 || !s.armed.IsZero() && !s.tasks[0].at.Before(s.armed) {
		return
	}
	s.armed = s.tasks[0].at
	// Never at once: in a synctest bubble under the race detector, resetting an AfterFunc timer to a time that has come crashes Go 1.26's runtime.
	wait := max(time.Until(s.armed), time.Nanosecond)
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.tick)
	} else {
		s.timer.Reset(wait)
	}
}

// stop takes everything off the list.
func (s *sched) stop() {
	for _, t := range s.tasks {
		t.place = 0
	}
	s.tasks = nil
	if s.timer != nil {
		s.timer.Stop()
	}
}

type taskHeap []*task

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h taskHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *taskHeap) Push(x any) {
	t := x.(*task)
	*h = append(*h, t)
	t.place = len(*h)
}

func (h *taskHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.place = 0
	return t
}

// tick does what is due.
func (l *locker) tick() {
	l.mu.Lock()
	defer l.unlock()
	now := time.Now()
	for l.sched.doNext(now) {
	}
	l.sendRenewals(now)
	l.sched.armed = time.Time{} // not before: the timer need not be set for what is just being done
	l.sched.arm()
}
