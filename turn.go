package dlock

import "sync/atomic"

const (
	turnAwaited uint32 = iota
	turnGiven
	turnLeft
)

// reapAtOnce is how many of those who left the queues are dealt with before the mutex is free for others.
const reapAtOnce = 256

// turnWaiter is somebody who waits for the local turn of a key. Who gives up leaves without the mutex, by changing its state: when thousands
// give up at the same moment, each in line for the mutex, the deadlines of other keys would have to stand in line too.
type turnWaiter struct {
	e          *entry
	turn       chan struct{} // has room for the one message that it gets
	state      atomic.Uint32
	in         bool // it is in the queue
	prev, next *turnWaiter
	after      *turnWaiter // in the list of those who left
}

// turnQueue is a list from which anybody can leave. It is guarded by the Locker's mutex.
type turnQueue struct{ first, last *turnWaiter }

// idleTurns are kept for those who wait next. They are guarded by the Locker's mutex.
type idleTurns []*turnWaiter

const maxIdleTurns = 64

func (idle *idleTurns) get() *turnWaiter {
	n := len(*idle)
	if n == 0 {
		return &turnWaiter{turn: make(chan struct{}, 1)}
	}
	w := (*idle)[n-1]
	*idle = (*idle)[:n-1]
	return w
}

// put takes back one whose turn has come.
func (idle *idleTurns) put(w *turnWaiter) {
	if w != nil && len(*idle) < maxIdleTurns {
		w.e = nil
		w.state.Store(turnAwaited)
		*idle = append(*idle, w)
	}
}

func (q *turnQueue) push(w *turnWaiter) {
	w.in, w.prev = true, q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

func (q *turnQueue) remove(w *turnWaiter) {
	if !w.in {
		return
	}
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.in, w.prev, w.next = false, nil, nil
}

// depart settles the accounts of w, which has left its queue: together with those of all who leave meanwhile, by the first of them.
func (l *locker) depart(w *turnWaiter) {
	for {
		head := l.departed.Load()
		w.after = head
		if l.departed.CompareAndSwap(head, w) {
			if head == nil {
				l.reap()
			}
			return
		}
	}
}

// reap takes those who left off their queues.
func (l *locker) reap() {
	l.mu.Lock()
	w := l.departed.Swap(nil)
	for n := 1; w != nil; n++ {
		next := w.after
		w.e.queue.remove(w)
		l.ops--
		w.e.users--
		l.tidy(w.e)
		if w = next; n%reapAtOnce == 0 {
			l.unlock()
			l.mu.Lock()
		}
	}
	l.unlock()
}
