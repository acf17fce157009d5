package driver_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestParseDSNTakesApartWhatItAccepts(t *testing.T) {
	for _, c := range []struct {
		dsn  string
		want driver.DSN
		show string
	}{
		{"x://", driver.DSN{}, "x://"},
		{"x://localhost", driver.DSN{Hosts: []string{"localhost"}}, "x://localhost"},
		{"x://localhost:6379/0", driver.DSN{Hosts: []string{"localhost:6379"}, Path: "/0"}, "x://localhost:6379/0"},
		{"x://a,b:2,c_d.example-1.org:65535", driver.DSN{Hosts: []string{"a", "b:2", "c_d.example-1.org:65535"}}, "x://a,b:2,c_d.example-1.org:65535"},
		{"x://[::1],[fe80::2]:7", driver.DSN{Hosts: []string{"[::1]", "[fe80::2]:7"}}, "x://[::1],[fe80::2]:7"},
		{"x:///var/lib/locks", driver.DSN{Path: "/var/lib/locks"}, "x:///var/lib/locks"},
		{"x:///a%20b%2Fc", driver.DSN{Path: "/a b/c"}, "x:///a%20b/c"},
		{"x://u@h", driver.DSN{User: "u", Hosts: []string{"h"}}, "x://xxxxx@h"},
		{"x://u:p@h", driver.DSN{User: "u", Password: "p", Hosts: []string{"h"}}, "x://xxxxx@h"},
		{"x://:p@h", driver.DSN{Password: "p", Hosts: []string{"h"}}, "x://xxxxx@h"},
		{"x://u%40v:p%40%3A%2F%3F%23%25+q@h", driver.DSN{User: "u@v", Password: "p@:/?#%+q", Hosts: []string{"h"}}, "x://xxxxx@h"},
		{"x://u:p@", driver.DSN{User: "u", Password: "p"}, "x://xxxxx@"},
		{"x://h?", driver.DSN{Hosts: []string{"h"}}, "x://h"},
		{"x://h/p?b=2&a=1", driver.DSN{Hosts: []string{"h"}, Path: "/p"}, "x://h/p?a=xxxxx&b=xxxxx"},
	} {
		d, err := driver.ParseDSN(c.dsn, "other", "x")
		if err != nil {
			t.Errorf("ParseDSN(%q) = %v, want it accepted", c.dsn, err)
			continue
		}
		if d.Scheme != "x" || d.User != c.want.User || d.Password != c.want.Password || d.Path != c.want.Path || !slices.Equal(d.Hosts, c.want.Hosts) {
			t.Errorf("ParseDSN(%q) = scheme %q, user %q, password %q, hosts %q, path %q; want x, %q, %q, %q, %q", c.dsn,
				d.Scheme, d.User, d.Password, d.Hosts, d.Path, c.want.User, c.want.Password, c.want.Hosts, c.want.Path)
		}
		if got := d.String(); got != c.show {
			t.Errorf("ParseDSN(%q).String() = %q, want %q", c.dsn, got, c.show)
		}
		if got := driver.Redact(c.dsn); got != c.show {
			t.Errorf("Redact(%q) = %q, want %q", c.dsn, got, c.show)
		}
	}
}

