package driver_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// openFunc is a Driver made of a function.
type openFunc func(dsn string) (driver.Backend, error)

func (f openFunc) Open(dsn string) (driver.Backend, error) { return f(dsn) }

// register registers f under a name that no other test has, also when a test runs many times in one process.
func register(t *testing.T, f openFunc) string {
	t.Helper()
	name := fmt.Sprintf("%s-%d", strings.ToLower(t.Name()), len(driver.Drivers()))
	driver.Register(name, f)
	return name
}

func TestRegisterRefusesWhatCannotBeOpened(t *testing.T) {
	good := openFunc(func(string) (driver.Backend, error) { return nil, nil })
	taken := register(t, good)
	for _, c := range []struct {
		name string
		d    driver.Driver
		want string
	}{
		{"", good, "empty name"},
		{"nil-driver", nil, `"nil-driver" with a nil Driver`},
		{taken, good, fmt.Sprintf("twice for %q", taken)},
	} {
		t.Run(c.want, func(t *testing.T) {
			before := driver.Drivers()
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, c.want) || !strings.HasPrefix(got, "driver: Register") {
					t.Errorf("Register(%q) panicked with %q, want driver: Register … %s", c.name, got, c.want)
				}
				if after := driver.Drivers(); !slices.Equal(before, after) {
					t.Errorf("Drivers after a refused Register = %q, want %q", after, before)
				}
			}()
			driver.Register(c.name, c.d)
		})
	}
}

func TestDriversAreSorted(t *testing.T) {
	good := openFunc(func(string) (driver.Backend, error) { return nil, nil })
	n := len(driver.Drivers())
	for i := 9; i >= 0; i-- {
		driver.Register(fmt.Sprintf("sorted-%d-%d", n, i), good)
	}
	got := driver.Drivers()
	if !slices.IsSorted(got) {
		t.Errorf("Drivers() = %q, want them sorted", got)
	}
	if len(got) != n+10 {
		t.Errorf("Drivers() has %d names, want %d", len(got), n+10)
	}
}

func TestOpenOfAnUnknownDriverListsTheRegisteredOnes(t *testing.T) {
	known := register(t, func(string) (driver.Backend, error) { return nil, nil })
	_, err := driver.Open("no-such-driver", "redis://user:cAnArY7@host")
	if !errors.Is(err, driver.ErrUnknownDriver) {
		t.Fatalf("Open = %v, want an error matching ErrUnknownDriver", err)
	}
	for _, want := range []string{`"no-such-driver"`, "(forgotten import?)", known, strings.Join(driver.Drivers(), ", ")} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Open = %q, want it to contain %q", err, want)
		}
	}
	_, swapped := driver.Open("redis://user:cAnArY7@host", "redis")
	if !strings.Contains(swapped.Error(), `"redis://`) {
		t.Errorf("Open = %q, want what was taken for a name, as far as it can be shown", swapped)
	}
	for _, err := range []error{err, swapped} {
		if strings.Contains(err.Error(), "cAnArY7") {
			t.Errorf("Open = %q, want no password in it", err)
		}
	}
}

func TestOpenHandsTheDSNToTheDriver(t *testing.T) {
	var got string
	want := struct{ driver.Backend }{}
	name := register(t, func(dsn string) (driver.Backend, error) { got = dsn; return want, nil })
	b, err := driver.Open(name, "any text at all")
	if got != "any text at all" || b != want || err != nil {
		t.Errorf("the driver got %q and Open returned %v, %v; want the DSN as written, and what the driver returned", got, b, err)
	}
}

func TestOpenLeavesAnErrorWithoutSecretsAsItIs(t *testing.T) {
	want := errors.New("mystore: localhost is no good, try default")
	name := register(t, func(string) (driver.Backend, error) { return nil, want })
	for _, dsn := range []string{"", "x://localhost", "x://u:secret@localhost", "x://localhost/0?timeout=17s", "mystore://mystore:secret@localhost"} {
		if _, err := driver.Open(name, dsn); err != want { //nolint:errorlint // it must be untouched
			t.Errorf("Open(%q) = %v, want the very error of the driver", dsn, err)
		}
	}
}

func TestOpenDoesNotGarbleWhatParseDSNSaid(t *testing.T) {
	name := register(t, func(dsn string) (driver.Backend, error) {
		d, err := driver.ParseDSN(dsn, "x")
		if err == nil {
			d.Bool("tls", false)
			err = d.Err()
		}
		return nil, fmt.Errorf("mystore: for %s: %w", dsn, err)
	})
	const dsn = "x://parameter:written@h?tls=offfff"
	_, err := driver.Open(name, dsn)
	const want = `mystore: for xxxxx: invalid DSN: parameter "tls" must be true, false, on or off`
	if err.Error() != want {
		t.Errorf("Open(%q) = %q, want %q", dsn, err, want)
	}
}

func TestPermanentMatchesBothAndKeepsTheText(t *testing.T) {
	cause := errors.New("WRONGPASS")
	err := driver.Permanent(fmt.Errorf("mystore: %w", cause))
	if !errors.Is(err, driver.ErrPermanent) || !errors.Is(err, cause) {
		t.Errorf("Permanent(err) matches ErrPermanent %t and err %t, want both", errors.Is(err, driver.ErrPermanent), errors.Is(err, cause))
	}
	if got, want := err.Error(), "mystore: WRONGPASS"; got != want {
		t.Errorf("Permanent(err) = %q, want %q", got, want)
	}
	if got := driver.Permanent(nil); got != nil {
		t.Errorf("Permanent(nil) = %v, want nil", got)
	}
	if errors.Is(cause, driver.ErrPermanent) {
		t.Error("an unmarked error matches ErrPermanent, want it not to")
	}
}
