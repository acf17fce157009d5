package etcd_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	etcddriver "github.com/dlock-go/dlock/drivers/etcd"
)

func TestAMemberHasASixthOfTheTTLAndLessThanASecond(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Second / 6, 1500 * time.Millisecond: time.Second / 3, 3 * time.Second: 500 * time.Millisecond,
		10 * time.Second: 800 * time.Millisecond, 24 * time.Hour: 800 * time.Millisecond,
	} {
		if got := etcddriver.NewLimits().Of(ttl); got != want {
			t.Errorf("a request for a TTL of %v may take %v, want %v", ttl, got, want)
		}
	}
}

// Where all members are slow it does not help to ask another one.
func TestAllMembersGetMoreTimeIfAllAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		x := etcddriver.NewLimits()
		time.Sleep(time.Hour)
		attempts := 0
		for took := time.Duration(0); x.Of(ttl) < 5*time.Second; attempts++ { // none is answered
			took += x.Of(ttl)
			time.Sleep(x.Of(ttl))
			if x.Late(); took > 20*time.Second {
				t.Fatalf("after %v a request may take %v, want 5s soon", took, x.Of(ttl))
			}
		}
		if attempts > 6 {
			t.Errorf("%d requests were sent before there was time for a slow answer, want 6 at most", attempts)
		}
		x.Answered(time.Second)
		if got := x.Of(ttl); got != 4*time.Second {
			t.Errorf("after an answer that took a second a request may take %v, want 4s", got)
		}
		for range 20 {
			x.Answered(time.Millisecond)
		}
		if got := x.Of(ttl); got != ttl/6 {
			t.Errorf("after twenty fast answers a request may take %v, want %v", got, ttl/6)
		}
	})
}

func TestClaimsOfThePastAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p etcddriver.Past
		for i := range 10_000 {
			p.Add(fmt.Sprint(i), "name", time.Now().Add(time.Second))
			time.Sleep(10 * time.Millisecond)
		}
		if !p.Known("9999") || p.Known("0") || p.Len() > 500 {
			t.Errorf("%d are remembered, want those of the last second and not many more", p.Len())
		}
		for i := range 3 * etcddriver.MostPast {
			p.Add(fmt.Sprint("long ", i), "name", time.Now().Add(24*time.Hour))
			if p.Len() > etcddriver.MostPast+1 {
				t.Fatalf("%d are remembered, want %d at most", p.Len(), etcddriver.MostPast)
			}
		}
	})
}
