package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
	"github.com/dlock-go/dlock/internal/faulttest"
)

// jam is a backend with as many requests on their way as it sends at a time. The server gets them when the jam is cleared.
type jam struct {
	*etcddriver.Backend
	sent  atomic.Int32 // transactions and deletes, those in the jam included
	clear func()
	stuck []<-chan error
}

// newJam returns a jam. The names of its locks begin with app.
func newJam(t *testing.T, client *clientv3.Client, w *wire) *jam {
	t.Helper()
	j := &jam{Backend: etcddriver.New(client).(*etcddriver.Backend)}
	t.Cleanup(func() { _ = j.Close() })
	if _, err := j.Acquire(t.Context(), faulttest.Claim("app-warm", time.Minute)); err != nil {
		t.Fatal(err)
	}
	cleared := make(chan struct{})
	j.clear = sync.OnceFunc(func() { close(cleared) })
	t.Cleanup(j.clear)
	w.intercept(func(ctx context.Context, req any, send func(context.Context) error) error {
		switch req.(type) {
		case *pb.TxnRequest, *pb.DeleteRangeRequest:
			if j.sent.Add(1) <= etcddriver.MaxInFlight {
				<-cleared
			}
		}
		return send(ctx)
	})
	for i := range etcddriver.MaxInFlight {
		j.stuck = append(j.stuck, attempt(t.Context(), j, faulttest.Claim(fmt.Sprint("app-jam-", i), time.Minute)))
	}
	faulttest.Eventually(t, 10*time.Second, "the way is jammed", func() bool { return j.sent.Load() == etcddriver.MaxInFlight })
	return j
}

// attempt starts an Acquire, whose error comes.
func attempt(ctx context.Context, b driver.Backend, c driver.Claim) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, c)
		done <- err
	}()
	return done
}

// gathered waits until n requests have gathered.
func (j *jam) gathered(t *testing.T, n int) {
	t.Helper()
	faulttest.Eventually(t, 10*time.Second, fmt.Sprint(n, " requests have gathered"), func() bool { return etcddriver.Gathered(j.Backend) == n })
}

func TestRequestsThatGatherGoOutTogether(t *testing.T) {
	t.Parallel()
	const n = 20
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	b := etcddriver.New(client)
	t.Cleanup(func() { _ = b.Close() })
	var old, claims [n]driver.Claim
	var grants [n]driver.Grant
	for i := range n {
		old[i], claims[i] = faulttest.Claim(fmt.Sprint("old-", i), time.Minute), faulttest.Claim(fmt.Sprint("k-", i), time.Minute)
		if _, err := b.Acquire(t.Context(), old[i]); err != nil {
			t.Fatal(err)
		}
	}
	etcddriver.Patient(b)
	var sent atomic.Int32
	cleared := make(chan struct{})
	w.intercept(func(ctx context.Context, _ any, send func(context.Context) error) error {
		if sent.Add(1) <= etcddriver.MaxInFlight {
			<-cleared
		}
		return send(ctx)
	})
	var work sync.WaitGroup
	for i := range n {
		work.Go(func() {
			var err error
			if grants[i], err = b.Acquire(t.Context(), claims[i]); err != nil {
				t.Errorf("Acquire of %s = %v", claims[i].Key, err)
			}
		})
		work.Go(func() {
			if err := b.Release(t.Context(), old[i]); err != nil {
				t.Errorf("Release of %s = %v", old[i].Key, err)
			}
		})
	}
	faulttest.Eventually(t, 10*time.Second, "the rest has gathered", func() bool { return etcddriver.Gathered(b) == 2*n-etcddriver.MaxInFlight })
	close(cleared)
	work.Wait()
	if got := sent.Load(); got != etcddriver.MaxInFlight+1 {
		t.Errorf("%d requests were sent, want %d that found the way free, and one", got, etcddriver.MaxInFlight)
	}
	for i, c := range claims {
		keys := s.contenders(t, c.Key)
		if len(keys) != 1 || uint64(keys[0].CreateRevision)*256 != grants[i].Fence || string(keys[0].Value) != etcddriver.Value(c) {
			t.Errorf("%s was granted with the fence %d, and the server has %v", c.Key, grants[i].Fence, keys)
		}
		if n := s.count(t, old[i].Key); n != 0 {
			t.Errorf("%s was released, and the server has %d keys of it", old[i].Key, n)
		}
	}
}