func TestParseDSNRefusesTheRestAndSaysWhatWouldDo(t *testing.T) {
	for _, c := range []struct{ dsn, want string }{
		{"", "it must begin with x:// or xs://"},
		{"localhost", "it must begin with x:// or xs://"},
		{"x:localhost", "it must begin with x:// or xs://"},
		{"X://localhost", "it must begin with x:// or xs://"},
		{"y://localhost", "it must begin with x:// or xs://"},
		{"x://h:0", "hosts must be written host, host:port or [ipv6]:port"},
		{"x://h:65536", "hosts must be written"},
		{"x://h:-1", "hosts must be written"},
		{"x://h:", "hosts must be written"},
		{"x://h:six", "hosts must be written"},
		{"x://:6379", "hosts must be written"},
		{"x://a,,b", "hosts must be written"},
		{"x://a,", "hosts must be written"},
		{"x://a b", "hosts must be written"},
		{"x://h%61", "hosts must be written"},
		{"x://::1", "hosts must be written"},
		{"x://[::1", "hosts must be written"},
		{"x://[::g]:1", "hosts must be written"},
		{"x://[127.0.0.1]", "hosts must be written"},
		{"x://[localhost]", "hosts must be written"},
		{"x://[localhost]:1", "hosts must be written"},
		{"x://u:p:q@h", "':' in a password must be written %3A"},
		{"x://u:p@q@h", "'@' in a user name or password must be written %40"},
		{"x://u:p/q@h", "'@' after the host, and '#', must be written %40 and %23 (is the password percent-encoded?)"},
		{"x://u:p?q@h", "'@' after the host"},
		{"x://u:p#q@h", "'@' after the host, and '#'"},
		{"x://u:p%q@h", "'%' in a user name or password must be written %25"},
		{"x://u%:p@h", "'%' in a user name or password must be written %25"},
		{"x://h/%zz", "'%' in the path must be written %25"},
		{"x://h#f", "'#', must be written"},
		{"x://h?a=%zz", "parameters must be written name=value, separated by '&', with '%' as %25 and ';' as %3B"},
		{"x://h?a=1;b=2", "';' as %3B"},
		{"x://h?=1", "a parameter has no name"},
		{"x://h?a", "parameters must be written name=value, and '&' in a value as %26"},
		{"x://h?a=1&b", "'&' in a value as %26"},
		{"x://h?a=1&a=2", `parameter "a" is given 2 times`},
		{"x://h?a=1&%61=1", `parameter "a" is given 2 times`},
	} {
		d, err := driver.ParseDSN(c.dsn, "x", "xs")
		if d != nil || !errors.Is(err, driver.ErrInvalidDSN) {
			t.Errorf("ParseDSN(%q) = %v, %v; want nil and an error matching ErrInvalidDSN", c.dsn, d, err)
			continue
		}
		if got := err.Error(); !strings.HasPrefix(got, "invalid DSN: ") || !strings.Contains(got, c.want) {
			t.Errorf("ParseDSN(%q) = %q, want invalid DSN: … %s", c.dsn, got, c.want)
		}
	}
}

func TestParametersAreReadWithTheirDefaults(t *testing.T) {
	d, err := driver.ParseDSN("x://h?text=a%20b+c%26&empty=&wait=1m30s&n=-3&on=on&off=off&t=true&f=false", "x")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%q", []any{
		d.Text("text", "def"), d.Text("empty", "def"), d.Text("absent", "def"),
		d.Duration("wait", time.Hour).String(), d.Duration("absent", time.Hour).String(),
		fmt.Sprint(d.Int("n", 5, -3, 7), d.Int("absent", 5, -3, 7)),
		fmt.Sprint(d.Bool("on", false), d.Bool("off", true), d.Bool("t", false), d.Bool("f", true), d.Bool("absent", true)),
	})
	const want = `["a b c&" "" "def" "1m30s" "1h0m0s" "-3 5" "true false true false true"]`
	if got != want {
		t.Errorf("the parameters are %s, want %s", got, want)
	}
	if err := d.Err(); err != nil {
		t.Errorf("Err() = %v, want nil after every parameter was read", err)
	}
}

