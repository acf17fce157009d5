package memory_test

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

func BenchmarkAcquireRelease(b *testing.B) {
	backend := memory.New()
	c := driver.Claim{Key: "bench", Token: "0123456789abcdef0123456789abcdef", Owner: "bench", TTL: time.Minute}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := backend.Acquire(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if err := backend.Release(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
