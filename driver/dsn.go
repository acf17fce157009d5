package driver

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hidden stands where a secret was.
const hidden = "xxxxx"

// DSN is a parsed data source name: scheme://user:password@host1,host2/path?name=value. Reading a
// parameter marks it as known; Err, called last, reports the first bad value and every parameter
// that nobody read. Printed, it shows no secret.
type DSN struct {
	Scheme   string
	User     string
	Password string
	Hosts    []string // host or host:port, as written; empty when the DSN names none
	Path     string   // decoded, with its leading slash

	params url.Values
	known  []string
	err    error
	handed bool   // Rest was called
	before string // what stands before the parameters, as written
	query  string // the parameters, as written
}

// ParseDSN takes dsn apart, strictly. The scheme must be one of schemes. User, password, path and
// values are percent-decoded. Errors match [ErrInvalidDSN], name the part that is wrong and quote
// nothing that could be a secret.
func ParseDSN(dsn string, schemes ...string) (*DSN, error) {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return nil, invalidDSN("it must begin with %s", orList(schemes))
	}
	rest, query, _ := strings.Cut(rest, "?")
	d := &DSN{Scheme: scheme, before: scheme + "://" + rest, query: query}
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.ContainsAny(path+query, "@#") || strings.Contains(authority, "#") {
		return nil, invalidDSN("'@' after the host, and '#', must be written %%40 and %%23 (is the password percent-encoded?)")
	}
	at := strings.LastIndexByte(authority, '@')
	userinfo, hosts := authority[:max(at, 0)], authority[at+1:]
	if err := cmp.Or(d.parseUser(userinfo), d.parseHosts(hosts), d.parsePath(path), d.parseQuery(query)); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *DSN) parseUser(userinfo string) error {
	if strings.ContainsRune(userinfo, '@') {
		return invalidDSN("'@' in a user name or password must be written %%40")
	}
	user, password, _ := strings.Cut(userinfo, ":")
	if strings.ContainsRune(password, ':') {
		return invalidDSN("':' in a password must be written %%3A")
	}
	var err1, err2 error
	d.User, err1 = url.PathUnescape(user)
	d.Password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return invalidDSN("'%%' in a user name or password must be written %%25")
	}
	return nil
}

func (d *DSN) parseHosts(hosts string) error {
	if hosts == "" {
		return nil
	}
	for h := range strings.SplitSeq(hosts, ",") {
		if !validHost(h) {
			return invalidDSN("hosts must be written host, host:port or [ipv6]:port, separated by commas")
		}
		d.Hosts = append(d.Hosts, h)
	}
	return nil
}

