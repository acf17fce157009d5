//go:build linux || darwin

package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// locked is a file that this call alone works on, until close. A write is the last thing to be done with it, unless the size of the record stays the same.
type locked struct {
	d    *dir
	name string
	fd   int
	size int    // of the file; 0 if it is empty
	seq  uint64 // the number of the record that counts; 0: there is none
	body []byte // and its body
}

// errMissing is lock's answer when there is no file and none is to be made.
var errMissing = errors.New("there is no such file")

// how is the way in which a file is locked.
type how uint8

const (
	create how = 1 << iota // make the file if it is missing
	hasty                  // do not wait for a process that is stopped
)

// lock opens a file and gets its flock. A file may be removed or replaced before we have it, which whoever does it does under the flock: then
// its name leads elsewhere, and we begin again.
func (d *dir) lock(ctx context.Context, done <-chan struct{}, name string, as how) (*locked, error) {
	for {
		f, err := d.open(name, as&create != 0)
		if err != nil {
			return nil, err
		}
		if err := lockFile(ctx, done, f.fd, as&hasty != 0); err != nil {
			f.close()
			return nil, d.trouble(name, err)
		}
		gone, err := f.read()
		if err == nil && !gone {
			return f, nil
		}
		f.close()
		if err == nil {
			err = ctx.Err() // somebody may replace the file all the time
		}
		if err != nil {
			return nil, err
		}
	}
}

func (d *dir) open(name string, create bool) (*locked, error) {
	flags := unix.O_RDWR | openFlags
	if create && !d.group {
		flags |= unix.O_CREAT
	}
	fd, err := openAt(d.fd, name, flags, d.fileMode())
	for i := 0; create && errors.Is(err, unix.ENOENT) && i < makeTries; i++ {
		if err = d.makeShared(name); err == nil {
			fd, err = openAt(d.fd, name, flags, 0)
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT) && !create:
		return nil, errMissing
	case isNoFile(err):
		return nil, d.damaged(name, errSignature)
	case err != nil:
		return nil, d.trouble(name, err)
	}
	return &locked{d: d, name: name, fd: fd}, nil
}

// makeTries is how often a file is made for a group: whoever sweeps may remove it while it is empty.
const makeTries = 100

// isNoFile reports whether open answered that there is a link, a directory or a socket.
func isNoFile(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EOPNOTSUPP)
}

