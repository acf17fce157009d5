package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// D1
func TestAServerThatForgetsEverythingIsNoticedAndFencesStillRise(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	s := startServer(t)
	l := locker(t, s.Addr, ttl)
	x := faulttest.Hold(t, l, "d1")
	y := faulttest.Hold(t, l, "d1-released")
	if err := y.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan *dlock.Lease, 1)
	go func() {
		z, _ := dlock.Acquire(t.Context(), locker(t, s.Addr, ttl), "d1")
		waiting <- z
	}()
	faulttest.Eventually(t, 5*time.Second, "another one waits", func() bool { return s.waiting(t, "d1") == 1 })
	slow := s.slowness(t)
	s.Kill()
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	if took := faulttest.Ended(t, x, 5*ttl).Sub(back); took > ttl/3+200*time.Millisecond+slow() {
		t.Errorf("Done %v after the server was back, want by the next renewal, within %v", took, ttl/3)
	}
	if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
	}
	select {
	case z := <-waiting:
		if z == nil || z.Fence() <= x.Fence() {
			t.Errorf("the waiter has %v, want a fence above %d", z, x.Fence())
		}
	case <-time.After(10 * time.Second):
		t.Error("the waiter does not get the lock from the server that was started again")
	}
	if again := faulttest.Hold(t, l, "d1-released"); again.Fence() <= y.Fence() {
		t.Errorf("the fence after the restart is %d, want more than %d", again.Fence(), y.Fence())
	}
}

// TestFormerFailuresToConnectDoNotKeepTheNextOneFromTrying fails more often than any pool has places.
func TestFormerFailuresToConnectDoNotKeepTheNextOneFromTrying(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	refused := errors.New("refused here")
	for name, failing := range map[string]struct {
		dial func(ctx context.Context) error
		want error
	}{
		"refused": {func(context.Context) error { return refused }, refused},
		"cancelled": {func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var healed atomic.Bool
			client := goredis.NewClient(&goredis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if !healed.Load() {
					return nil, failing.dial(ctx)
				}
				return new(net.Dialer).DialContext(ctx, "tcp", s.Addr)
			}})
			t.Cleanup(func() { _ = client.Close() })
			b := redisdriver.New(client).(*redisdriver.Backend)
			t.Cleanup(func() { _ = b.Close() })
			c := faulttest.Claim("dials-"+name, time.Minute)
			for range 40 {
				for what, call := range map[string]func(ctx context.Context) error{
					"Acquire": func(ctx context.Context) error { _, err := b.Acquire(ctx, c); return err },
					"Renew":   func(ctx context.Context) error { _, err := b.Renew(ctx, c); return err },
				} {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
					if err := call(ctx); !errors.Is(err, failing.want) && !errors.Is(err, context.DeadlineExceeded) {
						t.Fatalf("%s = %v, want %v", what, err, failing.want)
					}
					cancel()
				}
			}
			healed.Store(true)
			acquire(t, b, c)
			if _, err := b.Renew(t.Context(), c); err != nil {
				t.Errorf("Renew = %v", err)
			}
			release(t, b, c)
		})
	}
}

// fault is a way for a server to refuse.
type fault struct {
	name      string
	args      []string                      // of the server
	params    string                        // in front of the host in the DSN
	provoke   func(t *testing.T, s *server) // after the backend has connected, unless fresh
	fresh     bool                          // the backend connects only when the fault is there
	mend      func(t *testing.T, s *server) // so that the witness may look
	kind      func(error) bool              // the client's own test of the error
	text      string                        // what the server says
	cut       bool                          // the server closes the connection, and what it says may be lost with it
	permanent bool
}

// D2
func TestAServerThatRefusesIsAnErrorAndNeverHeld(t *testing.T) {
	t.Parallel()
	for _, f := range refusals() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, f.args...)
			b, err := redisdriver.Driver{}.Open("redis://" + f.params + s.Addr + "/0?read_timeout=2s")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			held := faulttest.Claim("d2-held", 30*time.Second)
			if !f.fresh {
				acquire(t, b, held)
				if _, err := b.Renew(t.Context(), held); err != nil {
					t.Fatal(err)
				}
			}
			f.provoke(t, s)
			if f.mend != nil {
				defer f.mend(t, s)
			}
			_, err = b.Acquire(t.Context(), faulttest.Claim("d2", 30*time.Second))
			f.check(t, "Acquire", err)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err = b.(driver.Waiter).Wait(ctx, faulttest.Claim("d2", 30*time.Second), func() {})
			f.check(t, "Wait", err)
			for _, op := range []func() error{
				func() error { _, err := b.Renew(t.Context(), held); return err },
				func() error { return b.Release(t.Context(), held) },
			} {
				// A server that takes no new data may still let go of what it has.
				if err := op(); errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotOwner) && !f.fresh {
					t.Errorf("a refusal came as %v", err)
				}
			}
		})
	}
}

