//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Inspector]. It does not wait for a process that works on the key.
func (b *backend) Inspect(ctx context.Context, key string) (driver.Info, error) {
	d, err := b.enter(ctx)
	if err != nil {
		return driver.Info{}, failed("inspect", err)
	}
	defer b.leave()
	s, err := d.look(fileName(key))
	if err != nil || s.key != key {
		return driver.Info{Key: key}, failed("inspect", err)
	}
	return s.info(), nil
}

// look returns the state in a file, which has no key if the file is missing.
func (d *dir) look(name string) (state, error) {
	seq, body, err := d.peek(name)
	if errors.Is(err, errMissing) || err == nil && seq == 0 {
		return state{}, nil
	}
	if err != nil {
		return state{}, err
	}
	s, err := decodeState(body)
	if err != nil {
		return state{}, d.damaged(name, err)
	}
	if fileName(s.key) != name {
		return state{}, d.damaged(name, errOtherKey)
	}
	s.settle(d.boot, monotonic())
	return s, nil
}

func (s *state) info() driver.Info {
	info, now := driver.Info{Key: s.key}, monotonic()
	if s.holder != "" {
		info.Owner, info.Fence = s.owner, s.fence
		info.TTL, info.Since = time.Duration(max(s.expires-now, 1)), time.UnixMicro(s.since)
	}
	for _, w := range s.queue {
		if !w.silent(now) {
			info.Waiters = append(info.Waiters, w.owner)
		}
	}
	return info
}

// List implements [driver.Inspector], in the order of the keys. Files that cannot be read are reported at the end, so that they do not hide the others.
func (b *backend) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	return func(yield func(driver.Info, error) bool) {
		infos, err := b.list(ctx, prefix)
		for _, info := range infos {
			if !yield(info, nil) {
				return
			}
		}
		if err != nil {
			yield(driver.Info{}, failed("list", err))
		}
	}
}

func (b *backend) list(ctx context.Context, prefix string) (infos []driver.Info, err error) {
	d, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer b.leave()
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	var bad []error
	for _, name := range names {
		if !isKeyFile(name) {
			continue
		}
		if ctx.Err() != nil {
			return infos, ctx.Err()
		}
		s, err := d.look(name)
		if err != nil {
			bad = append(bad, err)
		}
		if s.holder != "" && strings.HasPrefix(s.key, prefix) {
			infos = append(infos, s.info())
		}
	}
	slices.SortFunc(infos, func(x, y driver.Info) int { return strings.Compare(x.Key, y.Key) })
	if more := len(bad) - maxBad; more > 0 {
		bad = append(bad[:maxBad], fmt.Errorf("%d more files cannot be read", more))
	}
	return infos, errors.Join(bad...)
}

// maxBad is how many files that cannot be read are named: there may be any number of them.
const maxBad = 20
