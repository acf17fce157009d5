package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/mock/gomock"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/mocks"

	"example.com/lockd/server"
)

func TestReportIsWrittenUnderALock(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go (&server.Server{}).Serve(l)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-dsn", "lockd://" + l.Addr().String()}, &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "report written under fence ") || strings.HasSuffix(got, " 0\n") {
		t.Errorf("the output is %q, want a report with a fence", got)
	}
}

func TestUnknownDriverIsAnError(t *testing.T) {
	if err := run(t.Context(), []string{"-driver", "locked"}, io.Discard); !errors.Is(err, dlock.ErrUnknownDriver) {
		t.Errorf("run with a driver that nobody registered = %v, want ErrUnknownDriver", err)
	}
}

// With a mock: what does the service ask for?
func TestJobLocksAndUnlocks(t *testing.T) {
	locker := mocks.NewMockLocker(gomock.NewController(t))
	gomock.InOrder(
		locker.EXPECT().Lock(gomock.Any(), "report", dlock.WithTTL(30*time.Second)).Return(nil),
		locker.EXPECT().Unlock(gomock.Any(), "report").Return(nil),
	)
	if err := (&job{locker, report}).run(t.Context(), io.Discard); err != nil {
		t.Errorf("the job failed: %v", err)
	}
}

func TestJobDoesNothingWithoutTheLock(t *testing.T) {
	locker := mocks.NewMockLocker(gomock.NewController(t))
	locker.EXPECT().Lock(gomock.Any(), "report", gomock.Any()).Return(dlock.ErrNotAcquired)
	var out bytes.Buffer
	if err := (&job{locker, report}).run(t.Context(), &out); !errors.Is(err, dlock.ErrNotAcquired) || out.Len() > 0 {
		t.Errorf("the job wrote %q and returned %v, want nothing and ErrNotAcquired", out.String(), err)
	}
}

// With a real Locker: what does the service do when it loses the lock?
func TestJobThatLosesTheLockSaysSo(t *testing.T) {
	locker := dlocktest.NewLocker(t)
	err := (&job{locker, func(ctx context.Context, _ io.Writer) error {
		locker.Lose("report")
		return ctx.Err()
	}}).run(t.Context(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "may be incomplete") {
		t.Errorf("the job that lost its lock returned %v", err)
	}
}

// And when the store is slow?
func TestJobGivesUpOnASlowStore(t *testing.T) {
	locker := dlocktest.NewLocker(t)
	locker.Slow(time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	err := (&job{locker, report}).run(ctx, &out)
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dlock.ErrNotAcquired) || out.Len() > 0 {
		t.Errorf("the job wrote %q and returned %v, want nothing, and not that another has the lock", out.String(), err)
	}
}
