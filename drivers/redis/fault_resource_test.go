package redis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// F1
func TestAnApplicationThatUsesUpItsPoolDoesNotDelayRenewals(t *testing.T) {
	t.Parallel()
	const pool = 3
	s := startServer(t)
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr, PoolSize: pool})
	t.Cleanup(func() { _ = client.Close() })
	b := redisdriver.New(client)
	l, err := dlock.New(b, &dlock.Config{DefaultTTL: 20 * time.Second, RenewInterval: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	x := faulttest.Hold(t, l, "f1")
	c := claimed(t, b, "f1-renewed")
	ctx, cancel := context.WithCancel(context.Background())
	var app sync.WaitGroup
	for range pool * 3 {
		app.Go(func() {
			for ctx.Err() == nil {
				client.BLPop(ctx, time.Second, "nothing ever comes")
			}
		})
	}
	defer app.Wait()
	defer cancel()
	faulttest.Eventually(t, 5*time.Second, "the pool is used up", func() bool {
		return strings.Count(s.do(t, "client", "list").(string), "cmd=blpop") >= pool
	})
	slow, until := s.slowness(t), x.ValidUntil()
	var took []time.Duration
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		began := time.Now()
		if _, err := b.Renew(t.Context(), c); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		took = append(took, time.Since(began))
		time.Sleep(2 * time.Millisecond)
	}
	slices.Sort(took)
	if p99 := took[len(took)*99/100]; p99 > 50*time.Millisecond+slow() {
		t.Errorf("99 of 100 renewals take up to %v, want at most 50ms", p99)
	}
	faulttest.Eventually(t, patience, "renewals have moved the deadline meanwhile", func() bool { return x.ValidUntil().After(until.Add(time.Second)) })
	if !x.Held() {
		t.Errorf("the hold was lost: %v", x.Err())
	}
}

