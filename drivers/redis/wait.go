package redis

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Wait implements [driver.Waiter].
func (b *Backend) Wait(ctx context.Context, c driver.Claim, queued func()) (driver.Grant, error) {
	if !b.opt.notify {
		return driver.Grant{}, errNoNotify
	}
	if err := checkChannel(b.opt.channel); err != nil {
		return driver.Grant{}, driver.Permanent(fmt.Errorf("redis: the prefix of the channels %w", err))
	}
	if err := b.ready(ctx); err != nil {
		return driver.Grant{}, err
	}
	if err := b.queue.listening(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := time.Now()
	s, err := b.acquire(ctx, c, b.queue.channel)
	if err != nil {
		b.queue.orphans.add(c)
		return driver.Grant{}, err
	}
	w := &waiter{b: b, claim: c, tell: queued}
	if s.fence > 0 {
		return w.grant(s.fence, sent), nil
	}
	if err := b.queue.add(w); err != nil {
		return driver.Grant{}, err
	}
	defer b.queue.remove(w)
	g, err := w.wait(ctx, sent, s)
	if err != nil {
		b.queue.orphans.add(c)
	}
	return g, err
}

// waiter is a claim in the server's queue, or on its way there.
type waiter struct {
	b     *Backend
	claim driver.Claim
	tell  func() // that another owner has the lock

	given  chan uint64   // the fence of a hand-over
	nudge  chan struct{} // the subscription was interrupted: ask again at once
	told   uint64        // the highest "last fence" that a reply showed
	asked  []asked       // the replies that may date a hand-over, oldest first
	queued bool          // it was in the server's queue when last heard of
	place  int           // there when nobody had the lock; 0: that was not so yet
	untold bool          // it was given the lock by somebody else, and found out by asking
}

// asked is a request whose reply said that the last fence was last at some time after sent.
type asked struct {
	sent time.Time
	last uint64
}

// wait waits to be told, and asks from time to time, until the claim has the lock. It begins with the answer to the request that was sent at sent.
func (w *waiter) wait(ctx context.Context, sent time.Time, s standing) (driver.Grant, error) {
	timer := time.NewTimer(w.pause(s))
	defer timer.Stop()
	for {
		switch {
		case s.fence > 0 && w.queued && w.b.opt.replicas > 0:
			// The hand-over was written by somebody else; what the replicas have to acknowledge is a write of ours. By then the lock may be another's.
			w.queued = false
		case s.fence > 0:
			return w.grant(s.fence, sent), nil
		case s.gone:
			w.queued, w.place = false, 0
		case w.free(s):
			w.queued, w.untold = true, false
			w.note(sent, s.last)
		default:
			w.queued, w.untold = true, false
			w.note(sent, s.last)
			w.tell()
			timer.Reset(w.pause(s))
			fence, start, err := w.listen(ctx, timer)
			if err != nil {
				return driver.Grant{}, err
			}
			if fence > 0 {
				sent, s = start, standing{fence: fence}
				continue
			}
		}
		var err error
		sent = time.Now()
		if s, err = w.ask(ctx); err != nil {
			return driver.Grant{}, err
		}
	}
}

// free reports whether to ask again at once: nobody has the lock, and those who were looked at for it are dead and gone, so that the claim is nearer to the front
// each time.
func (w *waiter) free(s standing) bool {
	if s.left != noHolder {
		return false
	}
	was := w.place
	w.place = s.place
	return was == 0 || s.place < was
}

// listen waits for a hand-over, or until it is time to ask again.
func (w *waiter) listen(ctx context.Context, timer *time.Timer) (fence uint64, start time.Time, err error) {
	for {
		select {
		case <-ctx.Done():
			return 0, start, ctx.Err()
		case <-w.b.closed:
			return 0, start, errClosed
		case <-w.nudge:
			return 0, start, nil
		case <-timer.C:
			return 0, start, nil
		case fence := <-w.given:
			if start, ok := w.start(fence); ok {
				return fence, start, nil
			}
			// An old message; the one that counts is still to come.
		}
	}
}

// ask enters the queue, or asks how things stand there.
func (w *waiter) ask(ctx context.Context) (standing, error) {
	if !w.queued {
		return w.b.acquire(ctx, w.claim, w.b.queue.channel)
	}
	return w.reassert(ctx)
}

const (
	reassertLimit = 2 * time.Second // the longest that one question of a waiter may take
	reassertTries = 3               // how often it is put, by another connection, before the wait fails
)

// reassert asks how things stand. A question that is stuck is put again: it may be the connection.
func (w *waiter) reassert(ctx context.Context) (s standing, err error) {
	for range reassertTries {
		once, cancel := context.WithTimeout(ctx, min(w.claim.TTL, reassertLimit))
		s, err = w.reassertOnce(once)
		stuck := err != nil && once.Err() != nil && ctx.Err() == nil
		cancel()
		if !stuck {
			break
		}
	}
	return s, err
}

func (w *waiter) reassertOnce(ctx context.Context) (standing, error) {
	reply, err := w.b.pipe.run(ctx, &request{
		script: reassertScript(), keys: w.b.keys(w.claim.Key), token: w.claim.Token,
		args: []any{"d:" + w.claim.Token, w.claim.Owner, millis(w.claim.TTL), w.b.queue.channel},
	})
	if err != nil {
		return standing{}, classify("wait", err)
	}
	if list, ok := reply.([]any); ok && len(list) == 1 {
		w.untold = true // the message may be on its way, or the subscription broken
		reply = list[0]
	}
	return parseStanding("wait", reply)
}

// note remembers a reply, for dating a hand-over.
func (w *waiter) note(sent time.Time, last uint64) {
	w.told = max(w.told, last)
	if n := len(w.asked); n > 0 && w.asked[n-1].last == last {
		w.asked[n-1].sent = sent
		return
	}
	w.asked = append(w.asked, asked{sent, last})
}

// start is the instant from which a hand-over with this fence may be counted: the sending of the latest request whose reply showed a smaller last
// fence. That number only rises, so the reply was made before the hand-over. A fence that is not greater than one we were told is that of
// an older grant.
func (w *waiter) start(fence uint64) (time.Time, bool) {
	if fence <= w.told {
		return time.Time{}, false
	}
	var start time.Time
	for _, a := range w.asked {
		if a.last < fence && a.sent.After(start) {
			start = a.sent
		}
	}
	return start, !start.IsZero()
}

// heard is when the latest request was sent whose reply said that the claim was in the queue.
func (w *waiter) heard() time.Time { return w.asked[len(w.asked)-1].sent }

// grant ends the wait.
func (w *waiter) grant(fence uint64, start time.Time) driver.Grant {
	g := grantOf(fence, w.claim)
	g.Start = start
	return g
}

// pause is how long to wait for a message before asking again: a while, or until the holder's time is up. Those at the front ask first. A holder that is no
// client of ours sends no message, so the first in line looks often.
func (w *waiter) pause(s standing) time.Duration {
	d := min(w.claim.TTL/3, 2*time.Second)
	if s.foreign && s.place <= 1 {
		d = min(d, foreignPoll)
	}
	if s.left == noHolder {
		d = min(d, foreignPoll)
	}
	if s.left >= 0 {
		d = min(d, s.left+time.Millisecond+time.Duration(min(s.place-1, math.MaxInt16))*2*time.Millisecond)
	}
	return max(d, time.Millisecond)
}

const foreignPoll = 25 * time.Millisecond
