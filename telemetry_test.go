package dlock_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/dlock-go/dlock"
)

// journal collects log lines.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

// logger writes to j, whatever the level.
func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (j *journal) lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for text := range strings.Lines(j.buf.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, m)
	}
	return lines
}

func TestTheLifeOfALockIsLogged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var j journal
		n := newNetwork()
		l := open(t, n, dlock.Config{Driver: "net"},
			dlock.WithLogger(slog.New(slog.NewJSONHandler(&j, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		lock(t, l, "k")
		if err := l.Unlock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		x := acquire(t, l, "k")
		n.on(refuse, opRenew)
		time.Sleep(4 * time.Second)
		n.heal()
		n.snatch(t, "k")
		<-x.Done()
		time.Sleep(time.Millisecond)

		levels := map[string]string{}
		for _, line := range j.lines(t) {
			if line["component"] != "dlock" || line["driver"] != "net" || line["key"] != "k" {
				t.Errorf("a line without component, driver or key: %v", line)
			}
			levels[line["msg"].(string)] = line["level"].(string)
		}
		for msg, level := range map[string]string{
			"lock acquired": "DEBUG", "lock released": "DEBUG", "watchdog renew failed": "WARN", "ownership lost": "ERROR",
		} {
			if levels[msg] != level {
				t.Errorf("%q was logged at level %q, want %s", msg, levels[msg], level)
			}
		}
		for _, s := range n.requests(opWait) {
			if strings.Contains(j.buf.String(), s.token) {
				t.Error("a token was logged")
			}
		}
	})
}

// callback is a handler that uses the Locker it is told about.
type callback struct {
	slog.Handler
	f func()
}

func (c *callback) Write(p []byte) (int, error) { c.f(); return len(p), nil }

func TestALoggerMayUseTheLocker(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		var x *dlock.Lease
		c := &callback{f: func() {
			if x != nil {
				x.Held()
			}
		}}
		l := open(t, n, dlock.Config{}, dlock.WithLogger(slog.New(slog.NewJSONHandler(c, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		x = acquire(t, l, "k")
		n.on(refuse)
		<-x.Done()
	})
}

func TestAcquisitionsAreCountedAndTraced(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{Driver: "net"},
			dlock.WithMeter(meters.Meter(dlock.ScopeName)), dlock.WithTracer(tracers.Tracer(dlock.ScopeName)))
		lock(t, l, "k")
		if _, ok, _ := dlock.TryAcquire(t.Context(), l, "k"); ok {
			t.Error("TryAcquire got a lock that is held")
		}
		n.on(refuse)
		_, _ = l.TryLock(t.Context(), "other")
		n.heal()
	})
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	counted := map[string]int64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "dlock.acquisitions" || scope.Scope.Name != dlock.ScopeName {
				t.Errorf("metric %s of scope %s", m.Name, scope.Scope.Name)
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				driver, _ := p.Attributes.Value("dlock.driver")
				outcome, _ := p.Attributes.Value("dlock.outcome")
				counted[driver.AsString()+" "+outcome.AsString()] = p.Value
			}
		}
	}
	for _, want := range []string{"net acquired", "net held", "net error"} {
		if counted[want] != 1 {
			t.Errorf("counted %v, want one of each outcome", counted)
		}
	}
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name()+" "+s.Status().Code.String())
	}
	slices.Sort(names)
	if want := []string{"dlock.Lock Unset", "dlock.TryLock " + codes.Error.String(), "dlock.TryLock Unset"}; !slices.Equal(names, want) {
		t.Errorf("spans %v, want %v", names, want)
	}
}
