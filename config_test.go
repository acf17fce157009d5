package dlock_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/drivers/memory"
)

func full() dlock.Config {
	return dlock.Config{
		Driver: "redis", DSN: "redis://user:s3cret@localhost:6379/0?password=s3cret2", Prefix: "app:", Owner: "me",
		DefaultTTL: 30 * time.Second, RetryInterval: 20 * time.Millisecond, MaxRetries: 3, WaitTimeout: time.Minute,
		RenewInterval: 5 * time.Second, Reentrant: true, LocalHandovers: -1,
	}
}

func TestConfigIsReadFromJSON(t *testing.T) {
	const text = `{"driver":"redis","dsn":"redis://user:s3cret@localhost:6379/0?password=s3cret2","prefix":"app:","owner":"me",
		"default_ttl":"30s","retry_interval":"20ms","max_retries":3,"wait_timeout":"1m","renew_interval":"5s",
		"reentrant":true,"local_handovers":-1}`
	var got dlock.Config
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got != full() {
		t.Errorf("got  %v\nwant %v", got, full())
	}
	// What the file does not mention keeps its value.
	got = dlock.Config{Prefix: "kept:", WaitTimeout: time.Second}
	if err := json.Unmarshal([]byte(`{"wait_timeout":"2s","owner":null}`), &got); err != nil {
		t.Fatal(err)
	}
	if want := (dlock.Config{Prefix: "kept:", WaitTimeout: 2 * time.Second}); got != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestAJSONConfigThatIsWrongSaysWhere(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                            "want a JSON object",
		`{"default_ttl":30}`:            `default_ttl: want a duration in quotes such as "30s", not 30`,
		`{"default_ttl":"30"}`:          `default_ttl: want a duration such as "30s", not "30"`,
		`{"max_retries":"3"}`:           `max_retries: want a whole number`,
		`{"reentrant":1}`:               `reentrant: want true or false`,
		`{"dsn":["redis://:s3cret@h"]}`: `dsn: want a text in quotes`,
		`{"defaultTTL":"30s"}`:          `unknown field "defaultTTL"; accepted: driver, dsn, prefix, owner, default_ttl, retry_interval`,
	} {
		c := full()
		err := json.Unmarshal([]byte(text), &c)
		wantErr(t, text, err, dlock.ErrInvalidConfig)
		if err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s:\ngot  %s\nwant %s", text, err, want)
		}
		if c != full() {
			t.Errorf("%s: the config was changed all the same", text)
		}
	}
}

func TestEveryFieldHasItsNameInFiles(t *testing.T) {
	text, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	var names map[string]any
	if err := json.Unmarshal(text, &names); err != nil {
		t.Fatal(err)
	}
	typ := reflect.TypeFor[dlock.Config]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		yaml, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" || yaml != name || f.Tag.Get("mapstructure") != name || name != strings.ToLower(name) {
			t.Errorf("%s: tags %q", f.Name, f.Tag)
		}
		if _, ok := names[name]; !ok {
			t.Errorf("%s is missing in %s", name, text)
		}
	}
	if len(names) != typ.NumField() {
		t.Errorf("%d names for %d fields", len(names), typ.NumField())
	}
}

func TestAConfigIsPrintedWithoutItsSecrets(t *testing.T) {
	c := full()
	var printed []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		printed = append(printed, fmt.Sprintf(verb, c), fmt.Sprintf(verb, &c), fmt.Sprintf(verb, []dlock.Config{c}),
			fmt.Sprintf(verb, struct{ C dlock.Config }{c}))
	}
	text, _ := json.Marshal(c)
	printed = append(printed, string(text), c.String())
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", c, "pointer", &c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", c, "pointer", &c)
	printed = append(printed, log.String())
	for _, p := range printed {
		if strings.Contains(p, "s3cret") {
			t.Errorf("%s shows a secret", p)
		}
		if !strings.Contains(p, "localhost:6379") || !strings.Contains(p, "30s") {
			t.Errorf("%s does not show what may be shown", p)
		}
	}
	if c != full() {
		t.Error("printing changed the config")
	}
}

func TestAConfigThatCannotWorkIsRefused(t *testing.T) {
	for want, c := range map[string]dlock.Config{
		"Prefix is 513 bytes long; at most 512 are accepted":                                                              {Prefix: strings.Repeat("p", 513)},
		"Owner is 257 bytes long; at most 256 are accepted":                                                               {Owner: strings.Repeat("o", 257)},
		`Owner is "a\nb"; accepted is printable text`:                                                                     {Owner: "a\nb"},
		"DefaultTTL is -1ns; accepted is 10ms to 24h0m0s":                                                                 {DefaultTTL: -1},
		"DefaultTTL is 999µs; accepted is 10ms to 24h0m0s":                                                                {DefaultTTL: 999 * time.Microsecond},
		"DefaultTTL is 25h0m0s; accepted is 10ms to 24h0m0s":                                                              {DefaultTTL: 25 * time.Hour},
		"RetryInterval is -1ns; accepted is 0 (50ms) to 1h":                                                               {RetryInterval: -1},
		"MaxRetries is -1; accepted is 0 (no limit) or more":                                                              {MaxRetries: -1},
		"WaitTimeout is -1ns; accepted is 0 (no limit) or more":                                                           {WaitTimeout: -1},
		"RenewInterval is 9.95s; accepted is 0 (a third of the TTL) or more, and less than 9.9s with a DefaultTTL of 10s": {RenewInterval: 9950 * time.Millisecond},
		"LocalHandovers is -2; accepted is -1 (never), 0 (16) or more":                                                    {LocalHandovers: -2},
	} {
		_, err := dlock.New(memory.New(), &c)
		wantErr(t, want, err, dlock.ErrInvalidConfig)
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	}
}

func TestLockOptionsCompareAndPrint(t *testing.T) {
	one, same, other := dlock.WithTTL(time.Second), dlock.WithTTL(1000*time.Millisecond), dlock.WithTTL(2*time.Second)
	if one != same || one == other {
		t.Error("options do not compare by what they say")
	}
	got := fmt.Sprint(dlock.WithTTL(30*time.Second), dlock.WithoutRenewal(), dlock.LockOption{})
	if want := "WithTTL(30s) WithoutRenewal() LockOption{}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	sum := dlock.ReadLockOptions(dlock.WithTTL(time.Second), dlock.LockOption{}, dlock.WithTTL(0), dlock.WithoutRenewal())
	if want := (dlock.LockOptions{TTL: 0, HasTTL: true, NoRenewal: true}); sum != want {
		t.Errorf("got %+v, want %+v", sum, want)
	}
}

func TestSentinelsAreDistinct(t *testing.T) {
	all := []error{
		dlock.ErrConfigNil, dlock.ErrInvalidConfig, dlock.ErrConnectorNil, dlock.ErrUnknownDriver, dlock.ErrInvalidDSN,
		dlock.ErrInvalidKey, dlock.ErrInvalidTTL, dlock.ErrLockNotHeld, dlock.ErrLockAlreadyHeld, dlock.ErrOwnershipLost,
		dlock.ErrNotAcquired, dlock.ErrClosed,
	}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(a, b) != (i == j) {
				t.Errorf("errors.Is(%v, %v) is %v", a, b, errors.Is(a, b))
			}
		}
	}
}

func TestALockerIsPrintedWithoutItsSecrets(t *testing.T) {
	l, err := dlock.New(memory.New(), &dlock.Config{DSN: "redis://user:s3cret@localhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		if p := fmt.Sprintf(verb, l); strings.Contains(p, "s3cret") {
			t.Errorf("%s of a Locker shows a secret", verb)
		}
	}
}
