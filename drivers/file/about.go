//go:build linux || darwin

package file

import (
	"context"
	"encoding/binary"
	"errors"
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
	if d.bad || len(d.b) > 0 || a.floor > maxFence {
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
		return a, nil
	}
	f, err := d.lock(ctx, done, aboutName, create)
	if err != nil {
		return about{}, err
	}
	defer f.close()
	if a, err = decodeAbout(f.body); err != nil {
		return about{}, d.damaged(aboutName, err)
	}
	if a.boot == d.boot {
		return a, nil
	}
	if a.boot != "" {
		if err := d.removeDamaged(); err != nil {
			return about{}, err
		}
	}
	a.boot, a.swept = d.boot, monotonic()
	return a, f.keep(a.encode())
}

// removeDamaged removes the files that cannot be read. Those of a crash lost their fences; the wall clock keeps the next ones above.
func (d *dir) removeDamaged() error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !isKeyFile(name) {
			continue
		}
		if _, err := d.look(name); errors.Is(err, errDamaged) {
			if err := d.remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}