func (f *fault) check(t *testing.T, op string, err error) {
	t.Helper()
	var answer goredis.Error
	switch {
	case err == nil:
		t.Errorf("%s succeeded", op)
	case errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotOwner):
		t.Errorf("%s = %v, want the refusal", op, err)
	case !errors.As(err, &answer) && !f.cut:
		t.Errorf("%s = %v (%T), want the server's answer in the chain", op, err, err)
	case !strings.Contains(err.Error(), f.text):
		t.Errorf("%s = %v, want %q", op, err, f.text)
	case f.kind != nil && !f.kind(err):
		t.Errorf("%s = %v: the client does not recognise its error", op, err)
	case errors.Is(err, driver.ErrPermanent) != f.permanent:
		t.Errorf("%s = %v: permanent is %v, want %v", op, err, !f.permanent, f.permanent)
	}
}

func set(args ...any) func(t *testing.T, s *server) {
	return func(t *testing.T, s *server) { s.do(t, args...) }
}

func refusals() []fault {
	nobody := func(t *testing.T, s *server) { s.do(t, "replicaof", "127.0.0.1", redistest.FreePort(t)) }
	return []fault{
		{name: "OOM", provoke: set("config", "set", "maxmemory", "1"), mend: set("config", "set", "maxmemory", "0"), kind: goredis.IsOOMError, text: "OOM"},
		{name: "READONLY", provoke: nobody, mend: set("replicaof", "no", "one"), kind: goredis.IsReadOnlyError, text: "READONLY"},
		{
			name: "MASTERDOWN", mend: set("replicaof", "no", "one"), kind: goredis.IsMasterDownError, text: "MASTERDOWN",
			provoke: func(t *testing.T, s *server) {
				s.do(t, "config", "set", "replica-serve-stale-data", "no")
				nobody(t, s)
			},
		},
		{name: "MISCONF", provoke: failToSave, mend: set("config", "set", "stop-writes-on-bgsave-error", "no"), text: "MISCONF"},
		{name: "BUSY", args: []string{"--lua-time-limit", "20"}, provoke: keepBusy, mend: set("script", "kill"), text: "BUSY"},
		{
			name: "NOAUTH", fresh: true, kind: goredis.IsAuthError, text: "NOAUTH", permanent: true,
			provoke: set("acl", "setuser", "default", ">secret"), mend: set("acl", "setuser", "default", "nopass"),
		},
		{
			name: "WRONGPASS", params: "limited:wrong@", fresh: true, kind: goredis.IsAuthError, text: "WRONGPASS", permanent: true,
			provoke: set("acl", "setuser", "limited", "on", ">right", "~*", "&*", "+@all"),
		},
		{
			name: "NOPERM for the key", params: "limited:right@", fresh: true, kind: goredis.IsPermissionError, text: "NOPERM", permanent: true,
			provoke: set("acl", "setuser", "limited", "on", ">right", "~other:*", "&*", "+@all"),
		},
		{
			name: "NOPERM for scripts", params: "limited:right@", fresh: true, kind: goredis.IsPermissionError, text: "NOPERM", permanent: true,
			provoke: set("acl", "setuser", "limited", "on", ">right", "~*", "&*", "+@all", "-evalsha", "-eval"),
		},
		{
			name: "NOPERM in the script", params: "limited:right@", fresh: true, text: "can't run this command", permanent: true,
			provoke: set("acl", "setuser", "limited", "on", ">right", "~*", "&*", "+@all", "-set"),
		},
		{name: "a key of another type", provoke: set("hset", "d2", "a", "b"), mend: set("del", "d2"), text: "WRONGTYPE", permanent: true},
		{
			name: "max clients", fresh: true, cut: true,
			provoke: func(t *testing.T, s *server) {
				s.do(t, "ping")
				s.do(t, "config", "set", "maxclients", len(strings.Split(strings.TrimSpace(s.do(t, "client", "list").(string)), "\n")))
			},
			mend: set("config", "set", "maxclients", "1000"),
		},
	}
}

