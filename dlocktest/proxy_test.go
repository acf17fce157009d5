package dlocktest_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// echo starts a server that sends back what it gets.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// dial returns a connection through p that works.
func dial(t *testing.T, p *dlocktest.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := exchange(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// exchange sends text and waits for it to come back.
func exchange(conn net.Conn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return errors.New("something else came back")
	}
	return nil
}

func TestProxyCutEndsConnectionsUntilItIsOver(t *testing.T) {
	p := dlocktest.NewProxy(t, echo(t))
	conn := dial(t, p)
	p.Cut(true)
	if err := exchange(conn, "a"); err == nil {
		t.Error("a connection works after Cut")
	}
	if next, err := net.Dial("tcp", p.Addr()); err == nil {
		if err := exchange(next, "b"); err == nil {
			t.Error("a connection made after Cut works")
		}
		_ = next.Close()
	}
	p.Cut(false)
	dial(t, p)
}

func TestProxyHangKeepsConnectionsAndDeliversLate(t *testing.T) {
	p := dlocktest.NewProxy(t, echo(t))
	conn := dial(t, p)
	p.Hang(true)
	if _, err := io.WriteString(conn, "late"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while it hangs, Read = %d, %v; want nothing until the deadline", n, err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	p.Hang(false)
	got := make([]byte, 4)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "late" {
		t.Errorf("afterwards came %q, %v; want what was sent meanwhile", got, err)
	}
}

func TestProxyHangHoldsUpWhatTrickles(t *testing.T) {
	p := dlocktest.NewProxy(t, echo(t))
	conn := dial(t, p)
	p.Trickle(100)
	if _, err := conn.Write(make([]byte, 1000)); err != nil { // ten seconds' worth
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Hang(true)
	total := 0
	for arrives := true; arrives; { // what was in the network when it began to hang
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := conn.Read(make([]byte, 1000))
		arrives, total = err == nil, total+n
	}
	if total > 900 {
		t.Fatalf("%d bytes of 1,000 came through while it hung", total)
	}
	p.Heal()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("after Heal, Read = %v", err)
	}
}

// Requests that are under way together take as long as one.
func TestProxyDelaysEachRequestByItself(t *testing.T) {
	const delay, n = 200 * time.Millisecond, 40
	p := dlocktest.NewProxy(t, echo(t))
	conn := dial(t, p)
	p.Delay(delay)
	began := time.Now()
	var first time.Duration
	got := make([]byte, n)
	for i := range n {
		if _, err := conn.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // so that each is a piece of its own
	}
	sending := time.Since(began)
	for i := range n {
		if _, err := io.ReadFull(conn, got[i:i+1]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = time.Since(began)
		}
	}
	if first < delay {
		t.Errorf("the first reply came after %v, want %v or more", first, delay)
	}
	if all := time.Since(began) - sending; all > n/4*delay {
		t.Errorf("%d requests under way together took %v with a delay of %v each", n, all, delay)
	}
	for i, b := range got {
		if b != byte(i) {
			t.Fatalf("the replies came as %v", got)
		}
	}
	p.Delay(0)
	if err := exchange(conn, "soon"); err != nil {
		t.Error(err)
	}
}

func TestProxyTricklesAndLosesNothing(t *testing.T) {
	p := dlocktest.NewProxy(t, echo(t))
	conn := dial(t, p)
	p.Trickle(10_000)
	want := bytes.Repeat([]byte("0123456789"), 300)
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = conn.Write(want) })
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what trickled through came damaged, %v", err)
	}
	wg.Wait()
	// The last ration need not be waited for.
	if d := time.Since(began); d < 290*time.Millisecond {
		t.Errorf("3,000 bytes at 10,000 per second took %v, want 290ms or more", d)
	}
}

func TestProxyEndsWithTheTestWhateverIsUnderWay(t *testing.T) {
	began := time.Now()
	t.Run("test", func(t *testing.T) {
		p := dlocktest.NewProxy(t, echo(t))
		conns := []net.Conn{dial(t, p), dial(t, p), dial(t, p)}
		for i, fault := range []func(){func() { p.Trickle(1) }, func() { p.Delay(time.Hour) }, func() { p.Hang(true) }} {
			fault()
			if _, err := io.WriteString(conns[i], "for ever"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the end of the test took %v", d)
	}
}

// The example is true: through the Proxy a real server gets the cases about trouble.
func TestExampleHarnessRunsOnARealServer(t *testing.T) {
	t.Parallel()
	h := harness(redistest.Start(t).Addr)
	h.Skip = dlocktest.SkipAllBut("outage-", "dsn-", "loss-deleted")
	dlocktest.Run(t, h)
}
