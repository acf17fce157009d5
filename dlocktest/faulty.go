package dlocktest

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

// faulty is a client of a store in memory, with a network in between that can fail.
type faulty struct {
	*memory.Backend
	blocks bool // calls may take time, and return when their context ends; otherwise they never do

	mu      sync.Mutex
	err     error           // what every call returns; nil: the network works
	down    context.Context // ends when err is set
	end     context.CancelFunc
	delay   time.Duration        // what a request and its reply take together
	replies int                  // how many of the next replies get lost
	holds   map[string]storeHold // by token: granted, and not released by this client
	cuts    map[string]cut       // by token
}

// storeHold is a claim that was granted.
type storeHold struct {
	claim driver.Claim
	grant driver.Grant
}

// has reports whether fence is one of the grant's.
func (x storeHold) has(fence uint64) bool {
	return fence >= x.grant.Fence && fence < x.grant.Fence+uint64(max(1, x.grant.Fences))
}

// cut is what has become of a hold that is taken from its holder.
type cut int

const (
	cutGone   cut = iota + 1 // the store says that it is gone
	cutSilent                // the store says nothing
)

var (
	errSilent = errors.New("dlocktest: the store does not answer")
	errReply  = errors.New("dlocktest: the connection broke before the reply arrived")
)

func newFaulty(b *memory.Backend) *faulty {
	f := &faulty{Backend: b, holds: map[string]storeHold{}, cuts: map[string]cut{}}
	f.down, f.end = context.WithCancel(context.Background())
	return f
}

// CallMode implements [driver.CallModer].
func (f *faulty) CallMode() driver.CallMode {
	if f.blocks {
		return driver.Interruptible
	}
	return driver.Inline
}

func (f *faulty) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	f.end()
	if err == nil {
		f.down, f.end = context.WithCancel(context.Background())
	}
}

func (f *faulty) slow(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

func (f *faulty) loseReply() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replies++
}

// take takes key from the holder with the given fence and returns its claim. It reports false, and
// does nothing, if that holder has released the key: whoever holds it by then keeps it.
func (f *faulty) take(key string, fence uint64, how cut) (driver.Claim, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for token, x := range f.holds {
		if x.claim.Key == key && x.has(fence) {
			delete(f.holds, token)
			f.cuts[token] = how
			return x.claim, true
		}
	}
	return driver.Claim{}, false
}

// answer makes the store answer again for a claim that was taken in silence.
func (f *faulty) answer(c driver.Claim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cuts[c.Token] = cutGone
}

// severedLocked is what a client is told that had its key taken away, nil for every other one.
func (f *faulty) severedLocked(c driver.Claim) error {
	switch f.cuts[c.Token] {
	case cutGone:
		return driver.ErrNotOwner
	case cutSilent:
		return errSilent
	default:
		return nil
	}
}

// storeCall is one request to the store.
type storeCall struct {
	claim   driver.Claim
	renewal bool // its reply is never lost: nobody would notice
	release bool
	apply   func(ctx context.Context) error
}

// send carries a request to the store, half of the delay before the store applies it and half
// after.
func (f *faulty) send(ctx context.Context, r storeCall) error {
	f.mu.Lock()
	delay, err := f.delay, f.severedLocked(r.claim)
	f.mu.Unlock()
	if err != nil {
		return err // at once, so that Lose need not wait
	}
	if err := travel(ctx, delay/2); err != nil {
		return err
	}
	if err := f.arrive(r); err != nil {
		return err
	}
	err = r.apply(ctx)
	if f.replyIsLost(r, err) {
		return errReply
	}
	if late := travel(ctx, delay-delay/2); late != nil {
		return late
	}
	return err
}

// arrive is the moment in which the request reaches the store, or does not.
func (f *faulty) arrive(r storeCall) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.severedLocked(r.claim); err != nil {
		return err
	}
	if f.err != nil {
		return f.err
	}
	if r.release {
		delete(f.holds, r.claim.Token)
	}
	return nil
}

