package bench

import (
	"context"
	"testing"
	"time"
)

// etcdScenarios are what is measured in etcd.
var etcdScenarios = []scenario{
	{"A", etcdLone, runA, "ops/s"},
	{"B", etcdLone, runB, "ops/s"},
	{"C0", etcdQueued, runC(0), "ops/s"},
	{"C1", etcdQueued, runC(time.Millisecond), "ops/s"},
	{"Idle", etcdQueued, runIdle, "requests/s/waiter"},
	{"D", etcdQueued, runEtcdD, "p50-ms"},
	{"E", etcdLocal, runE, "ops/s"},
	{"G", etcdQueued, runEtcdG, "beyond-ttl-ms"},
	{"Again", etcdLone, runEtcdAgain, "last/first"},
	{"Held10k", etcdLone, runEtcdHeld(10_000, 3*time.Second, 10*time.Second), "cpu-s"},
}

func BenchmarkEtcd(b *testing.B) {
	t, _ := newEtcd(b)
	for _, s := range etcdScenarios {
		for _, c := range s.contenders {
			b.Run(s.name+"/"+c.name, func(b *testing.B) { s.run(b, t, c) })
		}
	}
}

// TestEtcdCompare is TestCompare for etcd.
func TestEtcdCompare(t *testing.T) {
	if *rounds == 0 {
		t.Skip("-args -rounds 5 makes the comparison, which takes long")
	}
	server, _ := newEtcd(t)
	compare(t, server, etcdScenarios)
}

// runEtcdD is runD with locks held for 10 to 60 ms. A watch that begins at a past revision hears of it only at the next turn of the server's 100 ms loop, and
// holds of one length would always meet that loop at the same place.
func runEtcdD(b *testing.B, t *target, c contender) {
	handOver(b, t, c, 10*time.Millisecond, 60*time.Millisecond)
}

// runEtcdAgain locks and unlocks one key many times on a server of its own, and compares the speed at the end with that at the beginning. A server that is
// not compacted keeps what was deleted.
func runEtcdAgain(b *testing.B, _ *target, c contender) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t, _ := newEtcd(b)
	l := c.clients(b, t, 1, defaultTTL)[0]
	cycle(ctx, b, l, "again", 0)
	const parts, each = 10, 1000
	var took [parts]time.Duration
	for i := range took {
		began := time.Now()
		for range each {
			cycle(ctx, b, l, "again", 0)
		}
		took[i] = time.Since(began)
	}
	b.ReportMetric(took[0].Seconds()/took[parts-1].Seconds(), "last/first")
	b.ReportMetric(each/took[parts-1].Seconds(), "ops/s")
}
