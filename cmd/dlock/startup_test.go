//go:build unix

package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// atMost is how many times as long as flock a run of true may take, on the file driver.
const atMost = 8

// BenchmarkStartUp runs true under the built command and under flock(1), in turns so that a busy moment meets both, and compares the medians.
func BenchmarkStartUp(b *testing.B) {
	flock, err := exec.LookPath("flock")
	if err != nil {
		b.Skip("there is no flock")
	}
	dir := b.TempDir()
	binary := filepath.Join(dir, "dlock")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	env := []string{"PATH=/usr/bin:/bin", "DLOCK_DSN=file://" + dir + "/locks"}
	var ours, theirs []time.Duration
	for b.Loop() {
		ours = append(ours, took(b, env, binary, "run", "k", "--", "true"))
		theirs = append(theirs, took(b, env, flock, filepath.Join(dir, "file"), "true"))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	n := len(ours) / 2
	ratio := float64(ours[n]) / float64(theirs[n])
	b.ReportMetric(float64(ours[n].Microseconds()), "dlock-µs")
	b.ReportMetric(float64(theirs[n].Microseconds()), "flock-µs")
	b.ReportMetric(ratio, "×flock")
	if n > 10 && ratio > atMost {
		b.Errorf("dlock run takes %.1f × as long as flock, want at most %d", ratio, atMost)
	}
}

func took(b *testing.B, env []string, name string, args ...string) time.Duration {
	b.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = env
	began := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
