package dlock

import (
	"context"
	"sync"
)

// foreignHold is a hold of a Locker that is no LeaseLocker. Nothing is known of it but that Lock returned nil.
type foreignHold struct {
	l   Locker
	key string
	mu  sync.Mutex
}

func foreignLease(l Locker, key string) *Lease {
	return &Lease{foreign: &foreignHold{l: l, key: key}, done: make(chan struct{})}
}

func (x *Lease) foreignErr() error {
	x.foreign.mu.Lock()
	defer x.foreign.mu.Unlock()
	return x.err
}

func (x *Lease) foreignUnlock(ctx context.Context) error {
	f := x.foreign
	f.mu.Lock()
	if x.err != nil {
		f.mu.Unlock()
		return &Error{Op: "unlock", Key: f.key, Err: ErrLockNotHeld}
	}
	ends := x.end(errReleased, nil)
	f.mu.Unlock()
	for _, e := range ends {
		e.run()
	}
	// A Locker from elsewhere may do nothing at all on a dead ctx; the lock would stay.
	if err := f.l.Unlock(context.WithoutCancel(ctx), f.key); err != nil {
		return asError("unlock", f.key, err)
	}
	return nil
}