func TestClaimsOfOneLockNeverGoOutTogether(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	j := newJam(t, client, w)
	etcddriver.Patient(j.Backend)
	var attempts []<-chan error
	for range 10 {
		attempts = append(attempts, attempt(t.Context(), j, faulttest.Claim("k", time.Minute)))
	}
	j.gathered(t, len(attempts))
	j.clear()
	var won int
	for _, a := range attempts {
		switch err := faulttest.Receive(t, "Acquire", a); {
		case err == nil:
			won++
		case !errors.Is(err, driver.ErrHeld):
			t.Errorf("Acquire = %v", err)
		}
	}
	if n := s.count(t, "k"); won != 1 || n != 1 {
		t.Errorf("%d have got the lock, and the server has %d keys; want 1 and 1", won, n)
	}
}

// TestARefusalConcernsNobodyElse gathers a claim that the server refuses with others.
func TestARefusalConcernsNobodyElse(t *testing.T) {
	t.Parallel()
	t.Run("permission", func(t *testing.T) {
		t.Parallel()
		s := startSite(t, 1)
		enableAuth(t, s.Cluster[0])
		client, w := dialWireAs(t, "app", "secret", s.Addrs()...)
		j := newJam(t, client, w)
		etcddriver.Patient(j.Backend)
		bad := attempt(t.Context(), j, faulttest.Claim("other", time.Minute))
		good := attempt(t.Context(), j, faulttest.Claim("app-k", time.Minute))
		j.gathered(t, 2)
		j.clear()
		if err := faulttest.Receive(t, "Acquire", bad); !errors.Is(err, rpctypes.ErrPermissionDenied) || !errors.Is(err, driver.ErrPermanent) {
			t.Errorf("Acquire of a key that the user may not use = %v, want it permanent and ErrPermissionDenied", err)
		}
		if err := faulttest.Receive(t, "Acquire", good); err != nil {
			t.Errorf("Acquire, beside one that is refused = %v", err)
		}
	})
	t.Run("lease", func(t *testing.T) {
		t.Parallel()
		s := startSite(t, 1)
		client, w := dialWire(t, s.Addrs()...)
		j := newJam(t, client, w)
		etcddriver.Patient(j.Backend)
		short := faulttest.Claim("short", 10*time.Second) // on a lease of its own
		good := attempt(t.Context(), j, short)
		bad := attempt(t.Context(), j, faulttest.Claim("long", time.Minute))
		j.gathered(t, 2)
		s.revoke(t, "app-warm", 0)
		j.clear()
		if err := faulttest.Receive(t, "Acquire", bad); err != nil {
			t.Errorf("Acquire on a lease that the server has forgotten = %v, want another lease", err)
		}
		if err := faulttest.Receive(t, "Acquire", good); err != nil {
			t.Errorf("Acquire, beside one that is refused = %v", err)
		}
		if err := j.Release(t.Context(), short); err != nil {
			t.Errorf("Release, beside one that is refused = %v", err)
		}
	})
}

func TestAGatheredRequestEndsWithItsContextAndIsNotSent(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	j := newJam(t, client, w)
	etcddriver.Patient(j.Backend)
	ctx, cancel := context.WithCancel(t.Context())
	given := attempt(ctx, j, faulttest.Claim("given-up", time.Minute))
	j.gathered(t, 1)
	cancel()
	if err := faulttest.Receive(t, "Acquire", given); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire = %v, want context.Canceled", err)
	}
	kept := attempt(t.Context(), j, faulttest.Claim("kept", time.Minute))
	j.clear()
	if err := faulttest.Receive(t, "Acquire", kept); err != nil {
		t.Error(err)
	}
	if n := s.count(t, "given-up"); n != 0 {
		t.Errorf("the server has %d keys for a request that was given up before it was sent", n)
	}
}

func TestRequestsDoNotWaitForThoseThatAreNeverAnswered(t *testing.T) {
	t.Parallel()
	s := startSite(t, 1)
	client, w := dialWire(t, s.Addrs()...)
	j := newJam(t, client, w)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // less than any request may take
	defer cancel()
	for i := range 3 {
		if err := faulttest.Receive(t, "Acquire", attempt(ctx, j, faulttest.Claim(fmt.Sprint("k-", i), time.Minute))); err != nil {
			t.Fatalf("Acquire behind requests that are not answered = %v", err)
		}
	}
	for i, stuck := range j.stuck {
		select {
		case err := <-stuck:
			t.Errorf("request %d, which was not answered = %v", i, err)
		default:
		}
	}
}
