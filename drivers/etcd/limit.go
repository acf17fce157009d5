package etcd

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"
)

const (
	// requestLimit is for one request that nobody else limits.
	requestLimit = 5 * time.Second

	// memberPatience is how long a member may take before another one is asked, at most: two that
	// do not answer leave a Lock below two seconds.
	memberPatience = 800 * time.Millisecond
)

// limits says how long a request may take before another member is asked. Nothing else notices a
// member that hangs: its connection stays open until the client tests it, ten seconds later.
type limits struct {
	began time.Time
	since atomic.Int64 // when the first of the requests took too long after which none was answered, from began on; 0: there is none
}

// of returns the limit for a request on behalf of a claim with this TTL. It grows while nothing is
// answered: where all members are slow, asking another one does not help.
func (x *limits) of(ttl time.Duration) time.Duration {
	d := min(time.Duration(seconds(ttl))*time.Second/6, memberPatience)
	if since := x.since.Load(); since > 0 {
		d = min(max(d, (time.Since(x.began)-time.Duration(since))/2), requestLimit)
	}
	return d
}

// late notes that a request took too long.
func (x *limits) late() { x.since.CompareAndSwap(0, int64(time.Since(x.began))) }

// answered notes that a request was answered.
func (x *limits) answered() {
	if x.since.Load() > 0 {
		x.since.Store(0)
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
		x.end()
	case other:
		x.b.limits.late()
		x.end()
	default:
		time.AfterFunc(requestLimit-x.limit, x.end)
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
	client := b.dial.made()
	if client == nil || client.ActiveConnection() == nil {
		return false, true
	}
	return len(client.Endpoints()) > 1, client.ActiveConnection().GetState() != connectivity.TransientFailure
}

// patiently makes a request that may be made twice again and again, each time at another member,
// until it is answered, ctx ends, or it has taken too long altogether. Such a request is given up
// sooner than one that may not.
func (b *Backend) patiently(ctx context.Context, ttl time.Duration, request func(context.Context) error) error {
	for began := time.Now(); ; {
		// No deadline: gRPC would tell the server, in a header that is different each time.
		limited, cancel := context.WithCancel(ctx)
		x := b.overdue(b.limits.of(ttl)/3, cancel)
		err := request(limited)
		late := err != nil && limited.Err() != nil && ctx.Err() == nil
		x.stop()
		cancel()
		if err == nil {
			b.limits.answered()
		}
		switch {
		case !late:
			return err
		case time.Since(began) > requestLimit:
			return errNoAnswer
		}
	}
}
