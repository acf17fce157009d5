package driver_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const canary = "cAnArY7"

// positions are DSNs with the canary wherever a secret may be.
var positions = []struct{ where, dsn string }{
	{"password", "redis://user:" + canary + "@host:6379/0?timeout=3s"},
	{"password without user", "redis://:" + canary + "@host:6379/0"},
	{"user", "redis://" + canary + ":other@host:6379/0"},
	{"user and password", "redis://" + canary + ":" + canary + "@host:6379/0"},
	{"user alone", "redis://" + canary + "@host:6379/0"},
	{"text parameter", "redis://host/0?password=" + canary},
	{"harmless parameter", "redis://host/0?name=" + canary},
	{"duration parameter", "redis://host/0?timeout=" + canary},
	{"int parameter", "redis://host/0?n=" + canary},
	{"bool parameter", "redis://host/0?tls=" + canary},
	{"unknown parameter", "redis://host/0?colour=" + canary},
	{"part of a parameter", "redis://host/0?name=a" + canary + "b&timeout=3s"},
}

type damage struct {
	how string
	do  func(dsn string) string
}

// damages break a DSN in the ways in which people do. Each gets the DSN whole.
var damages = []damage{
	{"none", func(dsn string) string { return dsn }},
	{"missing scheme", func(dsn string) string { _, rest, _ := strings.Cut(dsn, "://"); return rest }},
	{"empty scheme", func(dsn string) string { _, rest, _ := strings.Cut(dsn, "://"); return "://" + rest }},
	{"one slash", func(dsn string) string { return strings.Replace(dsn, "://", ":/", 1) }},
	{"no slash", func(dsn string) string { return strings.Replace(dsn, "://", ":", 1) }},
	{"wrong scheme", func(dsn string) string { return strings.Replace(dsn, "redis", "http", 1) }},
	{"upper case scheme", func(dsn string) string { return strings.Replace(dsn, "redis", "Redis", 1) }},
	{"bad port", func(dsn string) string { return strings.Replace(dsn, "host", "host:99999", 1) }},
	{"port in words", func(dsn string) string { return strings.Replace(dsn, "host", "host:"+canary, 1) }},
	{"truncated behind it", func(dsn string) string { return dsn[:strings.LastIndex(dsn, canary)+len(canary)] }},
	{"truncated behind that", func(dsn string) string { return (dsn + "@")[:strings.LastIndex(dsn, canary)+len(canary)+1] }},
	{"missing @", func(dsn string) string { return strings.Replace(dsn, "@", "", 1) }},
	{"/ for @", func(dsn string) string { return strings.Replace(dsn, "@", "/", 1) }},
	{"quoted", func(dsn string) string { return fmt.Sprintf("%q", dsn) }},
	{"space in front", func(dsn string) string { return " " + dsn }},
	{"line feed at the end", func(dsn string) string { return dsn + "\n" }},
	{"percent-encoded canary", func(dsn string) string { return strings.ReplaceAll(dsn, canary, "%63AnArY%37") }},
	{"encoded, bad elsewhere", func(dsn string) string { return strings.ReplaceAll(dsn, canary, "%63AnArY%37") + "%" }},
}