// failToSave has the server fail to write its data to disk.
func failToSave(t *testing.T, s *server) {
	if err := os.MkdirAll(filepath.Join(s.Dir, "dump.rdb", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.do(t, "config", "set", "save", "3600 1")
	s.do(t, "bgsave")
	faulttest.Eventually(t, 10*time.Second, "a save has failed", func() bool {
		return strings.Contains(s.do(t, "info", "persistence").(string), "rdb_last_bgsave_status:err")
	})
}

// keepBusy has the server run a script that does not end.
func keepBusy(t *testing.T, s *server) {
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprint(conn, "EVAL \"while true do end\" 0\r\n"); err != nil {
		t.Fatal(err)
	}
	faulttest.Eventually(t, 10*time.Second, "the server is busy", func() bool {
		err := s.admin.Get(context.Background(), "x").Err()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
}

// D2
func TestAnAnswerOfAnyServerThatRefusesKeepsItsKind(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{
		{name: "LOADING", text: "LOADING Redis is loading the dataset in memory", kind: goredis.IsLoadingError},
		{name: "MASTERDOWN", text: "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", kind: goredis.IsMasterDownError},
		{name: "CLUSTERDOWN", text: "CLUSTERDOWN Hash slot not served", kind: goredis.IsClusterDownError},
		{name: "TRYAGAIN", text: "TRYAGAIN Multiple keys request during rehashing of slot", kind: goredis.IsTryAgainError},
		{name: "max clients", text: "ERR max number of clients reached", kind: goredis.IsMaxClientsError},
		{name: "UNKILLABLE", text: "UNKILLABLE Sorry the script already executed write commands against the dataset."},
		{name: "NOREPLICAS", text: "NOREPLICAS Not enough good replicas to write.", kind: goredis.IsNoReplicasError},
		{name: "NOAUTH", text: "NOAUTH Authentication required.", kind: goredis.IsAuthError, permanent: true},
		{name: "an error without a name", text: "ERR something else"},
		{name: "in a script of Redis 7", text: "ERR The user executing the script can't run this command or subcommand script: 4b6396069aa71db9, on @user_script:98."},
		{
			name: "in a script of Redis 6.2",
			text: "ERR Error running script (call to f_4b6396069aa71db9): @user_script:98: @user_script: 98: The user executing the script can't run this command or subcommand",
		},
		{
			name: "in a script of Redis 7 that has undone what it did", permanent: true,
			text: "ERR The user executing the script can't run this command or subcommand (not applied)",
		},
		{
			name: "in a script of Redis 6.2 that has undone what it did", permanent: true,
			text: "@user_script: 98: The user executing the script can't run this command or subcommand (not applied)",
		},
	} {
		for _, only := range []string{"", "EVAL"} {
			t.Run(f.name+only, func(t *testing.T) {
				t.Parallel()
				b := backend(t, refusingServer(t, f.text, only))
				c := faulttest.Claim("d2", time.Second)
				_, err := b.Acquire(t.Context(), c)
				f.check(t, "Acquire", err)
				_, err = b.Renew(t.Context(), c)
				f.check(t, "Renew", err)
				f.check(t, "Release", b.Release(t.Context(), c))
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err = b.Wait(ctx, c, func() {})
				f.check(t, "Wait", err)
			})
		}
	}
}

// refusingServer answers every command, or only those that begin with a word, with an error. It says no more of itself than that it has no HELLO.
func refusingServer(t *testing.T, text, only string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveErrors(conn, text, only)
		}
	}()
	return l.Addr().String()
}

func serveErrors(conn net.Conn, text, only string) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		args, err := readRequest(in)
		if err != nil {
			return
		}
		name := strings.ToUpper(args[0])
		switch {
		case strings.HasPrefix(name, only):
			_, err = fmt.Fprintf(conn, "-%s\r\n", text)
		case name == "SUBSCRIBE":
			_, err = fmt.Fprintf(conn, "*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(args[1]), args[1])
		case name == "INFO":
			const info = "redis_version:7.0.15"
			_, err = fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(info), info)
		default:
			_, err = fmt.Fprintf(conn, "-ERR unknown command '%s'\r\n", name)
		}
		if err != nil {
			return
		}
	}
}

// readRequest reads one command in the form that clients send.
func readRequest(in *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		raw := make([]byte, size+2)
		for got := 0; got < len(raw); {
			m, err := in.Read(raw[got:])
			if err != nil {
				return nil, err
			}
			got += m
		}
		args[i] = string(raw[:size])
	}
	return args, nil
}

