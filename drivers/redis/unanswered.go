package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// unanswered are the claims whose requests were sent, have no answer, and may still be carried out.
// Nobody waits for them any more. That a claim is nowhere in the store says little as long as it is
// among them.
type unanswered struct {
	n      atomic.Int64 // how many there are
	mu     sync.Mutex
	tokens map[string]*openClaim
}

// openClaim is what is open of one claim.
type openClaim struct {
	requests int
	settled  chan struct{} // closed when nothing is
}

// until adds claims, each for one request, until over is closed.
func (u *unanswered) until(over <-chan struct{}, tokens ...string) {
	select {
	case <-over:
		return
	default:
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tokens == nil {
		u.tokens = map[string]*openClaim{}
	}
	for _, token := range tokens {
		if u.tokens[token] == nil {
			u.tokens[token] = &openClaim{settled: make(chan struct{})}
		}
		u.tokens[token].requests++
	}
	u.n.Add(int64(len(tokens)))
	go func() {
		<-over
		u.remove(tokens)
	}()
}

func (u *unanswered) remove(tokens []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n.Add(-int64(len(tokens)))
	for _, token := range tokens {
		open := u.tokens[token]
		if open.requests--; open.requests == 0 {
			delete(u.tokens, token)
			close(open.settled)
		}
	}
}

// of returns a channel that is closed when nothing of a claim is open any more, or nil if nothing
// is.
func (u *unanswered) of(token string) <-chan struct{} {
	if u.n.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if open := u.tokens[token]; open != nil {
		return open.settled
	}
	return nil
}

// openWait is how long a release waits for the answer to an earlier request, which on a healthy
// network is on its way.
const openWait = 50 * time.Millisecond

var errOpen = errors.New("redis: release: the claim was not found, but an earlier request of it has no answer yet and may still be carried out")

// releaseBehind makes a release until its answer counts: that the token is nowhere is not believed
// while an earlier request of its claim may still be carried out.
func (p *pipeline) releaseBehind(ctx context.Context, token string, release func() error) error {
	for {
		before := p.open.of(token)
		err := release()
		if before == nil {
			before = p.open.of(token)
		}
		if before == nil || !errors.Is(err, driver.ErrNotOwner) {
			return err
		}
		limit := time.NewTimer(openWait)
		select {
		case <-before:
			limit.Stop()
		case <-limit.C:
			return errOpen
		case <-ctx.Done():
			limit.Stop()
			return fmt.Errorf("%w: %w", errOpen, ctx.Err())
		}
	}
}
