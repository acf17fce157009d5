package dlock

import (
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"

	"github.com/dlock-go/dlock/driver"
)

// Locker excludes others from what a key stands for. It is safe for concurrent use.
//
// Lock, TryLock and Unlock hold by key: one owner per Locker, for a leader or a cron job. For work that is concurrent within the
// process, hold by lease: see [Do] and [Acquire]. In every method ctx bounds the call and never the hold, and a nil ctx panics.
type Locker interface {
	// Lock waits until this Locker holds key. It returns ErrNotAcquired when it gave up while another owner had the key, and
	// ErrLockAlreadyHeld at once when this Locker holds the key, or is acquiring it, by key.
	Lock(ctx context.Context, key string, opts ...LockOption) error

	// TryLock is Lock without waiting. False without an error means that another owner has the key, for certain.
	TryLock(ctx context.Context, key string, opts ...LockOption) (bool, error)

	// Unlock ends the hold of key that Lock or TryLock began. The hold is over locally whatever Unlock returns. Nil means that the
	// store has confirmed it; ErrOwnershipLost, that the hold had ended before; ErrLockNotHeld, that there was none.
	// A ctx that is done still gets one short attempt, and a release that failed is repeated in the background.
	Unlock(ctx context.Context, key string) error

	// Close refuses further work, wakes those who wait with ErrClosed, releases what is held and closes the backend. It takes
	// at most about two seconds. Its error says how many locks may stay in the store until their TTL has passed, because the
	// store has not confirmed their release.
	Close() error
}

// LeaseLocker is a Locker whose holds are leases. Every Locker made by this module is one. [Do], [Acquire] and [TryAcquire] look for it
// in the Locker they are given, then along its Unwrap() Locker methods (decorators), and drive any other Locker, a mock included, by Lock
// and Unlock: then Fence is 0, Done closes only at Unlock, and Extend returns errors.ErrUnsupported.
type LeaseLocker interface {
	Locker

	// Acquire waits until it holds key and returns the hold. Every call is an owner of its own; those of one Locker get
	// their turn in the order in which they came.
	Acquire(ctx context.Context, key string, opts ...LockOption) (*Lease, error)

	// TryAcquire is Acquire without waiting. False without an error means that another owner has the key, for certain; the
	// Lease is then nil, on which Unlock may be called.
	TryAcquire(ctx context.Context, key string, opts ...LockOption) (*Lease, bool, error)
}

// Open returns a Locker on the backend that the named driver opens for dsn. Import the driver's package for its side effect. Nothing is
// sent yet: [Ping] tells whether the backend can be reached.
func Open(driverName, dsn string, cfg *Config, opts ...Option) (Locker, error) {
	if cfg == nil {
		return nil, &Error{Op: "open", Driver: driver.RedactName(driverName), Err: ErrConfigNil}
	}
	c := *cfg
	switch {
	case c.Driver != "" && c.Driver != driverName:
		return nil, &Error{Op: "open", Driver: driver.RedactName(driverName), Err: badField("Driver", "%q, and Open was called with %q; leave one out", driver.RedactName(c.Driver), driver.RedactName(driverName))}
	case c.DSN != "" && c.DSN != dsn:
		return nil, &Error{Op: "open", Driver: driver.RedactName(driverName), Err: badField("DSN", "another one than Open was called with; leave it out")}
	}
	c.Driver, c.DSN = driverName, dsn
	return OpenConfig(&c, opts...)
}

// OpenConfig is Open with the driver and the DSN taken from cfg, so that a file decides which backend is used.
func OpenConfig(cfg *Config, opts ...Option) (Locker, error) {
	if cfg == nil {
		return nil, &Error{Op: "open", Err: ErrConfigNil}
	}
	if cfg.Driver == "" {
		return nil, &Error{Op: "open", Err: badField("Driver", "empty; registered: %q", Drivers())}
	}
	if err := cfg.validate(); err != nil {
		return nil, &Error{Op: "open", Driver: driver.RedactName(cfg.Driver), Err: err}
	}
	b, err := driver.Open(cfg.Driver, cfg.DSN)
	if err != nil {
		return nil, &Error{Op: "open", Driver: driver.RedactName(cfg.Driver), Err: err}
	}
	l, err := New(b, cfg, opts...)
	if err != nil && !isNil(b) {
		_ = b.Close()
	}
	return l, err
}

// New returns a Locker on b: the door for a client that the application already has. b belongs to the Locker from then on, which closes it
// in Close; b in turn leaves a client open that it did not make.
func New(b driver.Backend, cfg *Config, opts ...Option) (Locker, error) {
	switch {
	case cfg == nil:
		return nil, &Error{Op: "open", Err: ErrConfigNil}
	case isNil(b):
		return nil, &Error{Op: "open", Driver: driver.RedactName(cfg.Driver), Err: ErrConnectorNil}
	}
	if err := cfg.validate(); err != nil {
		return nil, &Error{Op: "open", Driver: driver.RedactName(cfg.Driver), Err: err}
	}
	var with components
	for _, o := range opts {
		if o != nil {
			o(&with)
		}
	}
	c := cfg.withDefaults()
	c.Driver = or(c.Driver, packageName(b))
	c.DSN = "" // not needed any more, and a Locker may be printed
	tel, err := newTelemetry(c.Driver, with)
	if err != nil {
		return nil, &Error{Op: "open", Driver: driver.RedactName(c.Driver), Err: err}
	}
	return newLocker(b, c, tel), nil
}

