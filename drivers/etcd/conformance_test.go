package etcd_test

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/dlocktest"
	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// store is a dlocktest.Store on members that all cases share; each has a namespace of its own, and its own way to the members.
func store(t *testing.T, cluster etcdtest.Cluster) dlocktest.Store {
	t.Parallel()
	namespace := t.Name() + "/"
	var mu sync.Mutex
	var rules faultproxy.Rules
	var proxies []*faultproxy.Proxy
	clients := map[driver.Backend][]*faultproxy.Proxy{}
	open := func(t testing.TB) (dsn string, ways []*faultproxy.Proxy) {
		mu.Lock()
		defer mu.Unlock()
		var hosts []string
		for _, m := range cluster {
			p := faultproxy.New(t, m.Addr)
			p.Set(rules)
			ways, hosts = append(ways, p), append(hosts, p.Addr)
		}
		proxies = append(proxies, ways...)
		return "etcd://" + strings.Join(hosts, ",") + "?namespace=" + url.QueryEscape(namespace), ways
	}
	set := func(r faultproxy.Rules, cut bool) {
		mu.Lock()
		defer mu.Unlock()
		rules = r
		for _, p := range proxies { // all of them, before a client goes from one to the next
			p.Set(r)
		}
		for _, p := range proxies {
			if cut {
				p.CutAll()
			}
		}
	}
	dsn, _ := open(t)
	admin := cluster.Client(t)
	return dlocktest.Store{
		Driver: "etcd", DSN: dsn,
		Open: func(t testing.TB) driver.Backend {
			dsn, ways := open(t)
			b, err := etcddriver.Driver{}.Open(dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			mu.Lock()
			defer mu.Unlock()
			clients[b] = ways
			return b
		},
		Outage: func(down bool) { set(faultproxy.Rules{Refuse: down}, down) },
		Hang:   func(hangs bool) { set(faultproxy.Rules{DropUp: hangs, DropDown: hangs}, !hangs) },
		Vanish: func(b driver.Backend) {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range clients[b] {
				p.BlackHole()
			}
		},
		Delete: func(key string) { deleteHolder(t, admin, namespace+key) },
	}
}

// deleteHolder removes the key of the one who holds a lock, as an operator would.
func deleteHolder(t testing.TB, admin *clientv3.Client, lock string) {
	ctx := context.Background()
	resp, err := admin.Get(ctx, lock+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(resp.Kvs) == 0 {
		t.Errorf("looking for the holder of %s: %v, %v", lock, resp, err)
		return
	}
	if _, err := admin.Delete(ctx, string(resp.Kvs[0].Key)); err != nil {
		t.Error(err)
	}
}

func conform(t *testing.T, members int) {
	cluster := etcdtest.StartCluster(t, members, etcdtest.Timing(50*time.Millisecond, 1300*time.Millisecond)) // no case is about elections
	dlocktest.Run(t, dlocktest.Harness{
		Pushed: true,
		MinTTL: 2 * time.Second, // a lease of one second is hard to keep alive on a machine with much to do
		New:    func(t *testing.T) dlocktest.Store { return store(t, cluster) },
	})
}

func TestConformanceOnOneMember(t *testing.T) { conform(t, 1) }

func TestConformanceOnThreeMembers(t *testing.T) { conform(t, 3) }
