package dlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// telemetry tells the application what happens. Nothing it reports contains a token.
type telemetry struct {
	driver       string
	log          *slog.Logger // nil: silent
	tracer       trace.Tracer // nil: no spans
	acquisitions metric.Int64Counter
}

func newTelemetry(driver string, c components) (*telemetry, error) {
	t := &telemetry{driver: driver, tracer: c.tracer}
	if c.logger != nil {
		t.log = c.logger.With("component", "dlock", "driver", driver)
	}
	if c.meter != nil {
		var err error
		t.acquisitions, err = c.meter.Int64Counter("dlock.acquisitions",
			metric.WithUnit("{acquisition}"),
			metric.WithDescription("Attempts to get a lock, by how they came out: acquired, held by another owner, or error."))
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

// begin begins to observe an acquisition. What it returns is to be called when the outcome is known; nil if nobody wants to know.
func (t *telemetry) begin(ctx context.Context, op, key string) (context.Context, func(*Lease, error)) {
	if t.log == nil && t.tracer == nil && t.acquisitions == nil {
		return ctx, nil
	}
	began := time.Now()
	var span trace.Span
	if t.tracer != nil {
		name := "dlock.Lock"
		if op == "trylock" {
			name = "dlock.TryLock"
		}
		ctx, span = t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(attribute.String("dlock.driver", t.driver), attribute.String("dlock.key", key)))
	}
	return ctx, func(x *Lease, err error) {
		outcome := outcomeOf(x, err)
		if t.acquisitions != nil {
			t.acquisitions.Add(ctx, 1, metric.WithAttributes(
				attribute.String("dlock.driver", t.driver), attribute.String("dlock.outcome", outcome)))
		}
		if span != nil {
			endSpan(span, outcome, err)
		}
		if t.log != nil && x != nil {
			t.log.LogAttrs(ctx, slog.LevelDebug, "lock acquired",
				slog.String("key", key), slog.Uint64("fence", x.Fence()), slog.Duration("waited", time.Since(began)))
		}
	}
}

func outcomeOf(x *Lease, err error) string {
	switch {
	case errors.Is(err, ErrNotAcquired), err == nil && x == nil:
		return "held"
	case err != nil:
		return "error"
	default:
		return "acquired"
	}
}

func endSpan(span trace.Span, outcome string, err error) {
	span.SetAttributes(attribute.String("dlock.outcome", outcome))
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, outcome)
	}
	span.End()
}

// released reports how a release came out.
func (t *telemetry) released(key string, fence uint64, err error) {
	switch {
	case t.log == nil:
	case err != nil:
		t.log.Warn("lock release failed", "key", key, "fence", fence, "error", err)
	default:
		t.log.Debug("lock released", "key", key, "fence", fence)
	}
}

func (t *telemetry) renewFailed(key string, err error, failures int, left time.Duration) {
	if t.log != nil {
		t.log.Warn("watchdog renew failed", "key", key, "failures", failures, "left", left, "error", err)
	}
}

func (t *telemetry) lost(key string, fence uint64, renewed bool, why error) {
	if t.log == nil {
		return
	}
	level := slog.LevelError
	if !renewed {
		level = slog.LevelWarn // a lease that was meant to run out
	}
	t.log.Log(context.Background(), level, "ownership lost", "key", key, "fence", fence, "error", why)
}