func TestErrNamesTheFirstBadParameterAndWhatIsAccepted(t *testing.T) {
	for _, c := range []struct{ query, want string }{
		{"wait=soon", `parameter "wait" must be a duration such as 500ms or 3s`},
		{"wait=-1s", `parameter "wait" must be a duration`},
		{"wait=5", `parameter "wait" must be a duration`},
		{"n=8", `parameter "n" must be a whole number from 0 to 7`},
		{"n=-1", `parameter "n" must be a whole number from 0 to 7`},
		{"n=1.5", `parameter "n" must be`},
		{"n=", `parameter "n" must be`},
		{"flag=yes", `parameter "flag" must be true, false, on or off`},
		{"flag=", `parameter "flag" must be`},
		{"flag=TRUE", `parameter "flag" must be`},
		{"flag=no&wait=soon", `parameter "wait" must be`},
		{"colour=red", `unknown parameter "colour"; accepted: flag, n, wait`},
		{"size=1&colour=red", `unknown parameter "colour", "size"; accepted: flag, n, wait`},
		{"Wait=1s", `unknown parameter "Wait"; accepted: flag, n, wait`},
		{"colour=red&flag=yes", `parameter "flag" must be`},
	} {
		d, err := driver.ParseDSN("x://h?"+c.query, "x")
		if err != nil {
			t.Errorf("ParseDSN with %q = %v, want it left to Err", c.query, err)
			continue
		}
		wait, n, flag := d.Duration("wait", time.Hour), d.Int("n", 5, 0, 7), d.Bool("flag", true)
		d.Int("n", 5, 0, 7)
		if wait != time.Hour || n != 5 || !flag {
			t.Errorf("with %q the parameters are %v, %v, %v; want the defaults", c.query, wait, n, flag)
		}
		if err = d.Err(); !errors.Is(err, driver.ErrInvalidDSN) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Err() with %q = %v, want an error matching ErrInvalidDSN with %s", c.query, err, c.want)
		}
	}
}

func TestADriverWithoutParametersSaysSo(t *testing.T) {
	d, err := driver.ParseDSN("x://h?a=1", "x")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(d.Err()), `invalid DSN: unknown parameter "a"; accepted: none`; got != want {
		t.Errorf("Err() = %q, want %q", got, want)
	}
}

func TestRestIsWhatWasWrittenWithoutWhatWasRead(t *testing.T) {
	for _, c := range []struct{ dsn, want string }{
		{"x://", "x://"},
		{"x://h", "x://h"},
		{"x://h?own=1", "x://h"},
		{"x://u:p%40ss@a:1,b:2/db%2Fname?sslmode=off&own=1&t%69me=%261", "x://u:p%40ss@a:1,b:2/db%2Fname?sslmode=off&t%69me=%261"},
		{"x://h/?b=2&a=1&c=", "x://h/?b=2&a=1&c="},
		{"x://h?%6Fwn=1&ow=2&owner=3", "x://h?ow=2&owner=3"},
		{"x://h?a=1&&own=2&", "x://h?a=1"},
	} {
		d, err := driver.ParseDSN(c.dsn, "x")
		if err != nil {
			t.Fatalf("ParseDSN(%q) = %v", c.dsn, err)
		}
		d.Text("own", "")
		if got := d.Rest(); got != c.want {
			t.Errorf("the rest of %q is %q, want %q", c.dsn, got, c.want)
		}
		if err := d.Err(); err != nil {
			t.Errorf("Err after Rest of %q = %v, want nil: the client knows what the others mean", c.dsn, err)
		}
	}
}

func TestErrAfterRestStillTellsOfABadValue(t *testing.T) {
	d, err := driver.ParseDSN("x://h?own=soon&other=1", "x")
	if err != nil {
		t.Fatal(err)
	}
	d.Duration("own", 0)
	_ = d.Rest()
	if err := d.Err(); !errors.Is(err, driver.ErrInvalidDSN) || !strings.Contains(err.Error(), `"own"`) {
		t.Errorf("Err = %v, want one that names the parameter", err)
	}
}

func TestOpenHidesWhatAClientsParserSaysOfTheRest(t *testing.T) {
	name := register(t, func(dsn string) (driver.Backend, error) {
		d, err := driver.ParseDSN(dsn, "x")
		if err != nil {
			return nil, err
		}
		d.Text("own", "")
		return nil, fmt.Errorf("%w: cannot parse %q", driver.ErrInvalidDSN, d.Rest())
	})
	_, err := driver.Open(name, "x://someone:cAnArY7@host/db?own=cAnArY8&token=cAnArY9")
	if !errors.Is(err, driver.ErrInvalidDSN) || strings.Contains(err.Error(), "cAnArY") || strings.Contains(err.Error(), "someone") {
		t.Errorf("Open = %v, want ErrInvalidDSN without a secret", err)
	}
}
