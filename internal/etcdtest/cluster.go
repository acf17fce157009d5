package etcdtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Cluster is the members of one etcd.
type Cluster []*Member

// StartCluster starts a cluster of n members and waits until all of them serve. They are killed when the test ends.
func StartCluster(t testing.TB, n int, opts ...Option) Cluster {
	t.Helper()
	if !called.Load() {
		t.Fatal("etcdtest.Main was not called: a TestMain has to, first of all")
	}
	var err error
	for range 5 { // somebody else may take a port before the member does
		c := newCluster(t, n, opts)
		if err = c.run(); err == nil {
			t.Cleanup(c.kill)
			return c
		}
		c.kill()
	}
	t.Fatal(err)
	return nil
}

// newCluster chooses ports and folders.
func newCluster(t testing.TB, n int, opts []Option) Cluster {
	t.Helper()
	ports := freePorts(t, 2*n)
	c := make(Cluster, n)
	urls := make([]string, n)
	for i := range c {
		s := settings{Name: fmt.Sprintf("m%d", i), Dir: t.TempDir(), Client: ports[2*i], Peer: ports[2*i+1], Tick: Tick, Election: Election}
		for _, o := range opts {
			o(&s)
		}
		c[i] = &Member{Name: s.Name, Addr: s.Client, set: s}
		urls[i] = s.Name + "=" + s.peerURL().String()
	}
	for _, m := range c {
		m.set.Cluster = strings.Join(urls, ",")
	}
	return c
}

var given sync.Map // ports that were given to a member of this process, which may be dead at the moment

// freePorts returns n loopback addresses that nobody listens on. They are below those that the system gives to whoever asks for any port: a member that
// was killed finds its own free when it is started again.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	const lowest, end = 10_000, 32_768
	var addrs []string
	for range 100 * n {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+rand.N(end-lowest))
		if _, taken := given.LoadOrStore(addr, true); taken {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		if addrs = append(addrs, addr); len(addrs) == n {
			return addrs
		}
	}
	t.Fatal("there are no free ports")
	return nil
}

// run starts all members, which need each other in order to serve.
func (c Cluster) run() error {
	for _, m := range c {
		if err := m.begin(); err != nil {
			return err
		}
	}
	for _, m := range c {
		if err := m.ready(); err != nil {
			return err
		}
	}
	return nil
}

func (c Cluster) kill() {
	for _, m := range c {
		m.Kill()
	}
}

// Addrs returns where the members serve clients.
func (c Cluster) Addrs() []string {
	addrs := make([]string, len(c))
	for i, m := range c {
		addrs[i] = m.Addr
	}
	return addrs
}

// Endpoints returns the members' addresses as URLs.
func (c Cluster) Endpoints() []string {
	urls := make([]string, len(c))
	for i, m := range c {
		urls[i] = m.Endpoint()
	}
	return urls
}

// Client returns a client of all members, which writes no log and is closed when the test ends.
func (c Cluster) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return NewClient(t, c.Addrs()...)
}

// Leader waits until one of the members that are neither killed nor stopped leads, and returns it.
func (c Cluster) Leader(t testing.TB) *Member {
	t.Helper()
	client, err := newClient(c.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(Tick) {
		var leader *Member
		var term uint64
		for _, m := range c {
			if own, leads := m.leads(client); leads && own > term {
				leader, term = m, own // one that has just been deposed may not know it
			}
		}
		if leader != nil {
			return leader
		}
	}
	t.Fatal("no member leads")
	return nil
}

// leads reports whether the member takes itself for the leader, and in which term.
func (m *Member) leads(client *clientv3.Client) (term uint64, leads bool) {
	if !m.answers() {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := client.Status(ctx, m.Addr)
	if err != nil || s.Leader != s.Header.MemberId {
		return 0, false
	}
	return s.RaftTerm, true
}
