package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

// printable is text as it can be put on a terminal: whatever could move the cursor or ring the bell
// is quoted.
func printable(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// harmless is text without what could upset a terminal. What is quoted is that alone, and not line
// ends and tabs.
func harmless(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && text[i] != "\uFFFD"[0]:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// held reports whether somebody has the lock. A foreign holder has no fence, and one whose time is
// just running out no TTL.
func held(i driver.Info) bool { return i.Fence != 0 || i.TTL > 0 || i.Owner != "" }

// owner names the holder.
func owner(i driver.Info) string {
	switch {
	case !held(i):
		return "-"
	case i.Owner == "":
		return "(unknown)"
	}
	return printable(i.Owner)
}

// age is how long the holder has had the lock.
func age(i driver.Info, now time.Time) string {
	if i.Since.IsZero() {
		return "-"
	}
	return brief(max(now.Sub(i.Since), 0))
}

// brief is d in the precision that people want.
func brief(d time.Duration) string {
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}

var columns = []string{"KEY", "OWNER", "HELD FOR", "TTL LEFT", "FENCE", "WAITING"}

// row is one line of a table of locks.
func row(i driver.Info, now time.Time) []string {
	return []string{
		printable(i.Key), owner(i), age(i, now), brief(i.TTL), strconv.FormatUint(i.Fence, 10), strconv.Itoa(len(i.Waiters)),
	}
}

// writeTable prints locks for people, under a line of headings if there are any.
func writeTable(w io.Writer, infos []driver.Info, now time.Time) error {
	if len(infos) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, strings.Join(columns, "\t")) // the writer keeps its error for Flush
	for _, i := range infos {
		_, _ = fmt.Fprintln(t, strings.Join(row(i, now), "\t"))
	}
	return written(t.Flush())
}

// lockJSON is a lock for scripts.
type lockJSON struct {
	Key     string    `json:"key"`
	Exact   []byte    `json:"key_base64"` // JSON is text, and a key need not be
	Held    bool      `json:"held"`
	Owner   string    `json:"owner,omitzero"`
	Fence   uint64    `json:"fence,omitzero"`
	TTL     float64   `json:"ttl_seconds,omitzero"`
	Since   time.Time `json:"since,omitzero"`
	Waiters []string  `json:"waiters"`
}

func asJSON(i driver.Info) lockJSON {
	waiters := slices.Clone(i.Waiters)
	if waiters == nil {
		waiters = []string{} // a script counts them without a check for null
	}
	return lockJSON{i.Key, []byte(i.Key), held(i), i.Owner, i.Fence, i.TTL.Seconds(), i.Since, waiters}
}

func allJSON(infos []driver.Info) []lockJSON {
	locks := make([]lockJSON, len(infos))
	for i, info := range infos {
		locks[i] = asJSON(info)
	}
	return locks
}

// writeJSON prints v as one line or, for people who look too, indented.
func writeJSON(w io.Writer, v any, indent string) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return written(err)
	}
	_, err := io.WriteString(w, escapeControls(text.String()))
	return written(err)
}

// escapeControls escapes what the encoder leaves as it is and a terminal need not: DEL, the
// controls behind ASCII, and letters that are not seen or turn others around. Those are in strings
// only.
func escapeControls(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || r == '\n' {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// written is the exit for an error of stdout.
func written(err error) error {
	if err == nil {
		return nil
	}
	return exit{code: exitNo, err: err}
}
