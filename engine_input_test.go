package dlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func TestBadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{DefaultTTL: time.Minute, RenewInterval: 10 * time.Second})
		x := acquire(t, l, "held")
		sent := len(n.requests())
		ttl := func(d time.Duration) []dlock.LockOption { return []dlock.LockOption{dlock.WithTTL(d)} }
		for _, c := range []struct {
			name string
			key  string
			opts []dlock.LockOption
			want error
			text string
		}{
			{"empty key", "", nil, dlock.ErrInvalidKey, "1 to 1024"},
			{"long key", strings.Repeat("k", dlock.MaxKeyLen+1), nil, dlock.ErrInvalidKey, "1025 bytes"},
			{"TTL 0", "k", ttl(0), dlock.ErrInvalidTTL, "10ms to 24h"},
			{"TTL -1", "k", ttl(-1), dlock.ErrInvalidTTL, "10ms to 24h"},
			{"TTL 1ns", "k", ttl(1), dlock.ErrInvalidTTL, "10ms to 24h"},
			{"TTL 999µs", "k", ttl(999 * time.Microsecond), dlock.ErrInvalidTTL, "10ms to 24h"},
			{"TTL 1<<62", "k", ttl(1 << 62), dlock.ErrInvalidTTL, "10ms to 24h"},
			{"TTL over a day", "k", ttl(dlock.MaxTTL + 1), dlock.ErrInvalidTTL, "10ms to 24h"},
			{"TTL not above RenewInterval", "k", ttl(10 * time.Second), dlock.ErrInvalidTTL, "RenewInterval of 10s"},
			{"TTL whose deadline is not above RenewInterval", "k", ttl(10*time.Second + 50*time.Millisecond), dlock.ErrInvalidTTL, "RenewInterval of 10s"},
		} {
			check := func(way string, err error) {
				t.Helper()
				wantErr(t, c.name+": "+way, err, c.want)
				if err != nil && (!strings.Contains(err.Error(), c.text) || len(err.Error()) > 400) {
					t.Errorf("%s: %s: %q does not say %q", c.name, way, err, c.text)
				}
			}
			check("Lock", l.Lock(t.Context(), c.key, c.opts...))
			_, err := l.TryLock(t.Context(), c.key, c.opts...)
			check("TryLock", err)
			_, err = dlock.Acquire(t.Context(), l, c.key, c.opts...)
			check("Acquire", err)
			if o := dlock.ReadLockOptions(c.opts...); o.HasTTL {
				check("Extend", x.Extend(t.Context(), o.TTL))
			}
		}
		wantErr(t, "Unlock of what is not held", l.Unlock(t.Context(), "k"), dlock.ErrLockNotHeld)
		if got := len(n.requests()); got != sent {
			t.Errorf("%d requests were sent", got-sent)
		}
		if !x.Held() {
			t.Error("bad input ended a hold")
		}
	})
}

func TestHostileKeysAndZeroOptionsAreFine(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := open(t, memory.New(), dlock.Config{Prefix: "p/"})
		var zero dlock.LockOption
		for _, key := range []string{"k", strings.Repeat("k", dlock.MaxKeyLen), "\x00", "\r\n", "\xff\xfe", "{a}b", "a/../b", ".."} {
			lock(t, l, key, zero, dlock.WithTTL(dlock.MinTTL), zero)
		}
	})
}

func TestANilContextPanics(t *testing.T) {
	l := open(t, memory.New(), dlock.Config{})
	x := acquire(t, l, "held")
	var none context.Context
	for name, f := range map[string]func(){
		"Lock":          func() { _ = l.Lock(none, "k") },
		"TryLock":       func() { _, _ = l.TryLock(none, "k") },
		"Unlock":        func() { _ = l.Unlock(none, "k") },
		"Acquire":       func() { _, _ = dlock.Acquire(none, l, "k") },
		"TryAcquire":    func() { _, _, _ = dlock.TryAcquire(none, l, "k") },
		"Do":            func() { _ = dlock.Do(none, l, "k", func(context.Context) error { return nil }) },
		"Ping":          func() { _ = dlock.Ping(none, l) },
		"Lease.Unlock":  func() { _ = x.Unlock(none) },
		"Lease.Extend":  func() { _ = x.Extend(none, time.Second) },
		"Lease.Context": func() { x.Context(none) },
	} {
		func() {
			defer func() {
				if got := recover(); got != "dlock: nil context" {
					t.Errorf("%s: recovered %v, want dlock: nil context", name, got)
				}
			}()
			f()
		}()
	}
	if !x.Held() {
		t.Error("a nil context ended a hold")
	}
}

// backendFunc is a Backend whose zero value is a nil function.
type backendFunc func() driver.Backend

func (backendFunc) Acquire(context.Context, driver.Claim) (driver.Grant, error) { panic("called") }
func (backendFunc) Renew(context.Context, driver.Claim) (driver.Grant, error)   { panic("called") }
func (backendFunc) Release(context.Context, driver.Claim) error                 { panic("called") }
func (backendFunc) Close() error                                                { panic("called") }