// makeShared makes an empty file for the group to share. It has its mode before it has its name, so that nobody is refused meanwhile.
func (d *dir) makeShared(name string) error {
	temp, fd, err := d.makeTemp()
	if err != nil {
		return err
	}
	defer func() { _ = d.remove(temp); _ = unix.Close(fd) }()
	err = renameNew(d.fd, temp, name)
	if err != nil && !errors.Is(err, unix.EEXIST) { // not every file system and sandbox knows it
		err = unix.Linkat(d.fd, temp, d.fd, name, 0)
	}
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// makeTemp makes an empty file under a name that nobody looks for, with the mode that it is to have whatever the umask is.
func (d *dir) makeTemp() (name string, fd int, err error) {
	name = newPrefix + randomName()
	fd, err = openAt(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|openFlags, d.fileMode())
	if err != nil {
		return "", -1, err
	}
	if err := unix.Fchmod(fd, d.fileMode()); err != nil {
		_ = unix.Close(fd)
		_ = d.remove(name)
		return "", -1, err
	}
	return name, fd, nil
}

// read takes in what the file says, and reports whether the file is gone.
func (f *locked) read() (gone bool, err error) {
	var s, named unix.Stat_t
	if err := unix.Fstat(f.fd, &s); err != nil {
		return false, f.d.trouble(f.name, err)
	}
	switch err := fstatAt(f.d.fd, f.name, &named); {
	case errors.Is(err, unix.ENOENT), err == nil && (named.Ino != s.Ino || named.Dev != s.Dev):
		return true, nil
	case err != nil:
		return false, f.d.trouble(f.name, err)
	}
	f.size = 1 // not empty: what is not believed is replaced, never written to
	var data []byte
	if err = f.d.believe(&s); err == nil {
		if data, err = readAll(f.fd, make([]byte, s.Size)); err != nil {
			return false, f.d.trouble(f.name, err)
		}
		f.size = len(data)
		f.seq, f.body, err = parse(data)
	}
	if err != nil && f.name == aboutName { // begun anew: no lock depends on it
		f.seq, f.body, err = 0, nil, nil
	}
	if err != nil {
		return false, f.d.damaged(f.name, err)
	}
	return false, nil
}

var errNotShared = errors.New("not all members of the group can write to it, so it may be a link to a file outside the directory")

// believe looks at what a file is before anything is read from it or written to it: in a shared
// directory it may be anything that a member can make.
func (d *dir) believe(s *unix.Stat_t) error {
	switch {
	case s.Mode&unix.S_IFMT != unix.S_IFREG:
		return errSignature
	case s.Size > maxSize:
		return fmt.Errorf("it has %d bytes, and %w", s.Size, errTooLarge)
	case !d.isShared(s):
		return errNotShared
	}
	return nil
}

// isShared reports whether what was opened is no more than what every member of the group can write
// to anyway. A member may link a file of somebody else into the directory. The number of its names
// does not tell: it changes between two looks, as the member likes. The group and the mode do not.
func (d *dir) isShared(s *unix.Stat_t) bool {
	return !d.group || s.Gid == d.stat.Gid && s.Mode&0o060 == 0o060
}

// state is what a key's file says.
func (f *locked) state() (state, error) {
	if f.seq == 0 {
		return state{}, nil
	}
	s, err := decodeState(f.body)
	if err != nil {
		return state{}, f.d.damaged(f.name, err)
	}
	return s, nil
}

// write makes b, which has room for a record's head in front of the body, the record that counts. After an error the old one does.
func (f *locked) write(b []byte) error { return f.writeAnd(func(int) error { return nil }, b) }

// keep is write that also survives a crash of the machine.
func (f *locked) keep(b []byte) error { return f.writeAnd(fsync, b) }

// writeAnd calls sync with the descriptor that b was written to.
func (f *locked) writeAnd(sync func(fd int) error, b []byte) error {
	want := sizeFor(len(b) - recordSize)
	var err error
	switch {
	case want > maxSize:
		err = fmt.Errorf("too many wait: %w", errTooLarge)
	case f.size == 0:
		if err = f.begin(want); err == nil {
			err = f.put(b)
		}
	case f.seq == 0 || f.size < want || f.size > 8*want: // begun and never finished, too small, or far too large
		err = f.replace(sync, b, want)
		sync = nil
	default:
		err = f.put(b)
	}
	if err == nil && sync != nil {
		err = sync(f.fd)
	}
	if err != nil {
		return f.d.trouble(f.name, err)
	}
	return nil
}

// fsync is left out by tests that would do nothing but wait for it.
var fsync = unix.Fsync

// begin makes room for the first record.
func (f *locked) begin(size int) error {
	if err := unix.Ftruncate(f.fd, int64(size)); err != nil {
		return err
	}
	f.size = size
	return writeAt(f.fd, header(markNone), 0)
}

// put fills the slot that does not count, and makes it the one that does.
func (f *locked) put(b []byte) error {
	seq := nextNumber(f.seq)
	seal(b, seq)
	if err := writeAt(f.fd, b, slotAt(seq, f.size)); err != nil {
		return err
	}
	if err := writeAt(f.fd, []byte{markOf(seq)}, len(signature)); err != nil {
		return err
	}
	f.seq = seq
	return nil
}

// replace puts a file of another size in the place of this one.
func (f *locked) replace(sync func(fd int) error, b []byte, size int) error {
	temp, fd, err := f.d.makeTemp()
	if err != nil {
		return err
	}
	next := locked{d: f.d, name: temp, fd: fd, seq: f.seq}
	defer next.close()
	if err = next.begin(size); err == nil {
		err = next.put(b)
	}
	if err == nil {
		err = sync(next.fd)
	}
	if err == nil {
		err = unix.Renameat(f.d.fd, temp, f.d.fd, f.name)
	}
	if err != nil {
		_ = f.d.remove(temp)
	}
	return err
}

// close gives the flock back. Closing alone might leave it to a child that is just being started and has the descriptor until it runs.
func (f *locked) close() {
	if f.fd < 0 {
		return
	}
	_ = flock(f.fd, unix.LOCK_UN)
	_ = unix.Close(f.fd)
	f.fd = -1
}

// peek reads a file without waiting for whoever works on it: what it says was so a moment ago.
func (d *dir) peek(name string) (seq uint64, body []byte, err error) {
	fd, err := openAt(d.fd, name, unix.O_RDONLY|openFlags, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, nil, errMissing
	case isNoFile(err):
		return 0, nil, d.damaged(name, errSignature)
	case err != nil:
		return 0, nil, d.trouble(name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var last []byte
	for i := range 1000 {
		if i > 2 {
			time.Sleep(10 * time.Microsecond)
		}
		var s unix.Stat_t
		if err := unix.Fstat(fd, &s); err != nil {
			return 0, nil, d.trouble(name, err)
		}
		if err := d.believe(&s); err != nil {
			return 0, nil, d.damaged(name, err)
		}
		data, err := readAll(fd, make([]byte, s.Size))
		if err != nil {
			return 0, nil, d.trouble(name, err)
		}
		if last != nil && bytes.Equal(data, last) { // nobody wrote meanwhile
			if seq, body, err = parse(data); err != nil {
				err = d.damaged(name, err)
			}
			return seq, body, err
		}
		last = data
	}
	return 0, nil, d.trouble(name, errors.New("it is written all the time"))
}
