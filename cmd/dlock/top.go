package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dlock-go/dlock/driver"
)

const topHelp = `Top shows the locks that are held, with their holders, and keeps the view up to
date.

  up, down, j, k   choose a lock
  s, r             sort by the next column; reverse the order
  /                show only keys and owners that contain a text; Esc: all
  b                break the chosen lock, after a question
  q, Ctrl-C        leave

With --json it prints a line with a JSON object for every look instead.`

// topper is one dlock top. The screen is drawn by a few lines of our own: a library for it would add a dozen modules to every program that uses
// dlock, and two megabytes and a fifth of the start-up time to this one.
type topper struct {
	s        *settings
	prefix   string
	interval time.Duration
	count    int
	json     bool
}

func newTop(s *settings) *cobra.Command {
	t := topper{s: s}
	cmd := &cobra.Command{
		Use:               "top [PREFIX]",
		Short:             "Watch the locks that are held",
		Long:              topHelp,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			t.prefix = strings.Join(args, "")
			return t.run(cmd)
		},
	}
	f := cmd.Flags()
	f.DurationVarP(&t.interval, "interval", "i", time.Second, "pause between two looks")
	f.IntVarP(&t.count, "count", "c", 0, "leave after this many looks (default: never)")
	f.BoolVar(&t.json, "json", false, "print a line of JSON for every look")
	return s.limited(cmd)
}

func (t *topper) run(cmd *cobra.Command) error {
	if t.interval < 10*time.Millisecond {
		return exit{code: exitUsage, err: fmt.Errorf("--interval is %v; it must be 10ms or more", t.interval)}
	}
	if !t.json && (!term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd()))) {
		return exit{code: exitUsage, err: errors.New("top wants a terminal; use --json, or dlock ls")}
	}
	st, err := t.s.open(cmd)
	if err != nil {
		return err
	}
	defer st.Close() //nolint:errcheck // nothing was locked
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if t.json {
		return t.print(ctx, st, cmd.OutOrStdout())
	}
	return t.show(ctx, st)
}

// look is what one look at the store found.
type look struct {
	infos []driver.Info
	err   error
	at    time.Time
}

func (t *topper) look(ctx context.Context, st *store) look {
	ctx, cancel := context.WithTimeout(ctx, t.s.timeout)
	defer cancel()
	infos, err := st.all(ctx, t.prefix)
	return look{infos, err, time.Now()}
}

// print writes a line for every look.
func (t *topper) print(ctx context.Context, st *store, w io.Writer) error {
	for n := 1; ; n++ {
		l := t.look(ctx, st)
		if ctx.Err() != nil {
			return nil
		}
		if l.err != nil && len(l.infos) == 0 {
			return l.err
		}
		err := writeJSON(w, struct {
			Time  time.Time  `json:"time"`
			Locks []lockJSON `json:"locks"`
		}{l.at, allJSON(l.infos)}, "")
		if err = cmp.Or(err, l.err); err != nil || n == t.count || !sleep(ctx, t.interval) {
			return err
		}
	}
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// show takes the terminal over until somebody leaves. A store that cannot be asked at first is an error, and later a line on the screen.
func (t *topper) show(ctx context.Context, st *store) error {
	first := t.look(ctx, st)
	if first.err != nil && len(first.infos) == 0 {
		return first.err
	}
	fd := int(os.Stdin.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return exit{code: exitUnavailable, err: err}
	}
	defer term.Restore(fd, before) //nolint:errcheck // there is nobody to tell
	// The other screen, no cursor, no wrapping; and back.
	fmt.Print("\x1b[?1049h\x1b[?25l\x1b[?7l")
	defer fmt.Print("\x1b[?7h\x1b[?25h\x1b[?1049l")

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looks := make(chan look)
	go t.keepLooking(ctx, st, looks)
	v := &topView{title: "dlock top  " + st.name + " " + printable(driver.Redact(t.s.DSN)), look: first}
	t.attend(ctx, st, v, looks)
	return nil
}

// keepLooking looks again and again.
func (t *topper) keepLooking(ctx context.Context, st *store, looks chan<- look) {
	for n := 1; n != t.count && sleep(ctx, t.interval); n++ {
		select {
		case looks <- t.look(ctx, st):
		case <-ctx.Done():
		}
	}
	close(looks)
}

// attend draws whenever there is something new, and does what the keys say.
func (t *topper) attend(ctx context.Context, st *store, v *topView, looks <-chan look) {
	keys := make(chan string)
	go readKeys(os.Stdin, keys)
	resized := onResize()
	defer signal.Stop(resized)
	for {
		width, height, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		// A line is erased before it is written: behind its end, the last column would be.
		fmt.Print("\x1b[H\x1b[K" + strings.Join(v.draw(width, height), "\r\n\x1b[K"))
		select {
		case <-ctx.Done():
			return
		case <-resized:
		case l, ok := <-looks:
			if !ok {
				return
			}
			v.take(l)
		case key := <-keys:
			switch v.press(key) {
			case leave:
				return
			case breakChosen:
				v.note, v.target = t.breakNote(ctx, st, v.target), driver.Info{}
				v.take(t.look(ctx, st))
			}
		}
	}
}

// breakNote breaks a lock and says how it went.
func (t *topper) breakNote(ctx context.Context, st *store, info driver.Info) string {
	ctx, cancel := context.WithTimeout(ctx, t.s.timeout)
	defer cancel()
	if err := st.breakLock(ctx, info); err != nil {
		return err.Error()
	}
	return "broken: " + printable(info.Key)
}

// readKeys sends the keys that are pressed, by name or as the letter that they are.
func readKeys(r io.Reader, keys chan<- string) {
	buf := make([]byte, 256)
	for {
		n, err := r.Read(buf)
		if err != nil {
			keys <- "ctrl-c" // the terminal is gone
			return
		}
		for _, key := range splitKeys(string(buf[:n])) {
			keys <- key
		}
	}
}

// splitKeys takes apart what a terminal sent at once.
func splitKeys(sent string) []string {
	names := []struct{ sent, name string }{
		{"\x1b[A", "up"}, {"\x1b[B", "down"}, {"\x1bOA", "up"}, {"\x1bOB", "down"}, {"\x1b", "esc"},
		{"\x03", "ctrl-c"}, {"\r", "enter"}, {"\n", "enter"}, {"\x7f", "backspace"}, {"\b", "backspace"},
	}
	var keys []string
next:
	for sent != "" {
		for _, n := range names {
			if rest, ok := strings.CutPrefix(sent, n.sent); ok {
				keys, sent = append(keys, n.name), rest
				continue next
			}
		}
		letter := string([]rune(sent)[0])
		keys, sent = append(keys, letter), strings.TrimPrefix(sent, letter)
	}
	return keys
}
