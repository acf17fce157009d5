package redis

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// lingerWait is how long the answer to a request that nobody waits for any more is awaited.
	lingerWait = time.Second

	// brokenWait is how long a request may still be carried out whose connection broke before the
	// answer. What the server has read or is about to read is carried out within moments, and
	// nobody can tell.
	brokenWait = 250 * time.Millisecond
)

// wire is the connection of a lane. It can be cut: whoever uses it is told at once that it is
// broken, but it stays open until the answer to what was written has come. A request whose caller
// has gone is so known to have been carried out, and what is sent for the same claim afterwards
// comes behind it.
type wire struct {
	net.Conn

	cut    atomic.Bool
	owing  atomic.Bool // something was written, and nothing has come since
	closed atomic.Bool // by its user
	ended  sync.Once
	over   chan struct{} // closed when nothing that was written will be carried out any more, as far as can be known

	dropped   chan struct{} // closed when nobody wants to know that
	drop      func()
	lingering *atomic.Int64
}

// newWire returns conn as a wire. The client library looks at the socket of a connection, but not
// through TLS.
func newWire(conn net.Conn, lingering *atomic.Int64) (*wire, net.Conn) {
	w := &wire{Conn: conn, over: make(chan struct{}), dropped: make(chan struct{}), lingering: lingering}
	w.drop = sync.OnceFunc(func() {
		close(w.dropped)
		hangUp(conn)
	})
	if raw, ok := conn.(syscall.Conn); ok {
		return w, rawWire{w, raw}
	}
	return w, w
}

// rawWire is a wire whose socket can be looked at.
type rawWire struct {
	*wire
	raw syscall.Conn
}

// SyscallConn implements [syscall.Conn].
func (w rawWire) SyscallConn() (syscall.RawConn, error) { return w.raw.SyscallConn() }

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.owing.Store(false)
	}
	if w.cut.Load() {
		return 0, errCut
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	if w.cut.Load() {
		return 0, errCut
	}
	before := w.owing.Swap(true)
	n, err := w.Conn.Write(p)
	if n == 0 && err != nil {
		w.owing.Store(before)
	}
	return n, err
}

// SetDeadline implements [net.Conn]. That of a wire that was cut has passed.
func (w *wire) SetDeadline(t time.Time) error { return w.deadline(w.Conn.SetDeadline(t)) }

// SetReadDeadline implements [net.Conn].
func (w *wire) SetReadDeadline(t time.Time) error { return w.deadline(w.Conn.SetReadDeadline(t)) }

// SetWriteDeadline implements [net.Conn].
func (w *wire) SetWriteDeadline(t time.Time) error { return w.deadline(w.Conn.SetWriteDeadline(t)) }

func (w *wire) deadline(err error) error {
	if w.cut.Load() {
		w.interrupt()
	}
	return err
}

func (w *wire) interrupt() { _ = w.Conn.SetDeadline(time.Unix(1, 0)) }

// cutOff ends whatever the user of the wire does, and lets him do no more.
func (w *wire) cutOff() {
	w.cut.Store(true)
	w.interrupt()
}

// mend takes a cut back that came too late: the call that it was to end has got its answer, and its
// user keeps the wire for the next one.
func (w *wire) mend() {
	if !w.closed.Load() && w.cut.Swap(false) {
		_ = w.Conn.SetDeadline(time.Time{})
	}
}

// Close implements [net.Conn].
func (w *wire) Close() error {
	w.closed.Store(true)
	w.ended.Do(func() {
		if w.owing.Load() {
			go w.linger()
			return
		}
		hangUp(w.Conn)
		close(w.over)
	})
	return nil
}

// maxLingering is how many connections may wait for answers that nobody else waits for.
const maxLingering = 64

// linger awaits the answer to what was written, if the one who wrote it did not wait until a
// timeout, and closes the connection.
func (w *wire) linger() {
	defer close(w.over)
	defer w.lingering.Add(-1)
	if w.lingering.Add(1) <= maxLingering && w.cut.Load() && w.answered() {
		hangUp(w.Conn)
		return
	}
	hangUp(w.Conn)
	select {
	case <-w.dropped:
	case <-time.After(brokenWait):
	}
}

// answered waits for a while for the answer. When that has passed without one nothing more can be
// found out.
func (w *wire) answered() bool {
	_ = w.Conn.SetReadDeadline(time.Now().Add(lingerWait))
	n, err := w.Conn.Read(make([]byte, 1))
	return n > 0 || os.IsTimeout(err)
}

// isOver reports whether nothing that was written will be carried out any more.
func (w *wire) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// hangUp closes a connection, that of TLS beneath, because a farewell might have to wait.
func hangUp(conn net.Conn) {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn()
	}
	_ = conn.Close()
}
