package etcd

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// ConfigOf returns what a DSN said about the client, and the namespace.
func ConfigOf(b driver.Backend) (cfg *clientv3.Config, namespace string) {
	return b.(*Backend).dial.cfg, b.(*Backend).opt.namespace
}

// Name returns the key of the first claim of a lock, and Value what it says.
func Name(b driver.Backend, c driver.Claim) string {
	return b.(*Backend).folder(c.Key) + b.(*Backend).id
}

// Value returns what the key of a claim says.
func Value(c driver.Claim) string { return value(c.Owner, mark(c)) }

// Entries returns how many keys are in the book, and how many leases there are.
func Entries(b driver.Backend) (entries, leases int) {
	x := b.(*Backend)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.slots {
		if s.lease != nil {
			leases++
		}
	}
	return len(x.book), leases
}

var (
	Escape   = escape
	Unescape = unescape
)

// MaxInFlight is how many requests are sent at the same time before others gather.
const MaxInFlight = maxInFlight

// Patient has requests gather for as long as others are on their way.
func Patient(b driver.Backend) { b.(*Backend).gate.Patience = time.Hour }

// Gathered returns how many requests wait to be sent together.
func Gathered(b driver.Backend) int {
	return b.(*Backend).gate.Gathered()
}

// Limits is how long requests may take.
type Limits struct{ limits }

// NewLimits returns those of a backend that has sent nothing.
func NewLimits() *Limits { return &Limits{limits{began: time.Now()}} }

// Of is the limit of a request, Late notes that one took too long, and Answered that one took so long.
func (x *Limits) Of(ttl time.Duration) time.Duration { return x.of(ttl) }
func (x *Limits) Late()                              { x.late() }
func (x *Limits) Answered(took time.Duration)        { x.answered(took) }

// Past is what is remembered of claims that are not in the book any more.
type Past struct{ past }

// Add remembers a name until then, Known reports whether there is one, and Len how many there are.
func (p *Past) Add(index, name string, until time.Time) { p.add(index, name, until) }
func (p *Past) Known(index string) bool                 { return len(p.of(index)) > 0 }
func (p *Past) Len() int                                { return len(p.names) }

// MostPast is how many there may be.
const MostPast = mostPast
