package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/etcdtest"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// mutex locks name as concurrency.Mutex and etcdctl do.
func mutex(t testing.TB, client *clientv3.Client, name string) *concurrency.Mutex {
	t.Helper()
	s, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	x := concurrency.NewMutex(s, name)
	if err := x.Lock(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return x
}

func TestInspectShowsHolderAndQueue(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	ops := openDSN(t, "etcd://"+m.Addr)
	const key = "app/{a} 100%"
	c := claimBy(1, key, time.Minute)
	c.Owner = "host-1:42 with spaces"
	g := acquired(t, ops, c)
	var want []string
	for i := range 3 {
		w := claimBy(10+i, key, time.Minute)
		queued(t, openDSN(t, "etcd://"+m.Addr), w)
		want = append(want, w.Owner)
	}
	info, err := ops.Inspect(bounded(t), key)
	if err != nil || info.Key != key || info.Owner != c.Owner || info.Fence != g.Fence || !slices.Equal(info.Waiters, want) {
		t.Errorf("Inspect = %+v, %v; want the key %q, the owner %q, the fence %d and the waiters %q", info, err, key, c.Owner, g.Fence, want)
	}
	if info.TTL <= 30*time.Second || info.TTL > time.Minute || !info.Since.IsZero() {
		t.Errorf("Inspect = TTL %v, since %v; want a little less than a minute, and that it is not known since when", info.TTL, info.Since)
	}
}

func TestInspectListAndBreakKnowTheLocksOfTheConcurrencyPackage(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	client := m.Client(t)
	b := openDSN(t, "etcd://"+m.Addr+"?namespace=svc/")
	mutex(t, client, "svc/k")
	mutex(t, client, "svc/nested/k") // a lock that dlock has no name for
	ctx := bounded(t)
	lease, err := client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "svc/sessions/alice", "no lock", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"svc/k/config", "svc/k/" + strings.Repeat("0", 16), "svc/plain", "other/k/1"} {
		if _, err := client.Put(ctx, key, "no lock"); err != nil {
			t.Fatal(err)
		}
	}
	acquired(t, b, claimBy(1, "a/b", time.Minute))
	acquired(t, b, claimBy(2, "l", time.Minute))
	var keys []string
	for info, err := range b.List(ctx, "") {
		if err != nil || info.Fence == 0 || info.TTL <= 0 {
			t.Errorf("List yields %+v, %v; want fence and TTL", info, err)
		}
		keys = append(keys, info.Key)
	}
	slices.Sort(keys)
	if want := []string{"a/b", "k", "l"}; !slices.Equal(keys, want) {
		t.Errorf("List yields %q, want %q", keys, want)
	}
	info, err := b.Inspect(ctx, "k")
	if err != nil || info.Fence == 0 || info.TTL <= 0 || info.Owner != "" {
		t.Fatalf("Inspect = %+v, %v; want a holder that did not say who it is", info, err)
	}
	if err := b.Break(ctx, "k", info.Fence); err != nil {
		t.Errorf("Break = %v", err)
	}
	if now, err := b.Inspect(ctx, "k"); err != nil || now.Fence == info.Fence {
		t.Errorf("Inspect after Break = %+v, %v; want that holder gone", now, err)
	}
}

func TestListGoesOnFromPageToPage(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	b := openDSN(t, "etcd://"+m.Addr)
	client := m.Client(t)
	ctx := bounded(t)
	lease, err := client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	const locks, each = 40, 30 // one lock's keys are on two pages
	for i := range locks {
		var ops []clientv3.Op
		for j := range each {
			c := claimBy(i*each+j, "k"+strings.Repeat("x", i), time.Minute)
			ops = append(ops, clientv3.OpPut(fmt.Sprint(etcddriver.Name(b, c), "-", j), etcddriver.Value(c), clientv3.WithLease(lease.ID)))
		}
		if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	found := map[string]int{}
	for info, err := range b.List(ctx, "k") {
		if err != nil {
			t.Fatal(err)
		}
		found[info.Key]++
		if len(info.Waiters) != each-1 {
			t.Errorf("List shows %d who wait for %q, want %d", len(info.Waiters), info.Key, each-1)
		}
	}
	if len(found) != locks {
		t.Errorf("List yields %d locks, want %d", len(found), locks)
	}
	for key, n := range found {
		if n != 1 {
			t.Errorf("List yields %q %d times", key, n)
		}
	}
}

func ids(findings []driver.Finding) []string {
	var list []string
	for _, f := range findings {
		list = append(list, f.Level+" "+f.ID)
	}
	return list
}

func TestDiagnoseOfHealthyMembersFindsNothingWrong(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3)
	c.Leader(t)
	b := openDSN(t, "etcd://"+strings.Join(c.Addrs(), ","))
	want := slices.Repeat([]string{"info etcd-version"}, 3)
	var got []string
	var err error
	defer func() { t.Logf("Diagnose = %q, %v; want %q", got, err, want) }()
	faulttest.Eventually(t, 20*time.Second, "nothing is wrong, no election either", func() bool {
		var findings []driver.Finding
		findings, err = b.Diagnose(bounded(t))
		got = ids(findings)
		return err == nil && slices.Equal(got, want)
	})
}

func TestDiagnoseNamesMembersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3)
	b := openDSN(t, "etcd://"+strings.Join(c.Addrs(), ","))
	acquired(t, b, claimBy(1, "k", time.Minute))
	c[1].Kill()
	c.Leader(t)
	var findings []driver.Finding
	var err error
	defer func() { t.Logf("Diagnose = %+v, %v; want first that %s does not answer", findings, err, c[1].Addr) }()
	faulttest.Eventually(t, 20*time.Second, "the member is named", func() bool { // there may be an election just then
		findings, err = b.Diagnose(bounded(t))
		return err == nil && len(findings) > 0 && findings[0].ID == "etcd-member" && strings.Contains(findings[0].Text, c[1].Addr)
	})
}

func TestDiagnoseShowsAlarms(t *testing.T) {
	t.Parallel()
	m := etcdtest.Start(t)
	client := m.Client(t)
	ctx := bounded(t)
	status, err := client.Status(ctx, m.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	raise(ctx, t, client, status.Header.MemberId)
	b := openDSN(t, "etcd://"+m.Addr)
	findings, err := b.Diagnose(ctx)
	if err != nil || len(findings) == 0 || !slices.Contains(ids(findings), "error etcd-alarm-nospace") || findings[0].Level != "error" {
		t.Errorf("Diagnose = %q, %v; want the alarm among the errors, which come first", ids(findings), err)
	}
	_, err = b.Acquire(ctx, claimBy(1, "k", time.Minute))
	if err == nil || strings.Contains(err.Error(), "held") {
		t.Errorf("Acquire in a full store = %v, want an error of its own", err)
	}
}

// raise has a member say that it is out of space.
func raise(ctx context.Context, t testing.TB, client *clientv3.Client, member uint64) {
	t.Helper()
	_, err := pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: pb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
}
