package dlock

import "time"

const (
	maxIdle    = 8           // how many goroutines are kept for further calls
	idleWorker = time.Second // and how long about
)

// workers are the goroutines that make calls. A few are kept for a moment, because a call needs a deep stack, which a new goroutine
// would have to grow first. They are guarded by the Locker's mutex.
type workers struct {
	task // when the idle ones are let go
	idle []*worker
}

type worker struct{ next chan *call }

// start has c made.
func (ws *workers) start(c *call) {
	if n := len(ws.idle); n > 0 {
		w := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		w.next <- c
		return
	}
	go (&worker{next: make(chan *call, 1)}).work(c)
}

func (w *worker) work(c *call) {
	for c != nil && c.run(w) {
		c = <-w.next
	}
}

// keep puts w with the idle ones, if there is room.
func (l *locker) keep(w *worker) bool {
	ws := &l.workers
	if len(ws.idle) >= maxIdle || isClosed(l.closing) {
		return false
	}
	ws.idle = append(ws.idle, w)
	if ws.place == 0 {
		l.sched.add(&ws.task, ws, time.Now().Add(idleWorker), 0)
	}
	return true
}

// due lets the idle ones go. Those that are needed all the time are soon there again.
func (ws *workers) due(time.Time) {
	for _, w := range ws.idle {
		close(w.next)
	}
	ws.idle = nil
}
