package dlocktest

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

// Proxy is a network that can fail: a TCP proxy between the clients of a store and its server. Every
// store that is reached by TCP can be tested for outages so:
//
//	proxy := dlocktest.NewProxy(t, serverAddr)
//	return dlocktest.Store{
//		Open:   func(t testing.TB) driver.Backend { return mystore.New(proxy.Addr()) },
//		Outage: proxy.Cut,
//		Hang:   proxy.Hang,
//	}
//
// Faults can be combined, and apply to connections that are open and to those to come. All methods
// may be called from any goroutine. The network is real, and so is its time: in a testing/synctest
// bubble a Proxy is of no use.
type Proxy struct{ p *faultproxy.Proxy }

// NewProxy starts a proxy in front of the server at addr, host:port. It ends, with all its
// connections, when the test is over.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	return &Proxy{faultproxy.New(t, addr)}
}

// Addr returns where clients connect to: host:port on the loopback interface.
func (p *Proxy) Addr() string { return p.p.Addr }

// Cut closes every connection, and every one that is made from then on, until Cut(false): calls
// fail at once. Requests on their way are lost, and so are replies to requests that were applied.
func (p *Proxy) Cut(down bool) {
	p.p.Change(func(r *faultproxy.Rules) { r.Refuse = down })
	if down {
		p.p.CutAll()
	}
}

// Hang lets nothing through in either direction, on connections that stay open, until Hang(false):
// calls wait for a reply that does not come. What was sent meanwhile arrives then, as it would by
// TCP, be it that nobody waits for it any more.
func (p *Proxy) Hang(hangs bool) {
	p.p.Change(func(r *faultproxy.Rules) { r.HoldUp, r.HoldDown = hangs, hangs })
}

// Delay makes every round trip take d longer: half of d on the way to the server and half on the
// way back. Requests that are under way at the same time are delayed at the same time. Delay(0)
// ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.p.Change(func(r *faultproxy.Rules) { r.DelayUp, r.DelayDown = d/2, d-d/2 })
}

// Trickle lets each connection carry no more than the given number of bytes per second, each way.
// Requests and replies come in small pieces, and large ones late. Trickle(0) ends it.
func (p *Proxy) Trickle(bytesPerSecond int) {
	p.p.Change(func(r *faultproxy.Rules) { r.Rate = bytesPerSecond })
}

// Heal ends every fault.
func (p *Proxy) Heal() { p.p.Heal() }
