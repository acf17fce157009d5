package dlock

// maxReports is how many reports wait for a logger that is slow. What comes on top of them is dropped: a logger that blocks must not take all
// memory.
const maxReports = 1024

// reports is what is to be told to the application's logger in the background, in the order in which it happened. A logger may block, panic, or
// use the Locker, so it has a goroutine of its own while there is something to tell. It is guarded by the Locker's mutex.
type reports struct {
	list    []func()
	telling chan struct{} // closed when all is told; nil when nothing is being told
}

// later tells f to the application's logger soon.
func (l *locker) later(f func()) {
	r := &l.reports
	if l.tel.log == nil || len(r.list) >= maxReports {
		return
	}
	r.list = append(r.list, f)
	if r.telling == nil {
		r.telling = make(chan struct{})
		go l.tell()
	}
}

func (l *locker) tell() {
	for {
		l.mu.Lock()
		list := l.reports.list
		l.reports.list = nil
		if len(list) == 0 {
			close(l.reports.telling)
			l.reports.telling = nil
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		for _, f := range list {
			harmless(f)
		}
	}
}
