package dlock

import (
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// LockOption changes one acquisition. It is a comparable value, so that a mock can match it and print it. The zero value changes
// nothing.
type LockOption struct {
	kind optionKind
	ttl  time.Duration
}

type optionKind uint8

const (
	optionTTL optionKind = iota + 1
	optionNoRenewal
)

// WithTTL sets how long the hold lasts without a renewal, from MinTTL to MaxTTL. Default: Config.DefaultTTL.
func WithTTL(d time.Duration) LockOption { return LockOption{kind: optionTTL, ttl: d} }

// WithoutRenewal makes the hold a plain lease: it ends when its TTL has passed, unless Lease.Extend is called in time.
func WithoutRenewal() LockOption { return LockOption{kind: optionNoRenewal} }

// String returns the call that makes the option, such as WithTTL(30s).
func (o LockOption) String() string {
	switch o.kind {
	case optionTTL:
		return fmt.Sprintf("WithTTL(%v)", o.ttl)
	case optionNoRenewal:
		return "WithoutRenewal()"
	default:
		return "LockOption{}"
	}
}

// LockOptions is what a list of LockOption values adds up to.
type LockOptions struct {
	TTL       time.Duration // as given to WithTTL; see HasTTL
	HasTTL    bool          // whether WithTTL was given at all
	NoRenewal bool          // whether WithoutRenewal was given
}

// ReadLockOptions adds up opts, the last one of a kind winning. It is for those who write a Locker of their own: a fake, a decorator.
func ReadLockOptions(opts ...LockOption) LockOptions {
	var sum LockOptions
	for _, o := range opts {
		switch o.kind {
		case optionTTL:
			sum.TTL, sum.HasTTL = o.ttl, true
		case optionNoRenewal:
			sum.NoRenewal = true
		}
	}
	return sum
}

// Option gives a Locker something to report to. The zero value, nil, changes nothing.
type Option func(*components)

type components struct {
	logger *slog.Logger
	meter  metric.Meter
	tracer trace.Tracer
}

// ScopeName is the instrumentation scope to make a Meter and a Tracer with.
const ScopeName = "github.com/dlock-go/dlock"

// WithLogger makes the Locker log to l, every line with component=dlock. Default, and nil: silent.
//
// Its handler may block, panic, and use the Locker. What happens in the background is logged there: a handler that blocks delays no
// renewal, no loss and no Close, and one that panics loses the line. A panic while an acquisition is reported, to the logger, the
// meter or the tracer, reaches the caller, and the lock is released.
func WithLogger(l *slog.Logger) Option { return func(c *components) { c.logger = l } }

// WithMeter makes the Locker count into m. Default, and nil: nothing is counted.
func WithMeter(m metric.Meter) Option { return func(c *components) { c.meter = m } }

// WithTracer makes the Locker record spans with t. Default, and nil: no spans.
func WithTracer(t trace.Tracer) Option { return func(c *components) { c.tracer = t } }
