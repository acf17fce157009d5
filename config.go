package dlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

// The limits of what a caller may ask for.
const (
	MinTTL    = 10 * time.Millisecond // the shortest TTL
	MaxTTL    = 24 * time.Hour        // the longest TTL
	MaxKeyLen = 1024                  // the longest key, in bytes

	maxPrefixLen = 512
	maxOwnerLen  = 256
)

// Config says how a Locker behaves. The zero value is usable. It can be read from JSON and YAML files, in which durations are written
// like "30s", and it is printed, logged and marshalled without the secrets of its DSN.
type Config struct {
	// Driver and DSN name the backend for OpenConfig. With Open they may be left empty, and otherwise must equal its
	// arguments. New uses Driver only as the name that errors and telemetry show.
	Driver string `json:"driver,omitzero" yaml:"driver,omitempty" mapstructure:"driver"`
	DSN    string `json:"dsn,omitzero" yaml:"dsn,omitempty" mapstructure:"dsn"`

	// Prefix is put in front of every key in the store: at most 512 bytes. Default: "".
	Prefix string `json:"prefix,omitzero" yaml:"prefix,omitempty" mapstructure:"prefix"`

	// Owner says who holds a lock, for people who look: printable text, at most 256 bytes. Default: "host:pid".
	Owner string `json:"owner,omitzero" yaml:"owner,omitempty" mapstructure:"owner"`

	// DefaultTTL is how long a hold lasts without a renewal, from MinTTL to MaxTTL. Default: 10s.
	DefaultTTL time.Duration `json:"default_ttl,omitzero" yaml:"default_ttl,omitempty" mapstructure:"default_ttl"`

	// RetryInterval is the pause between two attempts where the backend has to be polled or has failed. Long waits stretch it up to
	// tenfold. Default: 50ms.
	RetryInterval time.Duration `json:"retry_interval,omitzero" yaml:"retry_interval,omitempty" mapstructure:"retry_interval"`

	// MaxRetries is how many further attempts Lock makes after the first, RetryInterval apart, by polling on every
	// driver. The wait for other goroutines of this Locker is none of them: bound that by ctx or WaitTimeout. Default: 0, which
	// means until ctx or WaitTimeout ends, by whatever way of waiting the driver has.
	MaxRetries int `json:"max_retries,omitzero" yaml:"max_retries,omitempty" mapstructure:"max_retries"`

	// WaitTimeout is the longest that Lock waits. Default: 0, which means as long as ctx allows.
	WaitTimeout time.Duration `json:"wait_timeout,omitzero" yaml:"wait_timeout,omitempty" mapstructure:"wait_timeout"`

	// RenewInterval is the pause between two renewals of a hold, shorter than every TTL that is used. Default: a third
	// of the hold's TTL.
	RenewInterval time.Duration `json:"renew_interval,omitzero" yaml:"renew_interval,omitempty" mapstructure:"renew_interval"`

	// Reentrant makes locking a key again count, where it is ErrLockAlreadyHeld otherwise. By key it counts per Locker,
	// not per goroutine: it excludes other processes only. Default: false.
	Reentrant bool `json:"reentrant,omitzero" yaml:"reentrant,omitempty" mapstructure:"reentrant"`

	// LocalHandovers is how often in a row a grant may go from one goroutine of this Locker to the next without asking
	// the store; -1 forbids it. The engine may do so less often, and at present always asks the store. Default: 0, which means 16.
	LocalHandovers int `json:"local_handovers,omitzero" yaml:"local_handovers,omitempty" mapstructure:"local_handovers"`
}

// validate refuses what cannot work. It changes nothing.
func (c *Config) validate() error {
	ttl := or(c.DefaultTTL, 10*time.Second)
	switch {
	case len(c.Prefix) > maxPrefixLen:
		return badField("Prefix", "%d bytes long; at most %d are accepted", len(c.Prefix), maxPrefixLen)
	case len(c.Owner) > maxOwnerLen:
		return badField("Owner", "%d bytes long; at most %d are accepted", len(c.Owner), maxOwnerLen)
	case !utf8.ValidString(c.Owner) || strings.ContainsFunc(c.Owner, unicode.IsControl):
		return badField("Owner", "%q; accepted is printable text", c.Owner)
	case ttl < MinTTL || ttl > MaxTTL:
		return badField("DefaultTTL", "%v; accepted is %v to %v", c.DefaultTTL, MinTTL, MaxTTL)
	case c.RetryInterval < 0 || c.RetryInterval > time.Hour:
		return badField("RetryInterval", "%v; accepted is 0 (50ms) to 1h", c.RetryInterval)
	case c.MaxRetries < 0:
		return badField("MaxRetries", "%d; accepted is 0 (no limit) or more", c.MaxRetries)
	case c.WaitTimeout < 0:
		return badField("WaitTimeout", "%v; accepted is 0 (no limit) or more", c.WaitTimeout)
	case c.RenewInterval < 0 || c.RenewInterval >= ttl-margin(ttl):
		return badField("RenewInterval", "%v; accepted is 0 (a third of the TTL) or more, and less than %v with a DefaultTTL of %v",
			c.RenewInterval, ttl-margin(ttl), ttl)
	case c.LocalHandovers < -1:
		return badField("LocalHandovers", "%d; accepted is -1 (never), 0 (16) or more", c.LocalHandovers)
	}
	return nil
}

