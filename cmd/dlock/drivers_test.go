//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/drivers/memory"
)

type opener func(*memory.Backend) driver.Backend

func (o opener) Open(string) (driver.Backend, error) { return o(memory.New()), nil }

// testDrivers are memory with a difference.
var testDrivers = map[string]opener{
	"busy": func(b *memory.Backend) driver.Backend { // somebody else has "taken" and keeps it
		if _, err := b.Acquire(context.Background(), driver.Claim{Key: "taken", Token: "other", TTL: time.Hour}); err != nil {
			panic(err)
		}
		return b
	},
	"down":   func(b *memory.Backend) driver.Backend { return down{b} },
	"lossy":  func(b *memory.Backend) driver.Backend { return lossy{b} },
	"audit":  func(b *memory.Backend) driver.Backend { return audit{b} },
	"plain":  func(b *memory.Backend) driver.Backend { return plain{b} },
	"ill":    func(b *memory.Backend) driver.Backend { return finding{b, "error"} },
	"unwell": func(b *memory.Backend) driver.Backend { return finding{b, "warning"} },
	"never":  func(b *memory.Backend) driver.Backend { return never{b} },
	"mute":   func(b *memory.Backend) driver.Backend { return mute{b} },
}

// down refuses everything.
type down struct{ driver.Backend }

func (down) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, driver.Permanent(errors.New("no permission"))
}

// lossy loses every lock at its first renewal, or at the first after a file has appeared.
type lossy struct{ driver.Backend }

const loseWhen = "LOSE_WHEN"

func (l lossy) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if file := os.Getenv(loseWhen); file != "" {
		if _, err := os.Stat(file); err != nil {
			return l.Backend.Renew(ctx, c)
		}
	}
	return driver.Grant{}, driver.ErrNotOwner
}

// audit says what it is asked for.
type audit struct{ driver.Backend }

func (a audit) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	fmt.Println("acquire", c.Key, c.TTL)
	return a.Backend.Acquire(ctx, c)
}

func (a audit) Release(ctx context.Context, c driver.Claim) error {
	fmt.Println("release", c.Key)
	return a.Backend.Release(ctx, c)
}

// plain has no fences.
type plain struct{ driver.Backend }

func (p plain) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := p.Backend.Acquire(ctx, c)
	g.Fence = 0
	return g, err
}

// never grants anything, and says when somebody waits for it.
type never struct{ driver.Backend }

func (never) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, driver.ErrHeld
}

func (never) Wait(ctx context.Context, _ driver.Claim, _ func()) (driver.Grant, error) {
	fmt.Println("waiting")
	<-ctx.Done()
	return driver.Grant{}, errors.Join(ctx.Err(), driver.ErrHeld)
}

// mute answers nothing.
type mute struct{ driver.Backend }

func (mute) Acquire(ctx context.Context, _ driver.Claim) (driver.Grant, error) {
	<-ctx.Done()
	return driver.Grant{}, ctx.Err()
}

// finding has a doctor who finds something.
type finding struct {
	*memory.Backend
	level string
}

func (f finding) Diagnose(context.Context) ([]driver.Finding, error) {
	return []driver.Finding{{ID: "test", Level: f.level, Text: "it hurts", Advice: "rest"}}, nil
}
