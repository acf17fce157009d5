package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// topView is what dlock top shows: the last look, and what the user has chosen of it.
type topView struct {
	title    string
	look     look
	chosen   driver.Info
	target   driver.Info // to be broken; the question is asked while its key is not empty
	sort     int         // the column
	reverse  bool
	filter   string
	entering bool // the filter
	note     string
}

// action is what is to be done after a key.
type action int

const (
	nothing action = iota
	leave
	breakChosen
)

// take takes a look. One that failed leaves the last good one on the screen, with its time.
func (v *topView) take(l look) {
	if l.err != nil && len(l.infos) == 0 {
		v.look.err = l.err
		return
	}
	v.look = l
}

// press takes a key.
func (v *topView) press(key string) action {
	switch {
	case key == "ctrl-c":
		return leave
	case v.target.Key != "":
		return v.answer(key)
	case v.entering:
		v.enter(key)
		return nothing
	}
	v.note = ""
	switch key {
	case "q":
		return leave
	case "up", "k":
		v.move(-1)
	case "down", "j":
		v.move(1)
	case "s":
		v.sort = (v.sort + 1) % len(columns)
	case "r":
		v.reverse = !v.reverse
	case "/":
		v.entering = true
	case "esc":
		v.filter = ""
	case "b":
		if i := v.at(v.rows()); i >= 0 {
			v.target = v.rows()[i]
			v.chosen = v.target
		}
	}
	return nothing
}

// answer takes nothing but y for a yes.
func (v *topView) answer(key string) action {
	if key == "y" || key == "Y" {
		return breakChosen
	}
	v.target, v.note = driver.Info{}, "nothing was broken"
	return nothing
}

func (v *topView) enter(key string) {
	switch key {
	case "enter":
		v.entering = false
	case "esc":
		v.entering, v.filter = false, ""
	case "backspace":
		if r := []rune(v.filter); len(r) > 0 {
			v.filter = string(r[:len(r)-1])
		}
	default:
		if len([]rune(key)) == 1 && printable(key) == key {
			v.filter += key
		}
	}
}

// rows are the locks to show, in order.
func (v *topView) rows() []driver.Info {
	rows := slices.DeleteFunc(slices.Clone(v.look.infos), func(i driver.Info) bool {
		return !strings.Contains(i.Key, v.filter) && !strings.Contains(i.Owner, v.filter)
	})
	slices.SortStableFunc(rows, func(x, y driver.Info) int {
		order := cmp.Or(v.compare(x, y), strings.Compare(x.Key, y.Key))
		if v.reverse {
			order = -order
		}
		return order
	})
	return rows
}

// compare orders by the chosen column: texts by the alphabet, numbers the largest first.
func (v *topView) compare(x, y driver.Info) int {
	switch columns[v.sort] {
	case "OWNER":
		return strings.Compare(x.Owner, y.Owner)
	case "HELD FOR":
		return x.Since.Compare(y.Since)
	case "TTL LEFT":
		return cmp.Compare(y.TTL, x.TTL)
	case "FENCE":
		return cmp.Compare(y.Fence, x.Fence)
	case "WAITING":
		return cmp.Compare(len(y.Waiters), len(x.Waiters))
	}
	return strings.Compare(x.Key, y.Key)
}

// at is the index of the chosen line, whoever holds its lock meanwhile, or else of the first; -1: there is none.
func (v *topView) at(rows []driver.Info) int {
	if i := slices.IndexFunc(rows, func(r driver.Info) bool { return r.Key == v.chosen.Key }); i >= 0 {
		return i
	}
	return min(0, len(rows)-1)
}

func (v *topView) move(by int) {
	rows := v.rows()
	if i := v.at(rows); i >= 0 {
		v.chosen = rows[min(max(i+by, 0), len(rows)-1)]
	}
}

// draw returns the lines of the screen.
func (v *topView) draw(width, height int) []string {
	rows := v.rows()
	now := time.Now()
	waiting := 0
	for _, r := range rows {
		waiting += len(r.Waiters)
	}
	lines := []string{fit(fmt.Sprintf("%s  locks: %d  waiting: %d  %s", v.title, len(rows), waiting, v.look.at.Format(time.TimeOnly)), width)}
	table := layout(rows, now, width)
	lines = append(lines, "\x1b[1m"+table[0]+"\x1b[0m")
	room := max(height-3, 1)
	at := v.at(rows)
	first := max(0, min(at-room/2, len(rows)-room))
	for i := first; i < min(first+room, len(rows)); i++ {
		line := table[i+1]
		if i == at {
			line = "\x1b[7m" + line + "\x1b[0m"
		}
		lines = append(lines, line)
	}
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	return append(lines, fit(v.footer(), width))
}

// footer is the question, the trouble, the news or the keys.
func (v *topView) footer() string {
	order := columns[v.sort]
	if v.reverse {
		order += " reversed"
	}
	switch {
	case v.target.Key != "":
		return fmt.Sprintf("Break %s, held by %s with fence %d? y/n", printable(v.target.Key), owner(v.target), v.target.Fence)
	case v.entering:
		return "/" + v.filter
	case v.look.err != nil:
		return printable(v.look.err.Error())
	case v.note != "":
		return printable(v.note)
	}
	text := fmt.Sprintf("q leave  up/down choose  s sort: %s  r reverse  b break  / filter", strings.ToLower(order))
	if v.filter != "" {
		text += ": " + printable(v.filter) + " (Esc: all)"
	}
	return text
}

// layout is a table with headings in which every line has width columns. The key gets what the others leave.
func layout(rows []driver.Info, now time.Time, width int) []string {
	table := [][]string{columns}
	for _, r := range rows {
		table = append(table, row(r, now))
	}
	widths := make([]int, len(columns))
	for _, cells := range table {
		for i, c := range cells {
			widths[i] = max(widths[i], screenWidth(c))
		}
	}
	const gap = 2
	rest := width
	for i, w := range widths[1:] {
		widths[i+1] = min(w, width/3)
		rest -= widths[i+1] + gap
	}
	widths[0] = max(rest, 10)
	lines := make([]string, len(table))
	for n, cells := range table {
		var b strings.Builder
		for i, c := range cells {
			c = fit(c, widths[i])
			b.WriteString(c + strings.Repeat(" ", widths[i]-screenWidth(c)+gap))
		}
		lines[n] = fit(b.String(), width)
	}
	return lines
}

func screenWidth(text string) int {
	n := 0
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}
