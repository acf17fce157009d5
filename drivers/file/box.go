//go:build linux || darwin

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A process that waits has a mailbox, a named pipe in the directory. Whoever gives it a lock writes the waiting call's ticket there. A pipe that nobody reads cannot be
// opened for writing: so a process that was killed is known to be gone at once.

const ticketSize = 8

// mail is the mailbox of a backend, once it has one, and the calls that wait for something in it.
type mail struct {
	mu      sync.Mutex
	box     *box
	tickets uint64
	calls   map[uint64]chan struct{}
	readers sync.WaitGroup
}

type box struct {
	d     *dir
	name  string
	stat  unix.Stat_t
	read  *os.File
	write *os.File // keeps the pipe from ending when nobody else has it open
}

// register returns the name of the mailbox in d, a ticket, and a channel on which a call hears of its letters.
func (m *mail) register(d *dir) (name string, ticket uint64, woken <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.box.usable(d) {
		fresh, err := d.makeBox()
		if err != nil {
			return "", 0, nil, err
		}
		m.box.close()
		m.box = fresh
		m.readers.Go(func() { m.deliver(fresh) })
	}
	if m.calls == nil {
		m.calls = map[uint64]chan struct{}{}
	}
	m.tickets++
	ch := make(chan struct{}, 1)
	m.calls[m.tickets] = ch
	return m.box.name, m.tickets, ch, nil
}

func (m *mail) unregister(ticket uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, ticket)
}

// has reports whether letters to name in d would arrive.
func (m *mail) has(d *dir, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.box.usable(d) && m.box.name == name
}

// deliver wakes the calls whose tickets come in. A letter is written at once or not at all, so
// what is no number of whole tickets is from somebody else: it wakes all, who look for themselves.
func (m *mail) deliver(from *box) {
	var letters [512 * ticketSize]byte
	for {
		n, err := from.read.Read(letters[:])
		if err != nil {
			return
		}
		if n%ticketSize != 0 {
			m.wakeAll()
			continue
		}
		for ticket := range slices.Chunk(letters[:n], ticketSize) {
			m.wake(binary.LittleEndian.Uint64(ticket))
		}
	}
}

func (m *mail) wake(ticket uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	notify(m.calls[ticket])
}

func (m *mail) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ch := range m.calls {
		notify(ch)
	}
}

func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default: // nobody waits, or it knows already
	}
}

func (m *mail) close() {
	m.mu.Lock()
	m.box.close()
	m.box = nil
	m.mu.Unlock()
	m.readers.Wait()
}

// makeBox makes a mailbox. Somebody who sweeps may remove it before we read from it, in which case it is made again.
func (d *dir) makeBox() (*box, error) {
	for tries := 1; ; tries++ {
		name := boxPrefix + randomName()
		if err := d.makeFIFO(name); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
				return nil, fmt.Errorf("named pipes: %w", errors.ErrUnsupported)
			}
			return nil, d.trouble(name, err)
		}
		box, err := d.openBox(name)
		switch {
		case err == nil && box.usable(d):
			return box, nil
		case err == nil:
			box.close()
			err = errSwapped
		default:
			_ = d.remove(name)
		}
		if tries == boxTries || !errors.Is(err, errSwapped) && !errors.Is(err, unix.ENOENT) {
			return nil, d.trouble(name, err)
		}
	}
}

// openBox opens the pipe that was made under this name. In a shared directory another member may
// have put something else in its place: that is neither used nor given another mode.
func (d *dir) openBox(name string) (*box, error) {
	b := &box{d: d, name: name}
	read, err := openAt(d.fd, name, unix.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.Fstat(read, &b.stat); err == nil && !d.isOwnPipe(&b.stat) {
		err = errSwapped
	}
	if err == nil && d.group {
		err = unix.Fchmod(read, d.fileMode()) // the umask may have taken something away
	}
	if err != nil {
		_ = unix.Close(read)
		return nil, err
	}
	write, err := openAt(d.fd, name, unix.O_WRONLY|openFlags, 0)
	if err != nil {
		_ = unix.Close(read)
		return nil, err
	}
	b.read, b.write = os.NewFile(uintptr(read), name), os.NewFile(uintptr(write), name)
	return b, nil
}

var errSwapped = errors.New("somebody has removed or replaced the mailbox")

// boxTries is how often a mailbox is made: somebody may remove every one of them.
const boxTries = 20

func isPipe(s *unix.Stat_t) bool { return s.Mode&unix.S_IFMT == unix.S_IFIFO }

// isOwnPipe reports whether s is a pipe that this process may just have made in the directory. One
// that it made elsewhere, and that a member linked, has another group or another name.
func (d *dir) isOwnPipe(s *unix.Stat_t) bool {
	return isPipe(s) && int(s.Uid) == os.Geteuid() && (!d.group || s.Gid == d.stat.Gid && s.Nlink == 1)
}

// usable reports whether the mailbox is in d, and nobody has removed or replaced it.
func (b *box) usable(d *dir) bool {
	var s unix.Stat_t
	return b != nil && b.d == d && fstatAt(d.fd, b.name, &s) == nil && d.isOwnPipe(&s) && s.Ino == b.stat.Ino && s.Dev == b.stat.Dev
}

func (b *box) close() {
	if b == nil {
		return
	}
	_ = b.d.remove(b.name)
	_ = b.read.Close()
	_ = b.write.Close()
}

// letter is a ticket on its way.
type letter struct {
	to     *os.File // the mailbox; nil: there is nothing to send
	ticket uint64
}

// address opens the mailbox of w, and reports whether w is there. If that cannot be known it is taken to be: it looks for itself sooner or later.
//
// The name comes from a file that every member of a group may write to. It leads nowhere but to a
// pipe in the directory, whatever it says.
func (d *dir) address(w waiter) (letter, bool) {
	if !isBox(w.box) {
		return letter{}, false
	}
	fd, err := openAt(d.fd, w.box, unix.O_WRONLY|openFlags, 0)
	if err != nil {
		return letter{}, !slices.Contains([]error{unix.ENXIO, unix.ENOENT, unix.ELOOP, unix.EISDIR}, err)
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || !isPipe(&s) || !d.isShared(&s) {
		_ = unix.Close(fd)
		return letter{}, false
	}
	return letter{os.NewFile(uintptr(fd), w.box), w.ticket}, true
}

// send sends the letter, unless the mailbox is full, as that of a process that is stopped may be. If it does not arrive, whoever waits for it looks for itself sooner
// or later.
func (l letter) send() {
	if l.to == nil {
		return
	}
	if raw, err := l.to.SyscallConn(); err == nil {
		_ = raw.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), binary.LittleEndian.AppendUint64(nil, l.ticket)) //nolint:gosec // it is a descriptor
			return true
		})
	}
}

func (l letter) drop() {
	if l.to != nil {
		_ = l.to.Close()
	}
}

// deadBox reports whether nobody reads from a mailbox.
func (d *dir) deadBox(name string) bool {
	fd, err := openAt(d.fd, name, unix.O_WRONLY|openFlags, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.ENXIO)
}