// D2
func TestATransientRefusalDoesNotDecideWhetherTheServerIsAClusterOrOld(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--lua-time-limit", "20", "--rename-command", "HELLO", "") // that would be answered
	b := backend(t, s.Addr)
	keepBusy(t, s)
	_, err := b.Acquire(t.Context(), faulttest.Claim("d2", time.Second))
	if err == nil || !strings.Contains(err.Error(), "BUSY") {
		t.Fatalf("Acquire = %v, want BUSY", err)
	}
	s.do(t, "script", "kill")
	faulttest.Eventually(t, 5*time.Second, "the server is free", func() bool { return s.admin.Ping(t.Context()).Err() == nil })
	before := s.calls(t, "info")
	acquire(t, b, faulttest.Claim("d2", time.Second))
	if n := s.calls(t, "info") - before; n < 2 { // ours, and that which counts
		t.Error("the server was not asked again what it is")
	}
}

// D2
func TestAFullServerStillRenewsReleasesAndHandsOver(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := backend(t, s.Addr), backend(t, s.Addr)
	ca, cb := claimed(t, a, "full"), faulttest.Claim("full", 30*time.Second)
	got := wait(t.Context(), b, cb)
	faulttest.Eventually(t, 5*time.Second, "the second waits", func() bool { return s.waiting(t, "full") == 1 })
	alone := claimed(t, a, "full-alone")
	s.do(t, "config", "set", "maxmemory", "1")
	defer s.do(t, "config", "set", "maxmemory", "0")
	if _, err := a.Renew(t.Context(), ca); err != nil {
		t.Errorf("Renew: %v", err)
	}
	release(t, a, alone)
	release(t, a, ca)
	within(t, 2*time.Second, "the hand-over", got)
	release(t, b, cb)
	if v := s.value(t, "full"); v != "" {
		t.Errorf("the lock has %q after its release", v)
	}
}

// D3
func TestScriptsThatTheServerForgotAreSentAgain(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	flush := func() { s.do(t, "script", "flush") }
	t.Run("each call by itself", func(t *testing.T) {
		a, b := backend(t, s.Addr), backend(t, s.Addr)
		c, w := faulttest.Claim("d3", 30*time.Second), faulttest.Claim("d3", time.Second)
		flush()
		before := s.calls(t, "eval")
		g := acquire(t, a, c)
		if n := s.calls(t, "eval") - before; n != 1 {
			t.Errorf("%d further round trips, want 1", n)
		}
		flush()
		if _, err := a.Renew(t.Context(), c); err != nil {
			t.Errorf("Renew: %v", err)
		}
		flush()
		got := wait(t.Context(), b, w)
		faulttest.Eventually(t, 5*time.Second, "the second waits", func() bool { return s.waiting(t, "d3") == 1 })
		evals := s.calls(t, "eval") // before the server forgets: it may be asked again at once
		flush()
		faulttest.Eventually(t, 5*time.Second, "it re-asserts itself", func() bool { return s.calls(t, "eval") > evals })
		flush()
		if err := a.Break(t.Context(), "d3", g.Fence); err != nil {
			t.Errorf("Break: %v", err)
		}
		within(t, 2*time.Second, "the hand-over", got)
		flush()
		release(t, b, w)
	})
	t.Run("renewals of many", func(t *testing.T) {
		b := backend(t, s.Addr)
		var claims []driver.Claim
		for i := range 450 {
			c := faulttest.Claim(fmt.Sprint("d3-", i), 30*time.Second)
			acquire(t, b, c)
			claims = append(claims, c)
		}
		flush()
		for i, r := range b.RenewBatch(t.Context(), claims) {
			if r.Err != nil {
				t.Fatalf("claim %d: %v", i, r.Err)
			}
		}
	})
	t.Run("at any time", func(t *testing.T) {
		l := openLocker(t, dsn(s.Addr), dlock.Config{DefaultTTL: 20 * time.Second, RenewInterval: 150 * time.Millisecond})
		kept := faulttest.Hold(t, l, "d3-kept")
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					err := dlock.Do(t.Context(), l, fmt.Sprint("d3-any-", i%4), func(context.Context) error { return nil })
					if err != nil {
						t.Errorf("Do: %v", err)
						return
					}
				}
			})
		}
		renewed, until := 0, kept.ValidUntil()
		for end := time.Now().Add(15 * time.Second); renewed < 8 && time.Now().Before(end); {
			flush()
			if now := kept.ValidUntil(); now.After(until) {
				renewed, until = renewed+1, now
			}
		}
		close(stop)
		wg.Wait()
		if renewed < 8 || !kept.Held() {
			t.Errorf("the hold was renewed %d times, want 8, and then: %v", renewed, kept.Err())
		}
	})
}