// F2. It does not run beside other tests: it counts what the whole process has.
func TestManyCyclesLeaveNothingBehind(t *testing.T) {
	cycles := 20_000
	if os.Getenv("DLOCK_LONG") != "" {
		cycles = 100_000
	}
	s := startServer(t)
	l := locker(t, s.Addr, 30*time.Second)
	run := func(n int) {
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range n / 8 {
					key := fmt.Sprint("f2-", (g+i)%16) // now free, now wanted by others
					if err := dlock.Do(t.Context(), l, key, func(context.Context) error { return nil }); err != nil {
						t.Errorf("Do: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(cycles / 10)
	before := faulttest.Measure(t)
	run(cycles)
	after := before.Again(t, 1<<20)
	t.Logf("%d cycles: before %+v, after %+v", cycles, before, after)
	if n := s.do(t, "dbsize"); n.(int64) > 16+1 {
		t.Errorf("the server has %v keys, want no more than one for each lock", n)
	}
}

// F2
func TestLockersThatWereClosedLeaveNothingBehind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector would close what was forgotten
	s := startServer(t)
	connections := func() int { return strings.Count(s.do(t, "client", "list").(string), "\n") }
	run := func(n int) { faulttest.OpenAndClose(t, n, "redis", dsn(s.Addr)) }
	run(20)
	before, connected := faulttest.Measure(t), connections()
	run(200)
	faulttest.Eventually(t, 5*time.Second, "the server has as many connections as before", func() bool { return connections() <= connected+4 })
	before.Again(t, faulttest.AnyHeap)
}

// hostileKeys are keys that a careless driver takes for something else.
func hostileKeys() []string {
	keys := []string{
		"a", " ", "0", "\x00", "a\x00", "a\x00b", "\r\n", "a\r\nDEL a\r\n", "*1\r\n$4\r\nQUIT\r\n", "\xff\xfe", "a\xff", "é", "e\u0301", "/", "a/", "a/b", "..", "../a",
		"a/../b", "./a", "{", "}", "{}", "{a}", "a{a}", "{a}a", "a{", "a}", "}{", "%", "%7B", "%7Ba%7D", "%25", "a%", "*", "?", "[a]", `\`, `"`, "'", "KEYS[1]",
		"a{a}:f", "a{a}:q", "a{a}:w", "a%7Ba%7D:f", "a:f", "a:q", ":f", "a%{a}f", "a%{a}q", "a%f", "{a}%f", "{a}%q", "{a}%w", "%f", "%{", "{a}{", "{a}}", "a%7B", "{a}%7B", "-", "+", "d:" + strings.Repeat("0", 32), "A", "\t", "\u2028",
		strings.Repeat("k", 1024), strings.Repeat("k", 1023), strings.Repeat("{", 1024), strings.Repeat("\xff", 1024), strings.Repeat("%", 1024),
	}
	return keys
}

// F3
func TestHostileKeysAreKeptApart(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := locker(t, s.Addr, 50*time.Second), locker(t, s.Addr, 50*time.Second)
	inspector := backend(t, s.Addr)
	keys := hostileKeys()
	leases := map[string]*dlock.Lease{}
	for _, key := range keys {
		x, ok, err := dlock.TryAcquire(t.Context(), a, key)
		if !ok || err != nil {
			t.Fatalf("TryAcquire(%.40q) = %v, %v: it meets another key", key, ok, err)
		}
		leases[key] = x
	}
	// Every one has a queue of its own, and what is kept for one is not taken for another.
	waiters := map[string]<-chan granted{}
	claims := map[string]driver.Claim{}
	for _, key := range keys {
		claims[key] = faulttest.Claim(key, 50*time.Second)
		waiters[key] = wait(t.Context(), inspector, claims[key])
	}
	for _, key := range keys {
		faulttest.Eventually(t, 5*time.Second, fmt.Sprintf("somebody waits for %.40q", key), func() bool {
			info, err := inspector.Inspect(t.Context(), key)
			return err == nil && len(info.Waiters) == 1
		})
		info, err := inspector.Inspect(t.Context(), key)
		if err != nil || info.Key != key || info.Fence != leases[key].Fence() || len(info.Waiters) != 1 {
			t.Errorf("Inspect(%.40q) = %+v, %v; want the fence %d and one waiter", key, info, err, leases[key].Fence())
		}
	}
	var listed []string
	for info, err := range inspector.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, info.Key)
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(keys)); !slices.Equal(listed, want) {
		t.Errorf("List shows %d keys, want %d", len(listed), len(want))
	}
	for i, key := range keys {
		if err := leases[key].Unlock(t.Context()); err != nil {
			t.Errorf("Unlock(%.40q): %v", key, err)
		}
		within(t, 5*time.Second, fmt.Sprintf("the hand-over of %.40q", key), waiters[key])
		if ok, err := b.TryLock(t.Context(), key); ok || err != nil {
			t.Errorf("TryLock(%.40q) of another = %v, %v; want false", key, ok, err)
		}
		for _, other := range keys[i+1:] {
			if !leases[other].Held() {
				t.Fatalf("releasing %.40q ended the hold of %.40q", key, other)
			}
		}
		release(t, inspector, claims[key])
		if ok, err := b.TryLock(t.Context(), key); !ok || err != nil {
			t.Errorf("TryLock(%.40q) when free = %v, %v; want true", key, ok, err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", 1025)} {
		if err := a.Lock(t.Context(), key); !errors.Is(err, dlock.ErrInvalidKey) {
			t.Errorf("Lock of a key of %d bytes = %v, want ErrInvalidKey", len(key), err)
		}
	}
}

const canary = "cAnArY4711"

// canaryDSNs put the canary where a secret may be, whole and damaged.
func canaryDSNs(addr string) []string {
	var whole []string
	for _, scheme := range []string{"redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "unix"} {
		host, path := addr, ""
		switch {
		case strings.HasSuffix(scheme, "sentinel"):
			path = "/master"
		case scheme == "unix":
			host, path = "", "/nowhere/socket"
		}
		for _, user := range []string{":" + canary, canary, canary + ":x", "u:" + canary + "%21", "u:%63" + canary} {
			whole = append(whole, scheme+"://"+user+"@"+host+path)
		}
		for _, param := range []string{"sentinel_password", "sentinel_user", "client_name", "password", "read_timeout", "pool_size", "db", "notify", "ca", "key", "insecure", "nonsense"} {
			whole = append(whole, scheme+"://"+host+path+"?"+param+"="+canary)
		}
	}
	damage := []func(string) string{
		func(s string) string { return s },
		func(s string) string { return strings.Replace(s, "://", ":/", 1) },
		func(s string) string { return strings.Replace(s, "redis", "rdis", 1) },
		func(s string) string { return " " + s },
		func(s string) string { return s + "%zz" },
		func(s string) string { return s + "#frag" },
		func(s string) string { return strings.Replace(s, "@", "@@", 1) },
		func(s string) string { // a password that ends too early; a user's name by itself would become a host's
			if strings.Contains(s, "://"+canary+"@") {
				return s
			}
			return strings.Replace(s, "@", "/", 1)
		},
		func(s string) string { return strings.Replace(s, canary, canary+"/"+canary, 1) },
		func(s string) string { return strings.Replace(s, canary, canary+"%", 1) },
		func(s string) string { return strings.Replace(s, canary, canary+":"+canary, 1) },
		func(s string) string { return strings.Replace(s, addr, addr+"99999", 1) },
		func(s string) string { return s + "?x=" + canary },
		func(s string) string { return strings.Replace(s, "?", "?"+canary+"&", 1) },
		func(s string) string { return strings.Replace(s, canary, canary+"\n", 1) },
		func(s string) string { _, rest, _ := strings.Cut(s, "://"); return rest },
	}
	var all []string
	for _, s := range whole {
		for _, d := range damage {
			all = append(all, d(s))
		}
	}
	return all
}

// F4
func TestNoSecretOfADSNIsShown(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // the handler writes one line at a time
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	silent := listenSilently(t)
	refused := silent.addr[:strings.LastIndexByte(silent.addr, ':')] + ":1"
	opened, tried := 0, 0
	var used sync.WaitGroup
	for _, text := range canaryDSNs(refused) {
		tried++
		show := func(what string, v any) {
			t.Helper()
			for _, form := range shown(v) {
				if strings.Contains(form, canary) {
					t.Errorf("%s of %q shows the secret: %s", what, text, form)
					return
				}
			}
		}
		b, err := redisdriver.Driver{}.Open(text)
		if show("the driver's error", err); err == nil {
			show("the backend", b)
			_ = b.Close()
		}
		cfg := &dlock.Config{Driver: "redis", DSN: text, DefaultTTL: time.Second}
		show("the Config", cfg)
		show("the Config", *cfg)
		l, err := dlock.OpenConfig(cfg, dlock.WithLogger(logger))
		if show("dlock.Open's error", err); err != nil {
			continue
		}
		opened++
		number := opened
		used.Go(func() {
			if number%20 == 1 { // each takes a while
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				show("Lock's error", l.Lock(ctx, "f4"))
				_, err := l.TryLock(ctx, "f4")
				show("TryLock's error", err)
				show("Ping's error", dlock.Ping(ctx, l))
			}
			show("Close's error", l.Close())
		})
	}
	used.Wait()
	if opened == 0 || opened == tried {
		t.Errorf("%d of %d DSNs were accepted; some should be, and some not", opened, tried)
	}
	if strings.Contains(log.String(), canary) {
		t.Error("the log shows the secret")
	}
}

// F4
func TestALockerThatIsPrintedShowsNoSecret(t *testing.T) {
	t.Parallel()
	l, err := dlock.Open("redis", "redis://user:"+canary+"@127.0.0.1:1/0", &dlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for _, form := range shown(l) {
		if strings.Contains(form, canary) {
			t.Fatalf("printed, the Locker shows the password: %s", form)
		}
	}
}

// shown is v in all the forms in which it may come into a log.
func shown(v any) []string {
	forms := []string{fmt.Sprintf("%v", v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v), fmt.Sprintf("%s", v), fmt.Sprintf("%q", v)}
	if raw, err := json.Marshal(v); err == nil {
		forms = append(forms, string(raw))
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("it", "v", v)
	forms = append(forms, log.String())
	for err, ok := v.(error); ok && err != nil; err = errors.Unwrap(err) {
		forms = append(forms, fmt.Sprintf("%+v %#v", err, err))
	}
	return forms
}

// F4
func TestARefusedPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.do(t, "acl", "setuser", canary, "on", ">right", "~*", "&*", "+@all")
	for _, text := range []string{
		"redis://" + canary + ":" + canary + "@" + s.Addr, "redis+cluster://" + canary + ":" + canary + "@" + s.Addr,
		"redis+sentinel://" + s.Addr + "/m?sentinel_user=" + canary + "&sentinel_password=" + canary,
	} {
		l, err := dlock.Open("redis", text, &dlock.Config{DefaultTTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err = l.TryLock(ctx, "f4")
		if err == nil {
			t.Errorf("TryLock with %q succeeded", text)
		}
		for _, form := range shown(err) {
			if strings.Contains(form, canary) {
				t.Errorf("TryLock's error shows the secret: %s", form)
			}
		}
		cancel()
		_ = l.Close()
	}
}

// TestAServerThatRepeatsWhatItWasToldDoesNotMakeItPublic has servers that do not know a command and repeat its arguments, as real ones do.
func TestAServerThatRepeatsWhatItWasToldDoesNotMakeItPublic(t *testing.T) {
	t.Parallel()
	noAuth, noScripts := redistest.Start(t, "--rename-command", "AUTH", ""), redistest.Start(t, "--rename-command", "EVALSHA", "")
	old := refusingServer(t, "ERR unknown command `auth`, with args beginning with: `user`, `"+canary+"`, ", "")
	for name, text := range map[string]string{
		"the password":             "redis://user:" + canary + "@" + noAuth.Addr,
		"the password, clustered":  "redis+cluster://user:" + canary + "@" + noAuth.Addr,
		"the password, replicated": "redis://user:" + canary + "@" + noAuth.Addr + "?replicas=1",
		"the password of Sentinel": "redis+sentinel://" + noAuth.Addr + "/m?sentinel_user=user&sentinel_password=" + canary,
		"the token":                "redis://" + noScripts.Addr,
		"the token, replicated":    "redis://" + noScripts.Addr + "?replicas=1",
		"as older servers do it":   "redis://user:" + canary + "@" + old,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBackend(t, text)
			ctx := limited(t, 20*time.Second)
			c := driver.Claim{Key: "k", Token: canary + strings.Repeat("0", 32-len(canary)), Owner: "a test", TTL: time.Second}
			for op, call := range map[string]func() error{
				"Acquire":  func() error { _, err := b.Acquire(ctx, c); return err },
				"Wait":     func() error { _, err := b.Wait(ctx, c, func() {}); return err },
				"Renew":    func() error { _, err := b.Renew(ctx, c); return err },
				"Release":  func() error { return b.Release(ctx, c) },
				"Break":    func() error { return b.Break(ctx, c.Key, 1) },
				"Inspect":  func() error { _, err := b.Inspect(ctx, c.Key); return err },
				"Ping":     func() error { return b.Ping(ctx) },
				"Diagnose": func() error { _, err := b.Diagnose(ctx); return err },
			} {
				err := call()
				for _, form := range shown(err) {
					if strings.Contains(form, canary) {
						t.Errorf("%s shows the secret: %s", op, form)
						break
					}
				}
				var answer goredis.Error
				if errors.As(err, &answer) && strings.Contains(answer.Error(), canary) {
					t.Errorf("%s has the secret in the server's answer: %v", op, answer)
				}
				if op == "Acquire" && !strings.Contains(name, "Sentinel") && (answer == nil || !errors.Is(err, driver.ErrPermanent)) {
					t.Errorf("%s = %v, want the server's answer, for good", op, err)
				}
			}
		})
	}
}

func TestEveryKeyExpires(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.longest = 2 * time.Second
	a, b := backend(t, s.Addr), backend(t, s.Addr)
	const ttl = 2 * time.Second
	look := func(after string) {
		t.Helper()
		s.checkExpiry(t)
		if t.Failed() {
			t.Fatalf("after %s", after)
		}
	}
	c := faulttest.Claim("free", ttl)
	acquire(t, a, c)
	look("an acquire")
	if _, err := a.Renew(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	look("a renewal")
	acquire(t, a, c)
	look("an acquire that was repeated")
	w := faulttest.Claim("free", ttl)
	got := queued(t, s, b, w)
	look("entering the queue")
	before := s.calls(t, "evalsha")
	faulttest.Eventually(t, 5*time.Second, "the waiter re-asserts itself", func() bool {
		_, err := a.Renew(t.Context(), c)
		return err == nil && s.calls(t, "evalsha") > before+20
	})
	look("a re-assertion")
	release(t, a, c)
	g := within(t, 5*time.Second, "the hand-over", got)
	look("a hand-over")
	if err := b.Break(t.Context(), "free", g.grant.Fence); err != nil {
		t.Fatal(err)
	}
	look("a break")
	ctx, cancel := context.WithCancel(t.Context())
	c, w = faulttest.Claim("gave up", ttl), faulttest.Claim("gave up", ttl)
	acquire(t, a, c)
	gone := wait(ctx, b, w)
	faulttest.Eventually(t, 5*time.Second, "it waits", func() bool { return s.waiting(t, "gave up") == 1 })
	cancel()
	<-gone
	look("a wait that was given up")
	release(t, a, w)
	look("leaving the queue")
	release(t, a, c)
	look("a release")
	s.do(t, "set", "foreign", "x", "px", 1000)
	ctx, cancel = context.WithCancel(t.Context())
	gone = wait(ctx, b, faulttest.Claim("foreign", ttl))
	faulttest.Eventually(t, 5*time.Second, "it waits", func() bool { return s.waiting(t, "foreign") == 1 })
	look("waiting for a foreign holder")
	within(t, 5*time.Second, "the lock of a foreign holder that expired", gone)
	cancel()
	look("taking over from a foreign holder")
	// A lock whose TTL has passed leaves nothing but what counts its fences.
	faulttest.Eventually(t, 2*ttl, "all locks have expired", func() bool {
		keys, err := s.admin.Keys(t.Context(), "*").Result()
		return err == nil && !slices.ContainsFunc(keys, func(k string) bool { return !strings.HasSuffix(k, "}f") })
	})
}

// TestTheFenceIsKeptForLongerThanTheLock has others with a short TTL come to a lock with a long one.
func TestTheFenceIsKeptForLongerThanTheLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.longest = dlock.MaxTTL
	a, b := backend(t, s.Addr), backend(t, s.Addr)
	look := func(after string) {
		t.Helper()
		lock, fence := s.pttl(t, "k"), s.pttl(t, companion("k", "f"))
		if lock < dlock.MaxTTL-time.Minute || fence < lock+4*time.Minute-time.Second {
			t.Errorf("after %s the lock expires in %v and the fence in %v, want the fence to do so later", after, lock, fence)
		}
	}
	c, w := faulttest.Claim("k", dlock.MaxTTL), faulttest.Claim("k", 600*time.Millisecond)
	acquire(t, a, c)
	look("the grant")
	ctx, cancel := context.WithCancel(t.Context())
	gone := wait(ctx, b, w)
	faulttest.Eventually(t, 10*time.Second, "somebody waits", func() bool { return s.waiting(t, "k") == 1 })
	look("somebody has entered the queue")
	before := s.calls(t, "evalsha")
	faulttest.Eventually(t, 10*time.Second, "the waiter has asked again", func() bool { return s.calls(t, "evalsha") > before })
	look("the waiter has asked again")
	cancel()
	<-gone
	release(t, b, w)
	look("the waiter has left")
	c.TTL = 31 * time.Minute // with one like this every renewal sees to the fence
	if _, err := a.Renew(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	look("a renewal for less")
}
