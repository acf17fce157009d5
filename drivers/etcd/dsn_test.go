package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// settings are what a DSN comes to.
type settings struct {
	Endpoints, User, Password, Namespace string
	Dial, Alive, AliveTimeout            time.Duration
	TLS, Insecure                        bool
}

func TestDSN(t *testing.T) {
	for _, c := range []struct {
		dsn    string
		change func(*settings)
	}{
		{"etcd://", func(*settings) {}},
		{"etcd://localhost", func(*settings) {}},
		{"etcd://localhost:2379/", func(*settings) {}},
		{"etcd://a,b:7000,[::1]", func(s *settings) { s.Endpoints = "http://a:2379 http://b:7000 http://[::1]:2379" }},
		{"etcd://u:p%40ss@localhost", func(s *settings) { s.User, s.Password = "u", "p@ss" }},
		{"etcd://?namespace=svc/locks/", func(s *settings) { s.Namespace = "svc/locks/" }},
		{"etcd://?dial_timeout=1s&keepalive_time=20s&keepalive_timeout=2s", func(s *settings) {
			s.Dial, s.Alive, s.AliveTimeout = time.Second, 20*time.Second, 2*time.Second
		}},
		{"etcds://a,b", func(s *settings) { s.Endpoints, s.TLS = "https://a:2379 https://b:2379", true }},
		{"etcds://a?insecure=true", func(s *settings) { s.Endpoints, s.TLS, s.Insecure = "https://a:2379", true, true }},
	} {
		want := settings{Endpoints: "http://localhost:2379", Dial: 5 * time.Second, Alive: 10 * time.Second, AliveTimeout: 3 * time.Second}
		c.change(&want)
		o, namespace := etcddriver.ConfigOf(openDSN(t, c.dsn))
		got := settings{
			Endpoints: strings.Join(o.Endpoints, " "), User: o.Username, Password: o.Password, Namespace: namespace, Dial: o.DialTimeout,
			Alive: o.DialKeepAliveTime, AliveTimeout: o.DialKeepAliveTimeout, TLS: o.TLS != nil, Insecure: o.TLS != nil && o.TLS.InsecureSkipVerify,
		}
		if got != want {
			t.Errorf("%s: the client has %+v, want %+v", c.dsn, got, want)
		}
		if o.Logger == nil {
			t.Errorf("%s: the client writes a log of its own", c.dsn)
		}
	}
}

func TestDSNReadsTheFilesForTLS(t *testing.T) {
	certs := redistest.NewCertificates(t)
	o, _ := etcddriver.ConfigOf(openDSN(t, "etcds://h?ca="+certs.CA+"&cert="+certs.Cert+"&key="+certs.Key))
	c := o.TLS
	if c.RootCAs == nil || len(c.Certificates) != 1 || c.InsecureSkipVerify || c.MinVersion != tls.VersionTLS12 {
		t.Errorf("authorities %v, %d certificates, insecure %v, version %x; want those of the files, checked, and TLS 1.2 at least",
			c.RootCAs, len(c.Certificates), c.InsecureSkipVerify, c.MinVersion)
	}
}