func validHost(h string) bool {
	host, port := h, "1"
	bracketed := strings.HasPrefix(h, "[")
	if bracketed && strings.HasSuffix(h, "]") {
		host = h[1 : len(h)-1]
	} else if strings.Contains(h, ":") {
		var err error
		if host, port, err = net.SplitHostPort(h); err != nil {
			return false
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	if bracketed {
		return strings.Contains(host, ":") && net.ParseIP(host) != nil
	}
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool { return !isASCIIAlnum(r) && !strings.ContainsRune("-._", r) })
}

func isASCIIAlnum(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

func (d *DSN) parsePath(path string) (err error) {
	if d.Path, err = url.PathUnescape(path); err != nil {
		return invalidDSN("'%%' in the path must be written %%25")
	}
	return nil
}

func (d *DSN) parseQuery(query string) (err error) {
	if d.params, err = url.ParseQuery(query); err != nil {
		return invalidDSN("parameters must be written name=value, separated by '&', with '%%' as %%25 and ';' as %%3B")
	}
	for pair := range strings.SplitSeq(query, "&") {
		// Without '=' it may be the rest of a value with '&' in it, which must not come out as a
		// parameter's name.
		if pair != "" && !strings.Contains(pair, "=") {
			return invalidDSN("parameters must be written name=value, and '&' in a value as %%26")
		}
	}
	for name, values := range d.params {
		if name == "" {
			return invalidDSN("a parameter has no name")
		}
		if len(values) > 1 {
			return invalidDSN("parameter %q is given %d times", name, len(values))
		}
	}
	return nil
}

// Text returns the named parameter, or def when it is not given.
func (d *DSN) Text(name, def string) string {
	d.known = append(d.known, name)
	if v, ok := d.params[name]; ok {
		return v[0]
	}
	return def
}

// Duration returns the named parameter, which must be written like 500ms or 3s and not be negative.
func (d *DSN) Duration(name string, def time.Duration) time.Duration {
	return param(d, name, def, "a duration such as 500ms or 3s", func(s string) (time.Duration, bool) {
		v, err := time.ParseDuration(s)
		return v, err == nil && v >= 0
	})
}

// Int returns the named parameter, which must be a whole number from low to high.
func (d *DSN) Int(name string, def, low, high int) int {
	return param(d, name, def, fmt.Sprintf("a whole number from %d to %d", low, high), func(s string) (int, bool) {
		v, err := strconv.Atoi(s)
		return v, err == nil && low <= v && v <= high
	})
}

// Bool returns the named parameter, which must be true, false, on or off.
func (d *DSN) Bool(name string, def bool) bool {
	return param(d, name, def, "true, false, on or off", func(s string) (bool, bool) {
		return s == "true" || s == "on", slices.Contains([]string{"true", "false", "on", "off"}, s)
	})
}

func param[T any](d *DSN, name string, def T, want string, parse func(string) (T, bool)) T {
	d.known = append(d.known, name)
	text, ok := d.params[name]
	if !ok {
		return def
	}
	v, ok := parse(text[0])
	if !ok {
		if d.err == nil {
			d.err = invalidDSN("parameter %q must be %s", name, want)
		}
		return def
	}
	return v
}

// Rest returns the DSN as it was written, without the parameters that were read so far: for a store
// whose client has a DSN parser of its own. Read the driver's own parameters first, then hand the
// rest on; what is in there is then the client's to refuse, and Err does not call it unknown. The
// scheme is kept: replace it if the client wants another one.
//
// The result is full of secrets and must not be printed. Nor must the error of a client's parser,
// which often quotes what it was given: name the driver and [ErrInvalidDSN] instead. [Open] hides
// what a driver shows all the same, as far as it can be recognized.
//
// A client whose DSNs ParseDSN does not accept, host=localhost user=app for instance, is given the
// text that Driver.Open got.
func (d *DSN) Rest() string {
	d.handed = true
	var kept []string
	for pair := range strings.SplitSeq(d.query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(name); pair != "" && err == nil && !slices.Contains(d.known, name) {
			kept = append(kept, pair)
		}
	}
	if len(kept) == 0 {
		return d.before
	}
	return d.before + "?" + strings.Join(kept, "&")
}

// Err returns the first error of the parameters read so far, or one that names the parameters which
// nobody read, unless Rest handed them on. Call it after the last parameter was read.
func (d *DSN) Err() error {
	if d.err != nil || d.handed {
		return d.err
	}
	var unknown []string
	for name := range d.params {
		if !slices.Contains(d.known, name) {
			unknown = append(unknown, strconv.Quote(name))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	accepted := slices.Compact(slices.Sorted(slices.Values(d.known)))
	return invalidDSN("unknown parameter %s; accepted: %s", strings.Join(unknown, ", "), listed(accepted))
}

// String returns the DSN without user, password and parameter values.
func (d DSN) String() string {
	var b strings.Builder
	b.WriteString(d.Scheme + "://")
	if d.User != "" || d.Password != "" {
		b.WriteString(hidden + "@")
	}
	b.WriteString(strings.Join(d.Hosts, ","))
	b.WriteString((&url.URL{Path: d.Path}).EscapedPath())
	for i, name := range slices.Sorted(maps.Keys(d.params)) {
		b.WriteString([]string{"?", "&"}[min(i, 1)] + url.QueryEscape(name) + "=" + hidden)
	}
	return b.String()
}

// Format shows what String shows, whatever the verb.
func (d DSN) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(d.String())) }

// MarshalText shows what String shows, to encoders and logs.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Redact returns dsn in a form that can be printed: without user, password and parameter values. Of
// a text that does not parse as a DSN nothing but a scheme in front of "://" is shown.
func Redact(dsn string) string {
	if dsn == "" {
		return ""
	}
	scheme, _, ok := strings.Cut(dsn, "://")
	if !ok || !isScheme(scheme) {
		return hidden
	}
	d, err := ParseDSN(dsn, scheme)
	if err != nil {
		return scheme + "://" + hidden
	}
	return d.String()
}

// RedactName returns the name of a driver, or of a setting, as it is, and a DSN in its place as
// Redact does.
func RedactName(name string) string {
	if strings.Contains(name, "://") {
		return Redact(name)
	}
	return name
}

func isScheme(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '+' && r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// secrets returns the texts that no error about dsn may show, the longest first: user, password and
// parameter values, as written and decoded, and the words in them, which show through any other
// encoding. Of a DSN that does not parse every part may be one.
func secrets(dsn string) []string {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok {
		scheme, rest = "", dsn
	}
	found := []string{dsn}
	for _, part := range secretParts(dsn, scheme, rest) {
		inPath, _ := url.PathUnescape(part)
		inQuery, _ := url.QueryUnescape(part)
		for _, s := range []string{part, inPath, inQuery} {
			words := strings.FieldsFunc(s, func(r rune) bool { return !isASCIIAlnum(r) })
			found = append(append(found, s), slices.DeleteFunc(words, func(w string) bool { return len(w) < 3 })...)
		}
	}
	// A single character would be hidden all over the text, and the scheme is known anyway.
	found = slices.DeleteFunc(found, func(s string) bool { return len(s) < 2 || s == scheme })
	slices.SortStableFunc(found, func(a, b string) int { return len(b) - len(a) })
	return found
}

func secretParts(dsn, scheme, rest string) []string {
	if _, err := ParseDSN(dsn, scheme); err != nil {
		return strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune("@:/?#&=", r) })
	}
	rest, query, _ := strings.Cut(rest, "?")
	var parts []string
	if userinfo, _, ok := strings.Cut(rest, "@"); ok {
		parts = strings.Split(userinfo, ":")
	}
	for pair := range strings.SplitSeq(query, "&") {
		_, value, _ := strings.Cut(pair, "=")
		parts = append(parts, value)
	}
	return parts
}

// dsnError says what is wrong with a DSN in words that are safe to show.
type dsnError struct{ text string }

func (e *dsnError) Error() string { return ErrInvalidDSN.Error() + ": " + e.text }
func (e *dsnError) Unwrap() error { return ErrInvalidDSN }

func invalidDSN(format string, args ...any) error { return &dsnError{fmt.Sprintf(format, args...)} }

func orList(schemes []string) string {
	list := make([]string, len(schemes))
	for i, s := range schemes {
		list[i] = s + "://"
	}
	return strings.Join(list, " or ")
}
