package dlock_test

import (
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func BenchmarkLockUnlock(b *testing.B) {
	l := open(b, memory.New(), dlock.Config{})
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Lock(ctx, "k"); err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBackendOnly(b *testing.B) {
	m := memory.New()
	c := driver.Claim{Key: "k", Token: "0123456789abcdef0123456789abcdef", Owner: "o", TTL: 10e9}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Wait(ctx, c); err != nil {
			b.Fatal(err)
		}
		if err := m.Release(ctx, c); err != nil {
			b.Fatal(err)
		}
	}
}
