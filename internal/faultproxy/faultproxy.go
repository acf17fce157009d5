// Package faultproxy is a TCP proxy for tests that delays, slows down, holds, drops and cuts what
// passes through it.
//
// It is the machinery of dlocktest.Proxy, which has less to choose from and is for everybody.
package faultproxy

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between a client and a server on loopback.
type Proxy struct {
	Addr string // where the client connects to

	target   string
	listener net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	conns   map[*pair]struct{}
	rules   Rules
	dropped int
	closed  bool
	quit    chan struct{} // closed with it
	wg      sync.WaitGroup
}

// Rules say what happens to the bytes that pass. The zero value lets everything through.
type Rules struct {
	Refuse     bool          // new connections are closed at once
	HoldUp     bool          // bytes to the server wait until this is lifted
	HoldDown   bool          // bytes to the client wait until this is lifted
	DropUp     bool          // bytes to the server vanish
	DropDown   bool          // bytes to the client vanish
	DelayUp    time.Duration // bytes to the server come that much later than they were sent
	DelayDown  time.Duration // bytes to the client come that much later than they were sent
	Rate       int           // n > 0: each connection carries n bytes per second each way
	CutAtReply int           // n > 0: the n-th piece to the client from now on is not delivered, and its connection is closed
}

// New starts a proxy in front of target.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		Addr: l.Addr().String(), target: target, listener: l,
		conns: map[*pair]struct{}{}, quit: make(chan struct{}),
	}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Set replaces the rules.
func (p *Proxy) Set(r Rules) { p.Change(func(now *Rules) { *now = r }) }

// Change lets f change the rules in one step.
func (p *Proxy) Change(f func(r *Rules)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.rules)
	p.changed.Broadcast()
}

// Heal lets everything through.
func (p *Proxy) Heal() { p.Set(Rules{}) }

// BlackHole makes everything vanish in both directions, on old connections and new ones.
func (p *Proxy) BlackHole() { p.Set(Rules{DropUp: true, DropDown: true}) }

// CutAll closes every connection that is open.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// CutAndHeal closes every connection that is open, and lets everything through on the next ones.
// Between the two nobody can connect.
func (p *Proxy) CutAndHeal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
	p.rules = Rules{}
	p.changed.Broadcast()
}

// Dropped returns how many pieces have vanished so far.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Open returns how many connections are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.quit)
	}
	for c := range p.conns {
		c.close()
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	_ = p.listener.Close()
	p.wg.Wait()
}

type pair struct{ client, server net.Conn }

func (c *pair) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.rules.Refuse || p.closed
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &pair{client, server}
		p.mu.Lock()
		if p.rules.Refuse || p.closed { // the rules have changed meanwhile
			c.close()
			p.mu.Unlock()
			continue
		}
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.carry(c, client, server, true)
		p.carry(c, server, client, false)
	}
}

// piece is what was read at once.
type piece struct {
	data []byte
	due  time.Time // not delivered before
}

// backlog is how many pieces may be on their way in one direction of a connection. Beyond it the
// sender is held up.
const backlog = 1024

// carry carries bytes one way. One goroutine reads and one delivers, so that many pieces are
// delayed at the same time, as in a long cable.
func (p *Proxy) carry(c *pair, from, to net.Conn, up bool) {
	pieces := make(chan piece, backlog)
	p.wg.Go(func() { p.read(from, pieces, up) })
	p.wg.Go(func() {
		for x := range pieces {
			if !p.deliver(x, to, up) {
				break
			}
		}
		c.close()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		for range pieces { // until read has noticed
		}
	})
}

func (p *Proxy) read(from net.Conn, pieces chan<- piece, up bool) {
	defer close(pieces)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			pieces <- piece{bytes.Clone(buf[:n]), time.Now().Add(p.delay(up))}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) delay(up bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if up {
		return p.rules.DelayUp
	}
	return p.rules.DelayDown
}

// deliver does with x what the rules say. It reports whether the connection lives on.
func (p *Proxy) deliver(x piece, to net.Conn, up bool) bool {
	p.sleep(time.Until(x.due))
	switch p.judge(up) {
	case pass:
		return p.write(to, x.data, up)
	case drop:
		return true
	default:
		return false
	}
}

// write writes data as fast as the rules allow.
func (p *Proxy) write(to net.Conn, data []byte, up bool) bool {
	for len(data) > 0 {
		n, pause := p.ration(len(data), up)
		if _, err := to.Write(data[:n]); err != nil {
			return false
		}
		data = data[n:]
		p.sleep(pause)
	}
	return true
}

// ration returns how many of n bytes may pass, and how long nothing may pass after them.
func (p *Proxy) ration(n int, up bool) (int, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaitReleaseLocked(up)
	if rate := p.rules.Rate; rate > 0 && !p.closed {
		n = min(n, max(1, rate/100)) // a hundred times per second, if that is not less than a byte
		return n, time.Duration(n) * time.Second / time.Duration(rate)
	}
	return n, 0
}

// sleep waits for d, or until the proxy is closed.
func (p *Proxy) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.quit:
	}
}

// awaitReleaseLocked waits while the rules hold back what goes this way.
func (p *Proxy) awaitReleaseLocked(up bool) {
	for !p.closed && (up && p.rules.HoldUp || !up && p.rules.HoldDown) {
		p.changed.Wait()
	}
}

type verdict int

const (
	pass verdict = iota
	drop
	cut
)

// judge waits while the rules hold a piece back, and tells what to do with it.
func (p *Proxy) judge(up bool) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaitReleaseLocked(up)
	switch {
	case p.closed:
		return cut
	case up && p.rules.DropUp, !up && p.rules.DropDown:
		p.dropped++
		return drop
	}
	if !up && p.rules.CutAtReply > 0 {
		if p.rules.CutAtReply--; p.rules.CutAtReply == 0 {
			return cut
		}
	}
	return pass
}
