package dlocktest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var lockCases = []testCase{
	{"lock-excludes", "two Lockers", "Through a Locker: what one Locker has locked, another one cannot lock until it is unlocked.", nil, lockExcludes},
	{"lock-counter", "a shared counter", "Through a Locker: what Do runs under one key never runs at the same time, and its fences rise.", nil, lockCounter},
	{"lock-cycles", "again and again", "Through a Locker: a key can be locked and unlocked any number of times, and is free after each.", nil, lockCycles},
	{"lock-meets-spi", "one key, two layers", "Through a Locker: a lock is the store's key with the prefix in front, and excludes whoever uses that key.", nil, lockMeetsSPI},
	{"lock-prefixes", "two applications", "Through a Locker: the same key under different prefixes is two locks.", nil, lockPrefixes},
	{"lock-hostile-keys", "keys of any bytes", "Through a Locker: keys of any bytes, up to 1 KiB, are locks of their own.", nil, lockHostileKeys},
	{"trylock-never-waits", "TryLock", "Through a Locker: TryLock of a key that is held answers false without waiting.", nil, trylockNeverWaits},
	{"trylock-unknown", "unknown is not busy", "Through a Locker: TryLock in an outage is an error, not \"held by another\".", []need{needOutage}, trylockUnknown},
	{"lock-ping", "readiness", "Through a Locker: dlock.Ping succeeds while the store can be reached, and fails while it cannot.", []need{needPinger, needOutage}, lockPing},
}

func lockExcludes(t *caseT) {
	a, b := t.locker(ample), t.locker(ample)
	t.lock(a, "k", callLimit)
	if t.tryLock(b, "k") {
		t.Fatalf("TryLock of a key that another Locker holds returned true")
	}
	t.unlock(a, "k")
	if !t.tryLock(b, "k") {
		t.Fatalf("TryLock of a key that was unlocked returned false")
	}
	if t.tryLock(a, "k") {
		t.Fatalf("TryLock of a key that another Locker holds returned true")
	}
	t.unlock(b, "k")
}

func lockCounter(t *caseT) {
	var inside, fence atomic.Int64
	t.each(3, func(int) {
		l := t.locker(ample)
		for range t.rounds(6) {
			ctx, cancel := t.limited(40 * time.Second)
			err := dlock.Do(ctx, l, "k", func(ctx context.Context) error {
				if n := inside.Add(1); n != 1 {
					t.Errorf("Do ran %d functions at the same time", n)
				}
				defer inside.Add(-1)
				if f, ok := dlock.Fence(ctx); ok && fence.Swap(int64(f)) >= int64(f) {
					t.Errorf("the fence %d comes after one that is not smaller", f)
				}
				t.pause(time.Millisecond)
				return nil
			})
			cancel()
			if err != nil {
				t.Errorf("Do returned %q", err)
			}
		}
	})
}

func lockCycles(t *caseT) {
	l, other := t.locker(ample), t.locker(ample)
	for range t.rounds(25) {
		t.lock(l, "k", callLimit)
		t.unlock(l, "k")
		if !t.tryLock(other, "k") {
			t.Fatalf("TryLock of a key that was unlocked returned false")
		}
		t.unlock(other, "k")
	}
}

func lockMeetsSPI(t *caseT) {
	b, l := t.open(), t.lockerWith(dlock.Config{Prefix: "app:", DefaultTTL: ample})
	t.lock(l, "k", callLimit)
	t.taken(b, "app:k")
	t.free(b, "k")
	t.unlock(l, "k")
	c := t.claim("app:k", ample)
	t.acquire(b, c)
	if t.tryLock(l, "k") {
		t.Fatalf("TryLock returned true, and the key is held in the store")
	}
	t.release(b, c)
	t.lock(l, "k", callLimit)
}

func lockPrefixes(t *caseT) {
	for i, prefix := range []string{"", "a:", "b:", "a:b:", "a", "ab", "a/", "A:"} {
		l := t.lockerWith(dlock.Config{Prefix: prefix, DefaultTTL: ample})
		for _, key := range []string{"k", fmt.Sprintf("k%d", i)} {
			if !t.tryLock(l, key) {
				t.Fatalf("TryLock of %q under the prefix %q returned false, and nobody holds it", key, prefix)
			}
		}
	}
}

func lockHostileKeys(t *caseT) {
	l, other := t.locker(ample), t.locker(ample)
	keys := []string{"a", "a\x00", "a\r\n", "\xff", "\xfe", "{a}", "a/", "../a", "a%00", "A", "a*", long("x")[:1024], long("y")[512:]}
	for _, key := range keys {
		if !t.tryLock(l, key) {
			t.Fatalf("TryLock of %s returned false, and nobody holds it", show(key))
		}
	}
	for _, key := range keys {
		if t.tryLock(other, key) {
			t.Errorf("TryLock of %s, which another Locker holds, returned true", show(key))
		}
		t.unlock(l, key)
	}
}

func trylockNeverWaits(t *caseT) {
	a, b := t.locker(ample), t.locker(ample)
	soon := t.soon()
	t.lock(a, "k", callLimit)
	for range 3 {
		p := t.start(func(ctx context.Context, p *pending) {
			ok, err := b.TryLock(ctx, "k")
			if p.err = err; ok {
				p.err = errors.New("it was granted")
			}
		})
		if !t.await(p.done, soon) {
			t.Fatalf("TryLock of a key that is held has not returned after %v", soon)
		}
		if p.err != nil {
			t.Fatalf("TryLock of a key that is held: %v", p.err)
		}
	}
}

func trylockUnknown(t *caseT) {
	a, l := t.open(), t.locker(ample)
	t.acquire(a, t.claim("held", ample))
	t.outage(true)
	for _, key := range []string{"free", "held"} {
		ctx, cancel := t.limited(2 * time.Second)
		ok, err := l.TryLock(ctx, key)
		cancel()
		if ok || err == nil {
			t.Errorf("TryLock in an outage returned %v, %v; want an error", ok, err)
		}
	}
}

func lockPing(t *caseT) {
	l := t.locker(ample)
	ping := func() error {
		ctx, cancel := t.limited(2 * time.Second)
		defer cancel()
		return dlock.Ping(ctx, l)
	}
	if err := ping(); err != nil {
		t.Fatalf("Ping returned %q", err)
	}
	t.outage(true)
	if ping() == nil {
		t.Errorf("Ping in an outage returned nil")
	}
}
