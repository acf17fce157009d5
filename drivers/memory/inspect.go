package memory

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Inspector].
func (b *Backend) Inspect(ctx context.Context, key string) (driver.Info, error) {
	now, err := b.enter(ctx)
	if err != nil {
		return driver.Info{}, err
	}
	defer b.store.mu.Unlock()
	if l := b.store.find(key, now); l != nil {
		return l.info(now), nil
	}
	return driver.Info{Key: key}, nil
}

// List implements [driver.Inspector]. It yields the locks that were held when the iteration began, sorted by key.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	return func(yield func(driver.Info, error) bool) {
		infos, err := b.snapshot(ctx, prefix)
		for _, info := range infos {
			if err = ctx.Err(); err != nil || !yield(info, nil) {
				break
			}
		}
		if err != nil {
			yield(driver.Info{}, err)
		}
	}
}

func (b *Backend) snapshot(ctx context.Context, prefix string) ([]driver.Info, error) {
	now, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer b.store.mu.Unlock()
	var infos []driver.Info
	for key := range b.store.locks {
		if l := b.store.find(key, now); l != nil && strings.HasPrefix(key, prefix) {
			infos = append(infos, l.info(now))
		}
	}
	slices.SortFunc(infos, func(x, y driver.Info) int { return strings.Compare(x.Key, y.Key) })
	return infos, nil
}

func (l *lock) info(now time.Time) driver.Info {
	info := driver.Info{Key: l.holder.Key, Owner: l.holder.Owner, Fence: l.fence, TTL: l.expires.Sub(now), Since: l.since}
	for _, w := range l.queue {
		info.Waiters = append(info.Waiters, w.claim.Owner)
	}
	return info
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, key string, fence uint64) error {
	now, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer b.store.mu.Unlock()
	l := b.store.find(key, now)
	if l == nil || l.fence != fence {
		return driver.ErrNotOwner
	}
	b.store.pass(l, now)
	return nil
}