func init() {
	// Characters that have to be encoded, raw, on either side of the canary.
	for _, raw := range []string{"@", "/", "?", "#", ":", "%", "%zz", "&", "&=", ";", "+", " ", "\t", "\n", "\x00", "\x7f", "\xff", "é", `"`, `\`, "[", "://", ","} {
		damages = append(damages,
			damage{fmt.Sprintf("raw %q in front", raw), func(dsn string) string { return strings.ReplaceAll(dsn, canary, "x"+raw+canary) }},
			damage{fmt.Sprintf("raw %q behind", raw), func(dsn string) string { return strings.ReplaceAll(dsn, canary, canary+raw+"x") }})
	}
}

// inOrder are results of a damage that nobody could tell from a DSN in order: the secret looks like a host.
var inOrder = []string{"redis://" + canary, "redis://" + canary + "host:6379/0", "redis://" + canary + "/host:6379/0"}

// damaged calls f with every position under every damage, except for what is inOrder.
func damaged(t *testing.T, f func(t *testing.T, dsn string)) {
	for _, p := range positions {
		for _, damage := range damages {
			if dsn := damage.do(p.dsn); !slices.Contains(inOrder, dsn) {
				t.Run(p.where+"/"+damage.how, func(t *testing.T) { f(t, dsn) })
			}
		}
	}
}

func parse(dsn string) (*driver.DSN, error) {
	d, err := driver.ParseDSN(dsn, "redis", "rediss")
	if err != nil {
		return d, err
	}
	d.Text("name", "")
	d.Text("password", "")
	d.Duration("timeout", time.Second)
	d.Int("n", 1, 0, 9)
	d.Bool("tls", false)
	return d, d.Err()
}

func refuteCanary(t *testing.T, what, text string) {
	t.Helper()
	if strings.Contains(text, canary) {
		t.Errorf("%s shows the secret: %s", what, text)
	}
}

func TestNoSecretIsInAnErrorOfParseDSN(t *testing.T) {
	damaged(t, func(t *testing.T, dsn string) {
		if _, err := parse(dsn); err != nil {
			for _, verb := range []string{"%v", "%+v", "%#v", "%q"} {
				refuteCanary(t, verb+" of the error", fmt.Sprintf(verb, err))
			}
			if !errors.Is(err, driver.ErrInvalidDSN) {
				t.Errorf("the error %v does not match ErrInvalidDSN, want it to", err)
			}
		}
	})
}

func TestNoSecretIsInARedactedDSN(t *testing.T) {
	damaged(t, func(t *testing.T, dsn string) { refuteCanary(t, "Redact", driver.Redact(dsn)) })
}

func TestRedactShowsNothingOfATextWithoutAScheme(t *testing.T) {
	for _, dsn := range []string{"localhost", "user:" + canary + "@host", canary + "://host", "user:" + canary + "://host", "://host", " x://host"} {
		if got := driver.Redact(dsn); got != "xxxxx" {
			t.Errorf("Redact(%q) = %q, want xxxxx", dsn, got)
		}
	}
	if got := driver.Redact(""); got != "" {
		t.Errorf("Redact of nothing = %q, want nothing", got)
	}
}

func TestNoSecretIsInAPrintedDSN(t *testing.T) {
	damaged(t, func(t *testing.T, dsn string) {
		d, err := driver.ParseDSN(dsn, "redis")
		if err != nil {
			return
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%T"} {
			refuteCanary(t, verb+" of *DSN", fmt.Sprintf(verb, d))
			refuteCanary(t, verb+" of DSN", fmt.Sprintf(verb, *d))
			refuteCanary(t, verb+" in a struct", fmt.Sprintf(verb, struct{ D *driver.DSN }{d}))
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("open", "dsn", d)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("open", "dsn", *d)
		refuteCanary(t, "slog", log.String())
		text, err := json.Marshal(d)
		if err != nil {
			t.Errorf("json.Marshal = %v, want nil", err)
		}
		refuteCanary(t, "JSON", string(text))
	})
}

// sloppyError is what a careless driver returns: the secret is in its text and in its fields.
type sloppyError struct{ text string }

func (e sloppyError) Error() string   { return "sloppy: " + e.text }
func (sloppyError) Is(err error) bool { return err == driver.ErrInvalidDSN }

func TestNoSecretOfASloppyDriverGetsThroughOpen(t *testing.T) {
	for _, sloppy := range []struct {
		does string
		open openFunc
	}{
		{"whole DSN", func(dsn string) (driver.Backend, error) { return nil, sloppyError{"cannot use " + dsn} }},
		{"quoted DSN", func(dsn string) (driver.Backend, error) { return nil, sloppyError{fmt.Sprintf("cannot use %q", dsn)} }},
		{"without scheme", func(dsn string) (driver.Backend, error) { return nil, sloppyError{dsn[strings.Index(dsn, "/")+1:]} }},
		{"the password alone", func(dsn string) (driver.Backend, error) {
			_, rest, _ := strings.Cut(dsn, "://")
			userinfo := rest[:max(0, strings.LastIndex(rest, "@"))]
			password := userinfo[strings.Index(userinfo, ":")+1:]
			if decoded, err := url.PathUnescape(password); err == nil {
				password = decoded
			}
			return nil, sloppyError{"nobody has the password " + password}
		}},
		{"the values alone", func(dsn string) (driver.Backend, error) {
			_, query, _ := strings.Cut(dsn, "?")
			values, err := url.ParseQuery(query)
			return nil, sloppyError{fmt.Sprint("cannot use ", values, err)}
		}},
		{"net URL", func(dsn string) (driver.Backend, error) {
			u, err := url.Parse(dsn)
			if err != nil {
				return nil, sloppyError{err.Error()}
			}
			return nil, sloppyError{fmt.Sprintf("%s %+v %v", u, *u, u.Query())}
		}},
		{"around ParseDSN", func(dsn string) (driver.Backend, error) {
			_, err := parse(dsn)
			return nil, errors.Join(sloppyError{dsn}, err, sloppyError{dsn})
		}},
	} {
		t.Run(sloppy.does, func(t *testing.T) {
			name := register(t, sloppy.open)
			damaged(t, func(t *testing.T, dsn string) {
				_, err := driver.Open(name, dsn)
				for _, verb := range []string{"%v", "%+v", "%#v", "%q"} {
					refuteCanary(t, verb+" of the error", fmt.Sprintf(verb, err))
				}
				if !errors.Is(err, driver.ErrInvalidDSN) {
					t.Errorf("the error %v does not match ErrInvalidDSN, want it to match what the driver's does", err)
				}
				for e := err; e != nil; e = errors.Unwrap(e) {
					refuteCanary(t, "an unwrapped error", e.Error())
				}
				if sloppy := (sloppyError{}); errors.As(err, &sloppy) {
					refuteCanary(t, "errors.As", sloppy.text)
				}
			})
		})
	}
}

func FuzzParseDSN(f *testing.F) {
	for _, p := range positions {
		for _, damage := range damages {
			f.Add(damage.do(p.dsn))
		}
	}
	for _, dsn := range []string{"", "memory://", "x://[::1]:1,h/%2F?a=%26", "x://u:redis@redis/redis", "x://:%40@"} {
		f.Add(dsn)
	}
	f.Fuzz(func(t *testing.T, dsn string) {
		_, _ = parse(dsn)
		shown := driver.Redact(dsn)
		scheme, _, _ := strings.Cut(dsn, "://")
		d, err := driver.ParseDSN(dsn, scheme)
		if err != nil {
			if shown != "" && shown != "xxxxx" && shown != scheme+"://xxxxx" {
				t.Errorf("Redact(%q) = %q, want nothing but the scheme", dsn, shown)
			}
			return
		}
		// Two DSNs that differ in the password alone are shown alike: so none of it is in there, unless as part of a name.
		if d.Password != "" {
			userinfo, hosts, _ := strings.Cut(strings.TrimPrefix(dsn, scheme+"://"), "@")
			user, _, _ := strings.Cut(userinfo, ":")
			other := scheme + "://" + user + ":another@" + hosts
			if got := driver.Redact(other); got != shown {
				t.Errorf("Redact(%q) = %q and Redact(%q) = %q, want them equal", dsn, shown, other, got)
			}
		}
	})
}
