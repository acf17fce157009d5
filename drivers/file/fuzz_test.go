//go:build linux || darwin

package file_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
)

// Whatever somebody puts into the files of a directory, calls return. One that could read a file
// leaves one that can be read. If sealed, the checksums are right.
func FuzzFilesThatAnybodyWrote(f *testing.F) {
	filedriver.WithoutSync()
	dir := f.TempDir()
	b := open(f, filepath.Join(dir, "locks"))
	c := driver.Claim{Key: "k", Token: "0123456789abcdef0123456789abcdef", Owner: "holder", TTL: time.Minute}
	next := driver.Claim{Key: "k", Token: "fedcba9876543210fedcba9876543210", Owner: "next", TTL: time.Minute}
	lock, about := path(filepath.Join(dir, "locks"), "k"), filepath.Join(dir, "locks", ".dlock")
	if _, err := b.Acquire(f.Context(), c); err != nil {
		f.Fatal(err)
	}
	if err := filedriver.Enqueue(b, next); err != nil {
		f.Fatal(err)
	}
	before := func(file string) []byte {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	good, own := before(lock), before(about)
	f.Add(good, own, false)
	f.Add(filedriver.Body(good), filedriver.Body(own), true)
	f.Add([]byte{}, []byte{}, true)
	f.Fuzz(func(t *testing.T, data, own []byte, sealed bool) {
		if sealed {
			data, own = filedriver.Sealed(data), filedriver.Sealed(own)
		}
		for file, data := range map[string][]byte{lock: data, about: own} {
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		look := func() error {
			_, err := b.(driver.Inspector).Inspect(t.Context(), "k")
			return err
		}
		readable := look() == nil
		for what, call := range map[string]func() error{
			"Acquire": func() error { _, err := b.Acquire(t.Context(), c); return err },
			"Renew":   func() error { _, err := b.Renew(t.Context(), c); return err },
			"Release": func() error { return b.Release(t.Context(), c) },
			"Enqueue": func() error { return filedriver.Enqueue(b, next) },
			"Break":   func() error { return b.(driver.Breaker).Break(t.Context(), "k", 1) },
			"Sweep":   func() error { return filedriver.Sweep(b) },
		} {
			err := call()
			if after := look(); readable && after != nil {
				t.Fatalf("%s = %v, and then the file cannot be read: %v", what, err, after)
			}
		}
		for _, err := range b.(driver.Inspector).List(t.Context(), "") {
			_ = err
		}
	})
}