func TestLocksByTLS(t *testing.T) {
	t.Parallel()
	certs := redistest.NewCertificates(t)
	m := etcdtest.Start(t, etcdtest.TLS(certs.Cert, certs.Key), etcdtest.ClientCA(certs.CA))
	c := claimBy(1, "k", time.Minute)
	b := openDSN(t, "etcds://"+m.Addr+"?ca="+certs.CA+"&cert="+certs.Cert+"&key="+certs.Key)
	acquired(t, b, c)
	if _, err := b.Renew(bounded(t), c); err != nil {
		t.Errorf("Renew = %v", err)
	}
	if err := b.Release(bounded(t), c); err != nil {
		t.Errorf("Release = %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := openDSN(t, "etcds://"+m.Addr+"?ca="+certs.CA).Acquire(ctx, c); err == nil {
		t.Error("Acquire without a certificate was granted by a server that wants one")
	}
}

func TestDSNThatCannotBeUsedIsRefusedWithAReason(t *testing.T) {
	certs := redistest.NewCertificates(t)
	missing := filepath.Join(t.TempDir(), "missing.pem")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const accepted = "dial_timeout, keepalive_time, keepalive_timeout, namespace"
	for _, c := range []struct{ dsn, want string }{
		{"", "it must begin with etcd:// or etcds://"},
		{"localhost:2379", "it must begin with etcd:// or etcds://"},
		{"http://h:2379", "it must begin with etcd:// or etcds://"},
		{"etcd://h?timeout=3s", `unknown parameter "timeout"; accepted: ` + accepted},
		{"etcd://h?ca=x", `unknown parameter "ca"; accepted: ` + accepted},
		{"etcds://h?nope=1", `unknown parameter "nope"; accepted: ca, cert, dial_timeout, insecure, keepalive_time, keepalive_timeout, key, namespace`},
		{"etcd://h:x", "hosts must be written host, host:port or [ipv6]:port, separated by commas"},
		{"etcd://h,,i", "hosts must be written host, host:port or [ipv6]:port, separated by commas"},
		{"etcd://h/locks", "there is nothing to name by a path; a prefix for all keys is written ?namespace="},
		{"etcd://u@h", "user and password go together"},
		{"etcd://:p@h", "user and password go together"},
		{"etcd://h?dial_timeout=3", `parameter "dial_timeout" must be a duration such as 500ms or 3s`},
		{"etcd://h?dial_timeout=0s", `parameter "dial_timeout" must be more than 0`},
		{"etcd://h?keepalive_time=500ms", `parameter "keepalive_time" must be 1s or more`},
		{"etcd://h?keepalive_timeout=0s", `parameter "keepalive_timeout" must be more than 0`},
		{"etcd://h?namespace=a&namespace=b", `parameter "namespace" is given 2 times`},
		{"etcds://h?cert=" + certs.Cert, `parameters "cert" and "key" go together`},
		{"etcds://h?key=" + certs.Key, `parameters "cert" and "key" go together`},
		{"etcds://h?ca=" + missing, `parameter "ca" must be a file that can be read: no such file or directory`},
		{"etcds://h?ca=" + empty, `parameter "ca" must be a file of PEM certificates`},
		{"etcds://h?cert=" + missing + "&key=" + missing, `parameters "cert" and "key" must be files of a PEM certificate and its key: no such file or directory`},
		{"etcds://h?insecure=perhaps", `parameter "insecure" must be true, false, on or off`},
	} {
		_, err := etcddriver.Driver{}.Open(c.dsn)
		if want := "etcd: invalid DSN: " + c.want; err == nil || err.Error() != want {
			t.Errorf("Open(%q) = %v\nwant %s", c.dsn, err, want)
		}
		if !errors.Is(err, driver.ErrInvalidDSN) {
			t.Errorf("Open(%q) = %v, want it to match ErrInvalidDSN", c.dsn, err)
		}
	}
}

const canary = "cAnArY7"

func TestNoErrorOfADSNShowsASecret(t *testing.T) {
	for _, dsn := range []string{
		"etcd://u:%s@h/x", "etcd://%s:p@h/x", "etcd://u:%s@h:x", "etcd://u:%s", "etcd://u:a@%s@h", "etcd://u:p%%zz%s@h", "etcd://%s@h",
		"etcd://u:p/%s@h", "etcd://u:p#%s@h", "etcd://u:p?%s@h", "etcd://h?nope=%s", "etcd://u:%s@h?nope=1", "etcd://h?dial_timeout=%s",
		"etcd://h?keepalive_time=%s", "etcd://h/x?namespace=%s", "etcds://h?ca=%s", "etcds://h?cert=%s&key=%s", "etcds://h?insecure=%s",
		"etcds://u:%s@h?insecure=x", "htpp://u:%s@h", "%s",
	} {
		dsn = fmt.Sprintf(dsn, slices.Repeat([]any{canary}, strings.Count(dsn, "%s"))...)
		_, err1 := etcddriver.Driver{}.Open(dsn)
		_, err2 := driver.Open("etcd", dsn)
		_, err3 := dlock.Open("etcd", dsn, &dlock.Config{})
		for _, err := range []error{err1, err2, err3} {
			if !errors.Is(err, driver.ErrInvalidDSN) {
				t.Errorf("opening %q: %v, want ErrInvalidDSN", dsn, err)
			} else if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, canary) {
				t.Errorf("opening %q: %s, want no secret in it", dsn, text)
			}
		}
	}
}