// replyIsLost reports whether the store's answer err is one that does not arrive.
func (f *faulty) replyIsLost(r storeCall, err error) bool {
	answered := err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotOwner)
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.renewal || !answered || f.replies == 0 {
		return false
	}
	f.replies--
	return true
}

// travel waits for d, or until ctx ends.
func travel(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// granted notes that the store gave c.
func (f *faulty) granted(c driver.Claim, g driver.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[c.Token] = storeHold{c, g}
}

func (f *faulty) Acquire(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	err = f.send(ctx, storeCall{claim: c, apply: func(ctx context.Context) (err error) {
		if g, err = f.Backend.Acquire(ctx, c); err == nil {
			f.granted(c, g)
		}
		return err
	}})
	return kept(g, err)
}

// kept is a grant, if its reply arrived.
func kept(g driver.Grant, err error) (driver.Grant, error) {
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

func (f *faulty) Wait(ctx context.Context, c driver.Claim, queued func()) (g driver.Grant, err error) {
	err = f.send(ctx, storeCall{claim: c, apply: func(ctx context.Context) (err error) {
		g, err = f.wait(ctx, c, queued)
		return err
	}})
	return kept(g, err)
}

// wait is Wait of the store, until the network fails.
func (f *faulty) wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(down, cancel)()
	g, err := f.Backend.Wait(waiting, c, queued)
	switch {
	case err == nil:
		f.granted(c, g)
	case ctx.Err() == nil:
		f.mu.Lock()
		defer f.mu.Unlock()
		if why := cmp.Or(f.severedLocked(c), f.err); why != nil {
			err = why
		}
	}
	return g, err
}

func (f *faulty) Renew(ctx context.Context, c driver.Claim) (g driver.Grant, err error) {
	err = f.send(ctx, storeCall{claim: c, renewal: true, apply: func(ctx context.Context) (err error) {
		g, err = f.Backend.Renew(ctx, c)
		return err
	}})
	return kept(g, err)
}

// RenewBatch is one request, however many the claims are.
func (f *faulty) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	renewals := make([]driver.Renewal, len(claims))
	err := f.send(ctx, storeCall{renewal: true, apply: func(ctx context.Context) error {
		for i, c := range claims {
			renewals[i] = f.renew(ctx, c)
		}
		return nil
	}})
	for i := range renewals {
		if err != nil {
			renewals[i] = driver.Renewal{Err: err}
		}
	}
	return renewals
}

// renew renews one claim of a batch that has arrived.
func (f *faulty) renew(ctx context.Context, c driver.Claim) (r driver.Renewal) {
	f.mu.Lock()
	r.Err = f.severedLocked(c)
	f.mu.Unlock()
	if r.Err == nil {
		r.Grant, r.Err = f.Backend.Renew(ctx, c)
	}
	return r
}

func (f *faulty) Release(ctx context.Context, c driver.Claim) error {
	return f.send(ctx, storeCall{claim: c, release: true, apply: func(ctx context.Context) error {
		return f.Backend.Release(ctx, c)
	}})
}

func (f *faulty) Ping(ctx context.Context) error {
	return f.send(ctx, storeCall{apply: f.Backend.Ping})
}

func (f *faulty) Inspect(ctx context.Context, key string) (info driver.Info, err error) {
	err = f.send(ctx, storeCall{apply: func(ctx context.Context) (err error) {
		info, err = f.Backend.Inspect(ctx, key)
		return err
	}})
	return info, err
}

func (f *faulty) List(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	list := f.Backend.List(ctx, prefix)
	return func(yield func(driver.Info, error) bool) {
		if err := f.send(ctx, storeCall{apply: func(context.Context) error { return nil }}); err != nil {
			yield(driver.Info{}, err)
			return
		}
		list(yield)
	}
}

func (f *faulty) Break(ctx context.Context, key string, fence uint64) error {
	return f.send(ctx, storeCall{apply: func(ctx context.Context) error { return f.Backend.Break(ctx, key, fence) }})
}