func badField(field, format string, args ...any) error {
	return detail{ErrInvalidConfig, field + " is " + fmt.Sprintf(format, args...)}
}

// withDefaults returns c with the documented default in every field that was left zero.
func (c *Config) withDefaults() Config {
	d := *c
	d.Owner = or(d.Owner, defaultOwner())
	d.DefaultTTL = or(d.DefaultTTL, 10*time.Second)
	d.RetryInterval = or(d.RetryInterval, 50*time.Millisecond)
	return d
}

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

type field struct {
	name string
	ptr  any // *string, *int, *bool or *time.Duration
}

// fields lists c's fields under the names they have in files.
func (c *Config) fields() []field {
	return []field{
		{"driver", &c.Driver}, {"dsn", &c.DSN}, {"prefix", &c.Prefix}, {"owner", &c.Owner},
		{"default_ttl", &c.DefaultTTL}, {"retry_interval", &c.RetryInterval}, {"max_retries", &c.MaxRetries},
		{"wait_timeout", &c.WaitTimeout}, {"renew_interval", &c.RenewInterval}, {"reentrant", &c.Reentrant},
		{"local_handovers", &c.LocalHandovers},
	}
}

// printable lists the fields that are not zero as they may be shown.
func (c Config) printable() []slog.Attr {
	c.DSN = driver.Redact(c.DSN)
	var attrs []slog.Attr
	for _, f := range c.fields() {
		switch v := f.ptr.(type) {
		case *string:
			if *v != "" {
				attrs = append(attrs, slog.String(f.name, *v))
			}
		case *int:
			if *v != 0 {
				attrs = append(attrs, slog.Int(f.name, *v))
			}
		case *bool:
			if *v {
				attrs = append(attrs, slog.Bool(f.name, *v))
			}
		case *time.Duration:
			if *v != 0 {
				attrs = append(attrs, slog.Duration(f.name, *v))
			}
		}
	}
	return attrs
}

// Format prints c without the secrets of its DSN, whatever the verb.
func (c Config) Format(s fmt.State, _ rune) {
	var b bytes.Buffer
	b.WriteString("dlock.Config{")
	for i, a := range c.printable() {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s:%q", a.Key, a.Value.String())
	}
	b.WriteByte('}')
	_, _ = s.Write(b.Bytes())
}

// String returns what Format prints.
func (c Config) String() string { return fmt.Sprintf("%v", c) }

// LogValue logs c without the secrets of its DSN.
func (c Config) LogValue() slog.Value { return slog.GroupValue(c.printable()...) }

// MarshalJSON writes durations like "30s" and leaves the secrets of the DSN out: what is written is to be read by people, and cannot be opened
// again if the DSN had a password.
func (c Config) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, a := range c.printable() {
		value := a.Value.Any()
		if d, ok := value.(time.Duration); ok {
			value = d.String()
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(strconv.AppendQuote(out, a.Key), ':'), text...)
	}
	return append(out, '}'), nil
}

// MarshalYAML leaves the secrets of the DSN out, as MarshalJSON does.
func (c Config) MarshalYAML() (any, error) {
	type plain Config
	c.DSN = driver.Redact(c.DSN)
	return plain(c), nil
}

// UnmarshalJSON reads durations like "30s". Fields that are not mentioned keep their values; a field that does not exist is an error.
func (c *Config) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return detail{ErrInvalidConfig, "want a JSON object"}
	}
	next := *c
	var names []string
	for _, f := range next.fields() {
		names = append(names, f.name)
		text, ok := raw[f.name]
		if !ok || string(text) == "null" {
			continue
		}
		if err := f.readJSON(text); err != nil {
			return detail{ErrInvalidConfig, f.name + ": " + err.Error()}
		}
	}
	for name := range raw {
		if !slices.Contains(names, name) {
			return detail{ErrInvalidConfig, fmt.Sprintf("unknown field %q; accepted: %s", name, strings.Join(names, ", "))}
		}
	}
	*c = next
	return nil
}

func (f field) kind() string {
	switch f.ptr.(type) {
	case *int:
		return "a whole number"
	case *bool:
		return "true or false"
	default:
		return "a text in quotes"
	}
}

func (f field) readJSON(text []byte) error {
	d, isDuration := f.ptr.(*time.Duration)
	if !isDuration {
		if json.Unmarshal(text, f.ptr) != nil {
			return errors.New("want " + f.kind())
		}
		return nil
	}
	var s string
	if json.Unmarshal(text, &s) != nil {
		return fmt.Errorf(`want a duration in quotes such as "30s", not %s`, text)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`want a duration such as "30s", not %q`, s)
	}
	*d = v
	return nil
}
