//go:build linux || darwin

package file_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	filedriver "github.com/dlock-go/dlock/drivers/file"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// sparse makes a file of absurd size that takes no room on the disk.
func sparse(t *testing.T, file string) (size int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for size = 8 << 40; f.Truncate(size) != nil; size /= 2 {
		if size < 1<<32 {
			t.Skip("the file system has no sparse files")
		}
	}
	return size
}

// The process that uses the directory is one of its own: running out of memory would end it.
func TestAFileOfAbsurdSizeTakesNoMemoryAndIsNamed(t *testing.T) {
	for _, name := range []string{filedriver.FileName("bad"), ".dlock"} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			b := open(t, dir)
			acquire(t, b, claim("bad", "holder", ample))
			size := sparse(t, filepath.Join(dir, name))
			startChild(t, "use", dir).says(t, "done")
			if name == ".dlock" { // no lock depends on it, so it is begun anew
				if got := fileSize(t, filepath.Join(dir, name)); got > filedriver.MaxSize {
					t.Errorf("the directory's file has %d bytes after it was used, want it begun anew", got)
				}
				return
			}
			words := []string{path(dir, "bad"), fmt.Sprint(size), fmt.Sprint(filedriver.MaxSize)}
			_, err := b.Acquire(t.Context(), claim("bad", "thief", ample))
			refused(t, "Acquire", err, words...)
			_, err = b.(driver.Inspector).Inspect(t.Context(), "bad")
			refused(t, "Inspect", err, words...)
		})
	}
}

func fileSize(t *testing.T, file string) int64 {
	t.Helper()
	s, err := os.Lstat(file)
	if err != nil {
		t.Fatal(err)
	}
	return s.Size()
}

func TestAQueueThatNoFileCanHoldIsRefusedAndHarmsNobody(t *testing.T) {
	dir := newDir(t)
	b, holder := open(t, dir), claim("k", "holder", ample)
	acquire(t, b, holder)
	var err error
	n := 0
	for owner := strings.Repeat("x", 1<<18); err == nil && n < 100; n++ {
		err = filedriver.Enqueue(b, claim("k", owner, ample))
	}
	if err == nil || !strings.Contains(err.Error(), "too many wait") || !strings.Contains(err.Error(), path(dir, "k")) {
		t.Fatalf("the waiter number %d got %v, want an error that says that too many wait", n, err)
	}
	if got := len(inspect(t, b, "k").Waiters); got != n-1 {
		t.Errorf("%d wait, want the %d who came before", got, n-1)
	}
	release(t, b, holder)
}

// Numbers that no process wrote, with a checksum that is right.
func TestForgedNumbersAreNotBelieved(t *testing.T) {
	for what, change := range map[string]func(f *filedriver.Forged){
		"a fence after which there is none": func(f *filedriver.Forged) { f.Fence = math.MaxUint64 },
		"an end before the beginning":       func(f *filedriver.Forged) { f.Start, f.Expires = f.Expires, f.Start },
		"a beginning before the machine's":  func(f *filedriver.Forged) { f.Start, f.Expires = math.MinInt64, math.MaxInt64 },
		"a year that no calendar has":       func(f *filedriver.Forged) { f.Since = math.MaxInt64 },
		"a year before there were clocks":   func(f *filedriver.Forged) { f.Since = math.MinInt64 },
	} {
		t.Run(what, func(t *testing.T) {
			dir := newDir(t)
			b, c := open(t, dir), claim("k", "holder", ample)
			acquire(t, b, c)
			if err := filedriver.Forge(path(dir, "k"), change); err != nil {
				t.Fatal(err)
			}
			_, err := b.Renew(t.Context(), c)
			refused(t, "Renew", err, path(dir, "k"), "damaged")
			sweep(t, b)
			g := acquire(t, b, claim("other", "a", ample))
			if limit := uint64(time.Now().Add(time.Hour).UnixMicro()); g.Fence > limit {
				t.Errorf("the fence of another key is %d, want one of the clock, below %d", g.Fence, limit)
			}
		})
	}
}

func TestForgedWaitersKeepNobodyFromTheKey(t *testing.T) {
	now := filedriver.Monotonic()
	for what, w := range map[string]filedriver.ForgedWaiter{
		"who looked long before the machine was started": {Box: forged, TTL: ample, Seen: math.MinInt64},
		"who looks in the future":                        {Box: forged, TTL: ample, Seen: math.MaxInt64},
		"without a mailbox":                              {TTL: ample, Seen: now},
		"whose mailbox is the directory":                 {Box: ".", TTL: ample, Seen: now},
		"whose mailbox is the file of the key":           {Box: filedriver.FileName("k"), TTL: ample, Seen: now},
		"whose TTL is negative":                          {Box: forged, TTL: math.MinInt64, Seen: now},
	} {
		t.Run(what, func(t *testing.T) {
			dir := newDir(t)
			b, c := open(t, dir), claim("k", "holder", ample)
			acquire(t, b, c)
			if err := filedriver.Forge(path(dir, "k"), func(f *filedriver.Forged) { f.Queue = []filedriver.ForgedWaiter{w} }); err != nil {
				t.Fatal(err)
			}
			if got := inspect(t, b, "k").Waiters; len(got) > 0 && (w.Seen < 0 || w.Seen > filedriver.Monotonic()) {
				t.Errorf("%q wait, want nobody", got)
			}
			got := enqueue(t, b, claim("k", "waiter", ample))
			release(t, b, c)
			within(t, 10*time.Second, "the waiter has the key", got)
		})
	}
}

func TestAForgedDirectoryFileDoesNotEndTheSweeps(t *testing.T) {
	const boot = "this boot"
	defer filedriver.Restart(boot)()
	for what, swept := range map[string]int64{"in the future": math.MaxInt64, "long before the machine was started": math.MinInt64} {
		t.Run(what, func(t *testing.T) {
			dir := newDir(t)
			b := open(t, dir)
			release(t, b, acquired(t, b, claim("unused", "a", ample)))
			if err := filedriver.ForgeAbout(filepath.Join(dir, ".dlock"), boot, 0, swept); err != nil {
				t.Fatal(err)
			}
			acquire(t, open(t, dir), claim("k", "a", ample))
			faulttest.Eventually(t, 10*time.Second, "the sweep removes a file that nobody needs", func() bool { return len(files(t, dir)) == 1 })
		})
	}
}