func TestNilsAtTheDoor(t *testing.T) {
	_, err := dlock.Open("memory", "", nil)
	wantErr(t, "Open with a nil config", err, dlock.ErrConfigNil)
	_, err = dlock.OpenConfig(nil)
	wantErr(t, "OpenConfig with nil", err, dlock.ErrConfigNil)
	_, err = dlock.New(memory.New(), nil)
	wantErr(t, "New with a nil config", err, dlock.ErrConfigNil)
	for name, b := range map[string]driver.Backend{"nil": nil, "typed nil": (*memory.Backend)(nil), "nil func": backendFunc(nil)} {
		_, err = dlock.New(b, &dlock.Config{})
		wantErr(t, "New with a backend that is "+name, err, dlock.ErrConnectorNil)
	}
	l, err := dlock.New(memory.New(), &dlock.Config{}, nil, dlock.WithLogger(nil), dlock.WithMeter(nil), dlock.WithTracer(nil))
	if err != nil {
		t.Fatalf("nil options: %v", err)
	}
	lock(t, l, "k")
	_ = l.Close()
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name string
		open func() (dlock.Locker, error)
		want error
		text string
	}{
		{"a DSN for the driver's name", func() (dlock.Locker, error) { return dlock.Open("redis://u:s3cret@h", "", &dlock.Config{}) },
			dlock.ErrUnknownDriver, `dlock: open (redis://xxxxx@h): unknown driver "redis://xxxxx@h" (forgotten import?); registered: memory`},
		{"unknown driver", func() (dlock.Locker, error) { return dlock.Open("nope", "", &dlock.Config{}) },
			dlock.ErrUnknownDriver, `dlock: open (nope): unknown driver "nope" (forgotten import?); registered: memory`},
		{"no driver", func() (dlock.Locker, error) { return dlock.OpenConfig(&dlock.Config{}) },
			dlock.ErrInvalidConfig, `dlock: open: invalid config: Driver is empty; registered: ["memory"]`},
		{"bad DSN", func() (dlock.Locker, error) { return dlock.Open("memory", "memory://x?y=1", &dlock.Config{}) },
			dlock.ErrInvalidDSN, `unknown parameter "y"`},
		{"another driver in cfg", func() (dlock.Locker, error) { return dlock.Open("memory", "", &dlock.Config{Driver: "redis"}) },
			dlock.ErrInvalidConfig, `Driver is "redis", and Open was called with "memory"`},
		{"another DSN in cfg", func() (dlock.Locker, error) {
			return dlock.Open("memory", "memory://a", &dlock.Config{DSN: "memory://u:s3cret@b"})
		}, dlock.ErrInvalidConfig, `DSN is another one`},
		{"bad config", func() (dlock.Locker, error) { return dlock.Open("memory", "", &dlock.Config{MaxRetries: -1}) },
			dlock.ErrInvalidConfig, `MaxRetries is -1; accepted is 0 (no limit) or more`},
	} {
		l, err := c.open()
		if l != nil {
			t.Errorf("%s: got a Locker", c.name)
		}
		wantErr(t, c.name, err, c.want)
		if err != nil && (!strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, err, c.text)
		}
		var e *dlock.Error
		if !errors.As(err, &e) || e.Op != "open" {
			t.Errorf("%s: not an *Error with Op open: %#v", c.name, err)
		}
	}
}

func TestOpenTakesTheSameDriverTwice(t *testing.T) {
	cfg := &dlock.Config{Driver: "memory", DSN: "memory://" + t.Name()}
	l, err := dlock.Open("memory", cfg.DSN, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg.Prefix = "changed later"
	lock(t, l, "k")
	b, _ := driver.Open("memory", cfg.DSN)
	defer func() { _ = b.Close() }()
	info, err := b.(driver.Inspector).Inspect(t.Context(), "k")
	if err != nil || info.Fence == 0 {
		t.Errorf("Inspect: %+v, %v; want the key without the prefix that was set after Open", info, err)
	}
}

func TestErrorsReadWell(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, other := named(t, t.Name()), named(t, t.Name())
		l, lo := open(t, n, dlock.Config{Driver: "redis", Prefix: "app:"}), open(t, other, dlock.Config{Prefix: "app:"})
		lock(t, lo, "order:1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Lock(ctx, "order:1")
		for _, c := range []struct {
			err  error
			want string
		}{
			{err, `dlock: lock "order:1" (redis): not acquired: context deadline exceeded`},
			{l.Unlock(t.Context(), "a\nb"), `dlock: unlock "a\nb" (redis): lock not held`},
			{l.Lock(t.Context(), ""), `dlock: lock (redis): invalid key: it has 0 bytes; accepted are 1 to 1024`},
			{lo.Lock(t.Context(), "order:1"), `dlock: lock "order:1" (dlock_test): lock already held`},
		} {
			if c.err.Error() != c.want {
				t.Errorf("got  %s\nwant %s", c.err, c.want)
			}
			var e *dlock.Error
			if !errors.As(c.err, &e) || errors.As(e.Err, &e) {
				t.Errorf("%v is not one *Error around a reason", c.err)
			}
		}
	})
}

func TestNoErrorShowsAToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := open(t, n, dlock.Config{})
		lock(t, l, "k")
		x, _ := dlock.LeaseOf(l, "k")
		n.snatch(t, "k")
		<-x.Done()
		token := n.requests(opWait)[0].token
		for _, err := range []error{x.Err(), l.Lock(t.Context(), "k"), l.Unlock(t.Context(), "k")} {
			if strings.Contains(err.Error(), token) {
				t.Errorf("%v shows a token", err)
			}
		}
	})
}