// Drivers returns the names of the registered drivers, sorted.
func Drivers() []string { return driver.Drivers() }

func isNil(b driver.Backend) bool {
	if b == nil {
		return true
	}
	switch v := reflect.ValueOf(b); v.Kind() {
	case reflect.Chan, reflect.Func, reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice:
		return v.IsNil()
	default:
		return false
	}
}

// packageName names a backend that came without a driver's name, after the package it is from.
func packageName(b driver.Backend) string {
	t := reflect.TypeOf(b)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() == "" {
		return ""
	}
	return path.Base(t.PkgPath())
}

// Do calls fn while it holds key, with a context that ends the moment the lock can no longer be relied on (see [Lease.Context]). It releases
// after fn has returned, also when fn panics or calls runtime.Goexit.
//
// If fn did not run, the error is Acquire's, an [*Error] with Op "lock". Otherwise it is fn's error, joined with the error of the
// loss or of the release if there was one.
func Do(ctx context.Context, l Locker, key string, fn func(ctx context.Context) error, opts ...LockOption) (err error) {
	lease, err := Acquire(ctx, l, key, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if e := lease.Unlock(ctx); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return fn(lease.Context(ctx))
}

// Acquire waits until it holds key and returns the hold. See [LeaseLocker] for the Lockers it works with.
func Acquire(ctx context.Context, l Locker, key string, opts ...LockOption) (*Lease, error) {
	if ll, ok := find[LeaseLocker](l); ok {
		return ll.Acquire(ctx, key, opts...)
	}
	if err := l.Lock(ctx, key, opts...); err != nil {
		return nil, asError("lock", key, err)
	}
	return foreignLease(l, key), nil
}

// TryAcquire is Acquire without waiting. False without an error means that another owner has the key, for certain.
func TryAcquire(ctx context.Context, l Locker, key string, opts ...LockOption) (*Lease, bool, error) {
	if ll, ok := find[LeaseLocker](l); ok {
		return ll.TryAcquire(ctx, key, opts...)
	}
	ok, err := l.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, false, asError("trylock", key, err)
	}
	if !ok {
		return nil, false, nil
	}
	return foreignLease(l, key), true, nil
}

// LeaseOf returns the lease behind a hold by key: how a user of plain Lock sees a loss. It is there from Lock until Unlock, also
// after a loss, and never for a Locker that no LeaseLocker of this module stands behind.
func LeaseOf(l Locker, key string) (*Lease, bool) {
	ll, ok := find[interface{ leaseOf(string) (*Lease, bool) }](l)
	if !ok {
		return nil, false
	}
	return ll.leaseOf(key)
}

// Ping makes one round trip to the backend of l, for a readiness check. It returns errors.ErrUnsupported if l or its driver has no way
// to do so.
func Ping(ctx context.Context, l Locker) error {
	p, ok := find[interface{ Ping(context.Context) error }](l)
	if !ok {
		return &Error{Op: "ping", Err: errors.ErrUnsupported}
	}
	return p.Ping(ctx)
}

// Fence returns the fence of the innermost [Do] or [Lease.Context] that ctx comes from. Hand it to the resource that the lock
// protects: one that refuses a fence smaller than the largest it has seen is safe even from a holder that was paused and woke up
// late. It is false when there is no hold or its backend has no fences.
func Fence(ctx context.Context) (uint64, bool) {
	m := markOf(ctx)
	if m == nil || m.lease.Fence() == 0 {
		return 0, false
	}
	return m.lease.Fence(), true
}

// find looks for a T in l and in what l decorates.
func find[T any](l Locker) (T, bool) {
	for {
		if t, ok := l.(T); ok {
			return t, true
		}
		u, ok := l.(interface{ Unwrap() Locker })
		if !ok {
			var none T
			return none, false
		}
		l = u.Unwrap()
	}
}

// asError returns err as an *Error, wrapping it only if it is none yet.
func asError(op, key string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return &Error{Op: op, Key: key, Err: err}
}

func checkContext(ctx context.Context) {
	if ctx == nil {
		panic("dlock: nil context")
	}
}

// checkKey refuses a key that no driver has to take.
func checkKey(key string) error {
	if key == "" || len(key) > MaxKeyLen {
		return detail{ErrInvalidKey, fmt.Sprintf("it has %d bytes; accepted are 1 to %d", len(key), MaxKeyLen)}
	}
	return nil
}
