// Package faultproxy is a TCP proxy for tests that delays, holds, drops and cuts what passes through it.
package faultproxy

import (
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
	wg      sync.WaitGroup
}

// Rules say what happens to the bytes that pass. The zero value lets everything through.
type Rules struct {
	Refuse     bool          // new connections are closed at once
	HoldUp     bool          // bytes to the server wait until this is lifted
	HoldDown   bool          // bytes to the client wait until this is lifted
	DropUp     bool          // bytes to the server vanish
	DropDown   bool          // bytes to the client vanish
	DelayUp    time.Duration // bytes to the server come later
	DelayDown  time.Duration // bytes to the client come later
	CutAtReply int           // n > 0: the n-th piece to the client from now on is not delivered, and its connection is closed
}

// New starts a proxy in front of target.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, conns: map[*pair]struct{}{}}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(p.Close)
	return p
}

// Set replaces the rules.
func (p *Proxy) Set(r Rules) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = r
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

// CutAndHeal closes every connection that is open, and lets everything through on the next ones. Between the two nobody can connect.
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
	p.closed = true
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
	defer p.wg.Done()
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
		p.wg.Add(2)
		go p.pump(c, client, server, true)
		go p.pump(c, server, client, false)
	}
}

// pump carries bytes one way.
func (p *Proxy) pump(c *pair, from, to net.Conn, up bool) {
	defer p.wg.Done()
	defer func() {
		c.close()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		switch p.judge(up) {
		case deliver:
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		case cut:
			return
		case drop:
		}
	}
}

type verdict int

const (
	deliver verdict = iota
	drop
	cut
)

// judge waits as long as the rules say, and tells what to do with a piece.
func (p *Proxy) judge(up bool) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	delay := p.rules.DelayDown
	if up {
		delay = p.rules.DelayUp
	}
	if delay > 0 {
		p.mu.Unlock()
		time.Sleep(delay)
		p.mu.Lock()
	}
	for !p.closed && (up && p.rules.HoldUp || !up && p.rules.HoldDown) {
		p.changed.Wait()
	}
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
	return deliver
}
