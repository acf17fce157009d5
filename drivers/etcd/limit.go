package etcd

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/dlock-go/dlock/driver"
)

const (
	// requestLimit is for one request that nobody else limits.
	requestLimit = 5 * time.Second

	// memberPatience is how long a member may take before another one is asked, at most: two that
	// do not answer leave a Lock below two seconds.
	memberPatience = 800 * time.Millisecond

	// readPatience is the least of that for a request that may be made twice, on a busy machine too.
	readPatience = 250 * time.Millisecond

	// connectPatience is how long to wait for a connection when there is none at all.
	connectPatience = 2 * time.Second
)

// limits says how long a request may take before another member is asked. Nothing else notices a
// member that hangs: its connection stays open until the client tests it, ten seconds later.
type limits struct {
	began time.Time
	slow  atomic.Int64 // how long the slowest of the last answers took
	since atomic.Int64 // from began on: when a request was first late after the last answer; 0: none was
}

// of returns the limit for a request on behalf of a claim with this TTL. It grows with the time that
// answers take, and while there are none: where all members are slow, asking another one does not
// help.
func (x *limits) of(ttl time.Duration) time.Duration {
	d := min(time.Duration(seconds(ttl))*time.Second/6, memberPatience)
	d = max(d, 4*time.Duration(x.slow.Load()))
	if since := x.since.Load(); since > 0 {
		d = max(d, time.Since(x.began)-time.Duration(since))
	}
	return min(d, requestLimit)
}

// late notes that a request took too long.
func (x *limits) late() { x.since.CompareAndSwap(0, int64(time.Since(x.began))) }

// answered notes that a request was answered, and how long that took.
func (x *limits) answered(took time.Duration) {
	if x.since.Load() > 0 {
		x.since.Store(0)
	}
	switch slow := time.Duration(x.slow.Load()); {
	case took > slow:
		x.slow.Store(int64(took))
	case slow > 10*time.Millisecond: // less does not matter
		x.slow.Store(int64(slow - slow/4))
	}
}

// note notes how a request came out that ctx has limited.
func (b *Backend) note(ctx context.Context, sent time.Time, err error) {
	if err == nil {
		b.limits.answered(time.Since(sent))
	} else if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		b.limits.late()
	}
}

// limit ends o if it takes longer than a request on behalf of a claim with this TTL may, until stop
// is called.
func (b *Backend) limit(o *op, ttl time.Duration) (stop func()) {
	return b.overdue(b.limits.of(ttl), func() {
		o.late.Store(true)
		o.cancel()
	}).stop
}

// overdue is a request that must be answered in time.
type overdue struct {
	b     *Backend
	f     func() // called if it is not
	limit time.Duration
	over  atomic.Bool
	timer *time.Timer
}

// overdue has f called if a request takes longer than limit.
func (b *Backend) overdue(limit time.Duration, f func()) *overdue {
	x := &overdue{b: b, f: f, limit: limit}
	x.timer = time.AfterFunc(x.limit, x.judge)
	return x
}

// judge is called when the time is over. If there is nobody else to ask there is more of it.
func (x *overdue) judge() {
	switch other, connected := x.b.elsewhere(); {
	case !connected:
		time.AfterFunc(connectPatience-x.limit, x.judgeAgain)
	case other:
		x.b.limits.late()
		x.end()
	default:
		time.AfterFunc(requestLimit-x.limit, x.end)
	}
}

// judgeAgain ends a request that has no connection to go out on, so that its caller is told why.
func (x *overdue) judgeAgain() {
	if _, connected := x.b.elsewhere(); !connected {
		x.end()
	} else {
		time.AfterFunc(requestLimit-connectPatience, x.end)
	}
}

func (x *overdue) end() {
	if x.over.CompareAndSwap(false, true) {
		x.f()
	}
}

func (x *overdue) stop() {
	if x.over.CompareAndSwap(false, true) {
		x.timer.Stop()
	}
}

// elsewhere reports whether there is another member to be asked, and whether there is a connection,
// or may soon be. If there is none the caller is to be told why.
func (b *Backend) elsewhere() (other, connected bool) {
	client, failed := b.dial.state()
	if client == nil || client.ActiveConnection() == nil {
		return false, !failed
	}
	return len(client.Endpoints()) > 1, client.ActiveConnection().GetState() != connectivity.TransientFailure
}

// persist makes a call, once more if its lease was lost on the way, and again at another member as
// long as a request of it, or one that it shares with others, takes too long.
func (b *Backend) persist(
	ctx context.Context, c driver.Claim, call func(*Backend, *op, driver.Claim) (driver.Grant, error),
) (driver.Grant, error) {
	for began := time.Now(); ; {
		o, done, err := b.begin(ctx)
		if err != nil {
			return driver.Grant{}, err
		}
		g, err := call(b, o, c)
		if isLeaseLost(err) {
			g, err = call(b, o, c)
		}
		done()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || time.Since(began) >= requestLimit {
			return g, err
		}
		if _, connected := b.elsewhere(); !connected {
			return g, err
		}
		b.repeated(c)
	}
}

// patiently makes a request that may be made twice again and again, each time at another member,
// until it is answered, ctx ends, or it has taken too long altogether. Such a request is given up
// sooner than one that may not.
func (b *Backend) patiently(ctx context.Context, ttl time.Duration, request func(context.Context) error) error {
	for began := time.Now(); ; {
		// No deadline: gRPC would tell the server, in a header that is different each time.
		limited, cancel := context.WithCancel(ctx)
		sent := time.Now()
		limit := b.limits.of(ttl)
		x := b.overdue(max(limit/3, min(limit, readPatience)), cancel)
		err := request(limited)
		late := err != nil && limited.Err() != nil && ctx.Err() == nil
		x.stop()
		cancel()
		if err == nil {
			b.limits.answered(time.Since(sent))
		}
		switch {
		case !late:
			return ended(ctx, err)
		case time.Since(began) > requestLimit:
			return errNoAnswer
		}
	}
}
