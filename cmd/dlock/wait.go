package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// holder says who has the lock and for how long, as far as the backend can tell.
func (r *runner) holder(ctx context.Context) string {
	info, err := r.st.inspect(ctx, r.key)
	if err != nil || !held(info) {
		return "another owner"
	}
	text := owner(info)
	if !info.Since.IsZero() {
		text += " for " + age(info, time.Now())
	}
	if n := len(info.Waiters); n > 0 {
		text += fmt.Sprintf(", %d waiting", n)
	}
	return text
}

// showWait shows on a terminal who has the lock, on a line that is kept up to date, until the function that it returns is called. It does
// nothing where nobody looks.
func (r *runner) showWait() (stop func()) {
	fd := int(os.Stderr.Fd())
	if t := os.Getenv("TERM"); r.quiet || t == "" || t == "dumb" || !term.IsTerminal(fd) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for began := time.Now(); ctx.Err() == nil; {
			line := fmt.Sprintf("dlock: waiting for %s since %s: held by %s", printable(r.key), brief(time.Since(began).Round(time.Second)), r.holder(ctx))
			fmt.Fprint(os.Stderr, "\r\x1b[K"+cut(line, fd))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}()
	return func() {
		cancel()
		briefly(func() { <-stopped })
	}
}

// cut is line without what does not fit on the terminal: a line that wraps cannot be written over.
func cut(line string, fd int) string {
	width, _, err := term.GetSize(fd)
	if err != nil || width <= 0 {
		width = 80
	}
	return fit(line, width-1)
}

// fit is text in at most width columns. Letters that take two columns count as such.
func fit(text string, width int) string {
	var b strings.Builder
	for _, r := range text {
		if width -= columnsOf(r); width < 0 {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// columnsOf is how many columns r takes, by the blocks of the wide scripts and of emoji. A wrong guess costs a crooked table.
func columnsOf(r rune) int {
	if r >= 0x1100 && (r <= 0x115f || r >= 0x2e80 && r <= 0xa4cf || r >= 0xac00 && r <= 0xd7a3 || r >= 0xf900 && r <= 0xfaff ||
		r >= 0xfe30 && r <= 0xfe6f || r >= 0xff00 && r <= 0xff60 || r >= 0x1f300 && r <= 0x1faff || r >= 0x20000 && r <= 0x3fffd) {
		return 2
	}
	return 1
}
