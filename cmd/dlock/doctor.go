package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock/driver"
)

const doctorHelp = `Doctor connects to the store, measures the round trip, takes, renews and releases
a lock of its own (dlock-doctor- and a random number), and prints what the
driver has to say about the store, each finding with its severity and advice.

The exit code is 0 if there was no error among the findings (with --strict: no
warning either), 1 if there was, and 69 if the store could not be asked.`

// findings is what dlock doctor prints as JSON.
type findings struct {
	Driver   string        `json:"driver"`
	DSN      string        `json:"dsn"` // without its secrets
	Healthy  bool          `json:"healthy"`
	Findings []findingJSON `json:"findings"`
}

type findingJSON struct {
	ID     string `json:"id"`
	Level  string `json:"level"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitzero"`
}

func newDoctor(s *settings) *cobra.Command {
	var strict, asJSONWanted bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the store: reach, speed and configuration",
		Long:  doctorHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var found []driver.Finding
			err := s.with(cmd, func(ctx context.Context, st *store) (err error) {
				found, err = st.examine(ctx)
				return err
			})
			if err != nil {
				return err
			}
			r := report(s, found, strict)
			if asJSONWanted {
				err = writeJSON(cmd.OutOrStdout(), r, "  ")
			} else {
				err = r.print(cmd.OutOrStdout())
			}
			if err == nil && !r.Healthy {
				err = exit{code: exitNo}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "let warnings fail, too")
	cmd.Flags().BoolVar(&asJSONWanted, "json", false, "print a JSON object")
	return s.limited(cmd)
}

// examine asks the store, first by ourselves, then by its own doctor.
func (s *store) examine(ctx context.Context) ([]driver.Finding, error) {
	trip, err := s.roundTrip(ctx)
	if err != nil {
		return nil, err
	}
	cycle, err := s.cycle(ctx)
	if err != nil {
		return nil, err
	}
	own := []driver.Finding{trip, cycle}
	d, ok := s.Backend.(driver.Doctor)
	if !ok {
		return own, nil
	}
	more, err := d.Diagnose(ctx)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, s.failed("examine the store", err)
	}
	return append(own, more...), nil
}

// trips is how many round trips are measured.
const trips = 10

// roundTrip measures how long the store takes to answer the simplest question.
func (s *store) roundTrip(ctx context.Context) (driver.Finding, error) {
	f := driver.Finding{ID: "dlock-round-trip", Level: "info"}
	p, ok := s.Backend.(driver.Pinger)
	if !ok {
		f.Text = "the driver has no way to measure a round trip"
		return f, nil
	}
	if err := p.Ping(ctx); err != nil { // the first one connects
		return f, s.failed("reach the store", err)
	}
	var took []time.Duration
	for range trips {
		began := time.Now()
		if err := p.Ping(ctx); err != nil {
			return f, s.failed("reach the store", err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	f.Text = fmt.Sprintf("the store answers within %v (median; fastest %v, slowest %v of %d)",
		brief(took[trips/2]), brief(took[0]), brief(took[trips-1]), trips)
	if took[trips/2] > 100*time.Millisecond {
		f.Level, f.Advice = "warning", "use TTLs of 10s and more, or a store that is nearer"
	}
	return f, nil
}

// cycle takes, renews and releases a lock, which shows that this user may.
func (s *store) cycle(ctx context.Context) (driver.Finding, error) {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails
	c := driver.Claim{Token: hex.EncodeToString(token), Owner: "dlock doctor", TTL: 10 * time.Second}
	c.Key = s.prefix + "dlock-doctor-" + c.Token[:8]
	began := time.Now()
	_, err := s.Acquire(ctx, c)
	if err == nil {
		_, err = s.Renew(ctx, c)
	}
	// Also after a failure, whose outcome is unknown.
	if e := s.Release(ctx, c); err == nil {
		err = e
	}
	if err != nil {
		return driver.Finding{}, s.failed("lock", err)
	}
	return driver.Finding{
		ID: "dlock-cycle", Level: "info", Text: fmt.Sprintf("a lock was taken, renewed and released in %v", brief(time.Since(began))),
	}, nil
}

// report gathers what was found, the worst first.
func report(s *settings, found []driver.Finding, strict bool) findings {
	rank := []string{"error", "warning", "info"}
	slices.SortStableFunc(found, func(x, y driver.Finding) int { return slices.Index(rank, x.Level) - slices.Index(rank, y.Level) })
	r := findings{Driver: s.Driver, DSN: driver.Redact(s.DSN), Healthy: true}
	for _, f := range found {
		r.Findings = append(r.Findings, findingJSON(f))
		if f.Level == "error" || strict && f.Level == "warning" {
			r.Healthy = false
		}
	}
	return r
}

func (r findings) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "driver %s", r.Driver)
	if r.DSN != "" {
		fmt.Fprintf(&b, ", %s", printable(r.DSN))
	}
	b.WriteString("\n")
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-8s %s: %s\n", f.Level, f.ID, printable(f.Text))
		if f.Advice != "" {
			fmt.Fprintf(&b, "%-8s advice: %s\n", "", printable(f.Advice))
		}
	}
	_, err := io.WriteString(w, b.String())
	return written(err)
}