// TestNothingThatIsPrintedShowsAPassword includes what a server says, or none.
func TestNothingThatIsPrintedShowsAPassword(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	enableAuth(t, m)
	for _, addr := range []string{m.Addr, nobody(t)} {
		b := openDSN(t, "etcd://root:"+canary+"@"+addr+"?dial_timeout=300ms")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err1 := b.Acquire(ctx, claimBy(1, "k", time.Minute))
		_, err2 := b.Wait(ctx, claimBy(1, "k", time.Minute), func() {})
		_, err3 := b.Diagnose(ctx)
		l, err := dlock.New(b, &dlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []any{b, l, err1, err2, err3, b.Ping(ctx), b.Release(ctx, claimBy(1, "k", time.Minute))} {
			if text := fmt.Sprintf("%v %+v %#v %s", x, x, x, x); strings.Contains(text, canary) {
				t.Errorf("printed, %T is %s", x, text)
			}
		}
	}
}

// nobody returns an address that nobody listens at.
func nobody(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// enableAuth has m ask for passwords. root's is "secret"; app's is "secret" too, and it may use keys that begin with app.
func enableAuth(t testing.TB, m *etcdtest.Member) {
	t.Helper()
	admin, ctx := m.Client(t), bounded(t)
	_, err1 := admin.UserAdd(ctx, "root", "secret")
	_, err2 := admin.UserGrantRole(ctx, "root", "root")
	_, err3 := admin.RoleAdd(ctx, "app")
	_, err4 := admin.RoleGrantPermission(ctx, "app", "app", clientv3.GetPrefixRangeEnd("app"), clientv3.PermissionType(clientv3.PermReadWrite))
	_, err5 := admin.UserAdd(ctx, "app", "secret")
	_, err6 := admin.UserGrantRole(ctx, "app", "app")
	_, err7 := admin.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		t.Fatal(err)
	}
}

func TestAUserNeedsNoMorePermissionThanForTheKeys(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	enableAuth(t, m)
	b, other := openDSN(t, "etcd://app:secret@"+m.Addr), openDSN(t, "etcd://app:secret@"+m.Addr)
	ctx := bounded(t)
	c, next := claimBy(1, "app:k", time.Minute), claimBy(2, "app:k", time.Minute)
	g := acquired(t, b, c)
	done := queued(t, other, next)
	if _, err := b.Renew(ctx, c); err != nil {
		t.Errorf("Renew = %v", err)
	}
	info, err := other.Inspect(ctx, "app:k")
	if err != nil || info.Fence != g.Fence || len(info.Waiters) != 1 {
		t.Errorf("Inspect = %+v, %v; want the holder and one who waits", info, err)
	}
	for range other.List(ctx, "app:") {
	}
	if err := b.Ping(ctx); err != nil {
		t.Errorf("Ping = %v", err)
	}
	if _, err := b.Diagnose(ctx); err != nil {
		t.Errorf("Diagnose = %v", err)
	}
	if err := b.Break(ctx, "app:k", g.Fence); err != nil {
		t.Errorf("Break = %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("Wait = %v", err)
	}
	if err := other.Release(ctx, next); err != nil {
		t.Errorf("Release = %v", err)
	}
	_, err = b.Acquire(ctx, claimBy(3, "other:k", time.Minute))
	if !errors.Is(err, rpctypes.ErrPermissionDenied) || !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Acquire of a key that the user may not use = %v, want it permanent and ErrPermissionDenied", err)
	}
	_, err = openDSN(t, "etcd://app:wrong@"+m.Addr).Acquire(ctx, c)
	if !errors.Is(err, rpctypes.ErrAuthFailed) || !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Acquire with a wrong password = %v, want it permanent and ErrAuthFailed", err)
	}
	_, err = openDSN(t, "etcd://"+m.Addr).Acquire(ctx, c)
	if !errors.Is(err, rpctypes.ErrUserEmpty) || !errors.Is(err, driver.ErrPermanent) {
		t.Errorf("Acquire without a user = %v, want it permanent and ErrUserEmpty", err)
	}
}

func TestNewOfNothingIsNoBackend(t *testing.T) {
	b := etcddriver.New(nil)
	if b != nil {
		t.Errorf("New(nil) = %v, want a nil Backend", b)
	}
	if _, err := dlock.New(b, &dlock.Config{}); !errors.Is(err, dlock.ErrConnectorNil) {
		t.Errorf("dlock.New(etcd.New(nil)) = %v, want ErrConnectorNil", err)
	}
}

func TestNewLeavesTheClientOpen(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client(t)
	l, err := dlock.New(etcddriver.New(client, nil, etcddriver.WithNamespace("svc/")), &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, late := bounded(t), faulttest.Lateness(t)
	if err := l.Lock(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(ctx, "svc/k/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Errorf("Get of what is below svc/k/ = %v, %v; want one key", resp, err)
	}
	began := time.Now()
	if err := l.Close(); err != nil && late() < 100*time.Millisecond { // it does not wait long for a backend
		t.Errorf("Close = %v", err)
	}
	took := time.Since(began) // longer than this, and the server was not waited for
	if resp, err = client.Get(ctx, "", clientv3.WithFromKey()); err != nil || len(resp.Kvs) != 0 && took < 200*time.Millisecond {
		t.Errorf("Get by the application's client after Close = %v, %v; want it open, and no key left behind", resp, err)
	}
}
