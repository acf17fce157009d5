//go:build linux || darwin

package file

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// about is what a directory knows of itself.
type about struct {
	boot  string // the boot of the machine in which it was last used
	floor uint64 // no file that was removed had a fence above this one
	swept int64  // when files that nobody needs were last removed
}

func (a about) encode() []byte {
	b := putText(make([]byte, recordSize, 128), a.boot)
	b = binary.LittleEndian.AppendUint64(b, a.floor)
	return binary.LittleEndian.AppendUint64(b, uint64(a.swept))
}

func decodeAbout(body []byte) (about, error) {
	if len(body) == 0 {
		return about{}, nil
	}
	d := decoder{b: body}
	a := about{boot: d.text(), floor: d.num(), swept: d.int()}
	if d.bad || len(d.b) > 0 || a.floor > maxFloor {
		return about{}, errBody
	}
	return a, nil
}

// about reads what the directory knows of itself.
func (d *dir) about() (about, error) {
	_, body, err := d.peek(aboutName)
	if errors.Is(err, errMissing) {
		return about{}, nil
	}
	if err != nil {
		return about{}, err
	}
	a, err := decodeAbout(body)
	if err != nil {
		return about{}, d.damaged(aboutName, err)
	}
	return a, nil
}

// prepare is the first thing to be done with a directory after it was opened. What a crash of the machine left half written is removed by the
// first one who comes: until it has said so in the directory nobody else of this boot writes, so whatever is damaged is from before.
func (d *dir) prepare(ctx context.Context, done <-chan struct{}) (about, error) {
	a, err := d.about()
	if err == nil && a.boot == d.boot {
		if !d.isMarked() { // somebody removed the mark
			_ = d.mark()
		}
		return a, nil
	}
	f, err := d.lock(ctx, done, aboutName, create)
	if err != nil {
		return about{}, err
	}
	defer f.close()
	if a, err = decodeAbout(f.body); err != nil { // begun anew, as when nothing can be read
		a = about{}
	}
	if a.boot == d.boot {
		return a, nil
	}
	marks, err := d.marks()
	if err != nil {
		return about{}, err
	}
	if d.isFirst(a, marks) {
		if err := d.removeDamaged(ctx, done); err != nil {
			return about{}, err
		}
	}
	// The mark comes first: who finds that the directory knows of this boot must find the mark, too.
	if err := d.mark(); err != nil {
		return about{}, err
	}
	a.boot, a.swept = d.boot, monotonic()
	if err := f.keep(a.encode()); err != nil {
		return about{}, err
	}
	for _, name := range marks {
		if name != bootName(d.boot) {
			_ = d.remove(name)
		}
	}
	return a, nil
}

// isFirst reports whether nobody has used the directory since the machine was started. The
// directory's own file tells. If that is damaged the marks do, of which a crash leaves the names.
// Without either nobody knows, and the files of this boot must not be removed.
func (d *dir) isFirst(a about, marks []string) bool {
	if a.boot != "" {
		return a.boot != d.boot
	}
	return len(marks) > 0 && !slices.Contains(marks, bootName(d.boot))
}

// marks returns the files that say in which boots of the machine the directory was used.
func (d *dir) marks() ([]string, error) {
	names, err := d.names()
	return slices.DeleteFunc(names, func(name string) bool { return !isBoot(name) }), err
}

func (d *dir) isMarked() bool {
	var s unix.Stat_t
	return fstatAt(d.fd, bootName(d.boot), &s) == nil
}

// mark says by a name that the directory is used in this boot of the machine.
func (d *dir) mark() error {
	name := bootName(d.boot)
	fd, err := openAt(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|openFlags, d.fileMode())
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return d.trouble(name, err)
	}
	_ = unix.Close(fd)
	if err := fsync(d.fd); err != nil {
		return d.trouble("", err)
	}
	return nil
}

// removeDamaged removes the files that cannot be read. Those of a crash lost their fences; the wall clock keeps the next ones above.
// One that cannot be removed, as a directory cannot, keeps nobody from the other keys.
func (d *dir) removeDamaged(ctx context.Context, done <-chan struct{}) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !isKeyFile(name) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if isClosed(done) {
			return errClosed
		}
		if _, err := d.look(name); errors.Is(err, errDamaged) {
			_ = d.remove(name)
		}
	}
	return nil
}
