package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// sample is a view of three locks.
func sample() *topView {
	at := time.Now()
	return &topView{title: "dlock top", look: look{at: at, infos: []driver.Info{
		{Key: "a", Owner: "zoe", Fence: 30, TTL: 5 * time.Second, Since: at.Add(-time.Minute), Waiters: []string{"w"}},
		{Key: "b", Owner: "yan", Fence: 10, TTL: 9 * time.Second, Since: at.Add(-time.Hour)},
		{Key: "c", Owner: "xia", Fence: 20, TTL: 7 * time.Second, Since: at.Add(-time.Second), Waiters: []string{"v", "w"}},
	}}}
}

func shown(v *topView) (keys string) {
	for _, r := range v.rows() {
		keys += r.Key
	}
	return keys
}

func (v *topView) pressAll(keys ...string) (last action) {
	for _, k := range keys {
		last = v.press(k)
	}
	return last
}

func TestTopSortsByEveryColumn(t *testing.T) {
	v := sample()
	for i, want := range []string{"abc", "cba", "bac", "bca", "acb", "cab"} {
		if got := shown(v); got != want {
			t.Errorf("by %s: %s, want %s", columns[i], got, want)
		}
		v.press("s")
	}
	if v.press("r"); shown(v) != "cba" {
		t.Errorf("by key, reversed: %s, want cba", shown(v))
	}
}

func TestTopFiltersByKeyAndOwner(t *testing.T) {
	v := sample()
	v.pressAll("/", "x", "q", "backspace", "enter") // q is a letter here
	if got := shown(v); got != "c" {
		t.Errorf("filtered by x: %q, want c, which xia holds", got)
	}
	if v.press("esc"); shown(v) != "abc" {
		t.Errorf("after Esc: %q, want all", shown(v))
	}
}

func TestTopBreaksTheLockThatWasAskedAboutAndOnlyAfterYes(t *testing.T) {
	v := sample()
	for _, keys := range [][]string{{"b", "n"}, {"b", "enter"}, {"b", "q"}, {"y"}} {
		if got := v.pressAll(keys...); got != nothing {
			t.Errorf("%q: %v, want nothing to happen", keys, got)
		}
	}
	v.pressAll("down", "b")
	if got, want := v.footer(), "Break b, held by yan with fence 10? y/n"; got != want {
		t.Errorf("the question is %q, want %q", got, want)
	}
	v.look.infos[1].Fence, v.look.infos[1].Owner = 11, "somebody new"
	if got := v.press("y"); got != breakChosen || v.target.Key != "b" || v.target.Fence != 10 {
		t.Errorf("yes: %v of %+v, want the holder that was shown", got, v.target)
	}
}

func TestTopKeepsTheChoiceWhileTheListChanges(t *testing.T) {
	v := sample()
	v.pressAll("down", "down", "down", "up")
	v.look.infos = append([]driver.Info{{Key: "0"}}, v.look.infos...)
	if got := v.rows()[v.at(v.rows())].Key; got != "b" {
		t.Errorf("%q is chosen, want b", got)
	}
	v.look.infos = nil
	if got := v.pressAll("down", "b", "y"); got != nothing {
		t.Errorf("break in an empty list: %v, want nothing", got)
	}
}

func TestTopFitsItsScreen(t *testing.T) {
	v := sample()
	for n := range 100 {
		v.look.infos = append(v.look.infos, driver.Info{Key: strings.Repeat("long/", 50) + fmt.Sprint(n), Owner: strings.Repeat("鎖", 90)})
	}
	v.chosen.Key = v.look.infos[60].Key
	for _, size := range [][2]int{{80, 24}, {20, 5}, {200, 60}} {
		lines := v.draw(size[0], size[1])
		if len(lines) != size[1] {
			t.Errorf("%d lines on a screen of %d", len(lines), size[1])
		}
		for _, l := range lines {
			l = strings.NewReplacer("\x1b[1m", "", "\x1b[7m", "", "\x1b[0m", "").Replace(l)
			if screenWidth(l) > size[0] {
				t.Errorf("%d columns on a screen of %d: %q", screenWidth(l), size[0], l)
			}
		}
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "\x1b[7m") }) {
			t.Errorf("the chosen line is not on a screen of %v", size)
		}
	}
}

func TestKeysAreToldApart(t *testing.T) {
	got := splitKeys("j\x1b[A\x1bOB\r\x7f\x03é\x1b")
	want := []string{"j", "up", "down", "enter", "backspace", "ctrl-c", "é", "esc"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDurationsAreBrief(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 123456 * time.Nanosecond: "123µs", 1234567 * time.Nanosecond: "1ms", 1540 * time.Millisecond: "1.5s", 83 * time.Second: "1m23s",
		26*time.Hour + time.Minute: "1d2h", 2*time.Hour + 5*time.Minute + time.Second: "2h5m",
	} {
		if got := brief(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
