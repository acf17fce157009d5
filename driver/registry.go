package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

var registry = struct {
	sync.RWMutex
	drivers map[string]Driver
}{drivers: map[string]Driver{}}

// Register makes a driver known by name. It is called from the init function of the driver's
// package, and panics if d is nil, or if name is empty or taken.
func Register(name string, d Driver) {
	registry.Lock()
	defer registry.Unlock()
	switch {
	case name == "":
		panic("driver: Register with an empty name")
	case d == nil:
		panic(fmt.Sprintf("driver: Register of %q with a nil Driver", name))
	}
	if _, dup := registry.drivers[name]; dup {
		panic(fmt.Sprintf("driver: Register called twice for %q", name))
	}
	registry.drivers[name] = d
}

// Drivers returns the names of the registered drivers, sorted.
func Drivers() []string {
	registry.RLock()
	defer registry.RUnlock()
	names := make([]string, 0, len(registry.drivers))
	for name := range registry.drivers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Open opens dsn with the driver registered as name. The error for a name that is not registered
// matches [ErrUnknownDriver] and lists those that are. Secrets in dsn are kept out of every error,
// whatever the driver put there.
func Open(name, dsn string) (Backend, error) {
	registry.RLock()
	d, ok := registry.drivers[name]
	registry.RUnlock()
	if !ok {
		return nil, fmt.Errorf("%w %q (forgotten import?); registered: %s", ErrUnknownDriver, RedactName(name), listed(Drivers()))
	}
	b, err := d.Open(dsn)
	if err != nil {
		return nil, scrub(err, dsn)
	}
	return b, nil
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// scrub returns err, or, when its text shows a secret of dsn, an error of the same kind whose text
// does not.
func scrub(err error, dsn string) error {
	text, said := err.Error(), ""
	// What ParseDSN said shows no secret, and would read badly if one of its words happened to be
	// one.
	if safe := (*dsnError)(nil); errors.As(err, &safe) && strings.Contains(text, safe.Error()) {
		said = safe.Error()
	}
	before, after, _ := strings.Cut(text, said)
	clean := hide(before, dsn) + said + hide(after, dsn)
	if clean == text {
		return err
	}
	return &scrubbed{clean, func(target error) bool { return errors.Is(err, target) }}
}

func hide(text, dsn string) string {
	for _, s := range secrets(dsn) {
		text = strings.ReplaceAll(text, s, hidden)
	}
	return text
}

// scrubbed matches what the error it stands for matches, and does not give it out: neither Unwrap
// nor %#v leads to the secret.
type scrubbed struct {
	text string
	is   func(error) bool
}

func (e *scrubbed) Error() string        { return e.text }
func (e *scrubbed) Is(target error) bool { return e.is(target) }