// D4
func TestAnInterferenceWithAHeldKeyIsNoticedByTheNextRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	for name, interfere := range map[string][]any{
		"DEL":                  {"del", "d4"},
		"FLUSHALL":             {"flushall"},
		"foreign SET":          {"set", "d4", "somebody else", "px", 30_000},
		"another hold of ours": {"set", "d4", "d:" + strings.Repeat("0", 32) + "-1700000000000000 x", "px", 30_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			l := locker(t, s.Addr, ttl)
			x := faulttest.Hold(t, l, "d4")
			slow := s.slowness(t)
			s.do(t, interfere...)
			value, began := s.value(t, "d4"), time.Now()
			if took := faulttest.Ended(t, x, 5*ttl).Sub(began); took > ttl/3+100*time.Millisecond+slow() {
				t.Errorf("Done after %v, want within a third of %v", took, ttl)
			}
			if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
				t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
			}
			if now := s.value(t, "d4"); now != value {
				t.Errorf("the value was %q, is %q", value, now)
			}
		})
	}
	t.Run("Unlock before the next renewal", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		l := locker(t, s.Addr, 30*time.Second)
		x := faulttest.Hold(t, l, "d4")
		s.do(t, "set", "d4", "somebody else", "px", 30_000)
		if err := x.Unlock(t.Context()); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("Unlock = %v, want ErrOwnershipLost", err)
		}
		if v := s.value(t, "d4"); v != "somebody else" {
			t.Errorf("the foreign value is %q", v)
		}
	})
}

// D10
func TestForeignValuesAreRespectedAndNeverWrittenTo(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"32 digits":             strings.Repeat("0123456789abcdef", 2),
		"that of redislock":     "wSYYRkBJhM4qLpkgbJ-OTQ",
		"that of redsync":       "HZ+sXy2N9BeDkE0fkHbVYg==",
		"empty":                 "",
		"ours without an end":   "d:" + strings.Repeat("a", 32),
		"ours without a fence":  "d:" + strings.Repeat("a", 32) + "- me",
		"ours, but longer":      "d:" + strings.Repeat("a", 33) + "-1 me",
		"ours in other letters": "d:" + strings.Repeat("g", 32) + "-1 me",
		"bytes":                 "\x00\r\n\xff",
	} {
		for _, expires := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/expires=%v", name, expires), func(t *testing.T) {
				t.Parallel()
				foreignValue(t, value, expires)
			})
		}
	}
}

func foreignValue(t *testing.T, value string, expires bool) {
	s := startServer(t)
	b := backend(t, s.Addr)
	if expires {
		s.do(t, "set", "d10", value, "px", 50_000)
	} else {
		s.do(t, "set", "d10", value)
	}
	same := func(after string) {
		t.Helper()
		if v, err := s.admin.Get(t.Context(), "d10").Result(); err != nil || v != value {
			t.Errorf("after %s the value is %q (%v), was %q", after, v, err, value)
		}
		if left := s.pttl(t, "d10"); expires != (left > 40*time.Second) || left > 50*time.Second {
			t.Errorf("after %s it expires in %v", after, left)
		}
	}
	c := faulttest.Claim("d10", 2*time.Second)
	if _, err := b.Acquire(t.Context(), c); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire = %v, want ErrHeld", err)
	}
	same("Acquire")
	if _, err := b.Renew(t.Context(), c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Renew = %v, want ErrNotOwner", err)
	}
	same("Renew")
	if err := b.Release(t.Context(), c); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Release = %v, want ErrNotOwner", err)
	}
	same("Release")
	if err := b.Break(t.Context(), "d10", 1); !errors.Is(err, driver.ErrNotOwner) {
		t.Errorf("Break = %v, want ErrNotOwner", err)
	}
	same("Break")
	w := faulttest.Claim("d10", 2*time.Second)
	got := wait(t.Context(), b, w)
	before := s.calls(t, "evalsha")
	faulttest.Eventually(t, 5*time.Second, "the waiter looks again", func() bool { return s.waiting(t, "d10") == 1 && s.calls(t, "evalsha") > before+2 })
	same("waiting")
	slow := s.slowness(t)
	// Its owner lets go by DEL, which tells nobody.
	s.do(t, "del", "d10")
	began := time.Now()
	g := within(t, patience, "the lock when the foreign owner has gone", got)
	if took := g.at.Sub(began); took > 200*time.Millisecond+slow() {
		t.Errorf("it took %v to notice", took)
	}
	release(t, b, w)
}
