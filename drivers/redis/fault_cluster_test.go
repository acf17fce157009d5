package redis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/internal/faulttest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestWithReplicasAKeyThatHasMovedIsFollowed moves a slot behind the back of a client that knows where it was. There are no replicas, so that whatever reaches the
// server which has the slot is told that none has acknowledged.
func TestWithReplicasAKeyThatHasMovedIsFollowed(t *testing.T) {
	t.Parallel()
	const reached = "0 of 1 replicas have acknowledged"
	servers := redistest.StartCluster(t, 2, nil)
	b := openBackend(t, "redis+cluster://"+servers[0].Addr+","+servers[1].Addr+"?replicas=1")
	ctx := limited(t, 60*time.Second)
	attempt := func() string {
		_, err := b.Acquire(ctx, claimFor("moving", 1, time.Minute))
		if err == nil {
			t.Fatal("Acquire was granted, although there is no replica")
		}
		return err.Error()
	}
	if text := attempt(); !strings.Contains(text, reached) {
		t.Fatalf("Acquire = %s, want %q", text, reached)
	}
	from, to := servers[0], servers[1]
	slot := plainClient(t, from.Addr).ClusterKeySlot(ctx, "moving").Val()
	if slot >= 8192 {
		from, to = to, from
	}
	move(ctx, t, slot, plainClient(t, from.Addr), plainClient(t, to.Addr))
	if text := attempt(); !strings.Contains(text, reached) {
		t.Errorf("Acquire after the slot has moved = %s, want %q from the server that has it", text, reached)
	}

	// And back, to a server that goes down: the other one has the slot again, and the client does not know.
	move(ctx, t, slot, plainClient(t, to.Addr), plainClient(t, from.Addr))
	if text := attempt(); !strings.Contains(text, reached) {
		t.Errorf("Acquire after the slot has moved back = %s, want %q from the server that has it", text, reached)
	}
	if err := plainClient(t, to.Addr).ConfigSet(ctx, "cluster-require-full-coverage", "no").Err(); err != nil {
		t.Fatal(err)
	}
	move(ctx, t, slot, plainClient(t, from.Addr), plainClient(t, to.Addr))
	from.Kill()
	faulttest.Eventually(t, 8*time.Second, "the server that has the slot is asked", func() bool { return strings.Contains(attempt(), reached) })
}

// move gives a slot to another server, without what is in it. That server imports it, so that it has a newer claim than the one before, and keeps it.
func move(ctx context.Context, t *testing.T, slot int64, from, to *goredis.Client) {
	t.Helper()
	fromID, toID := from.Do(ctx, "CLUSTER", "MYID").Val(), to.Do(ctx, "CLUSTER", "MYID").Val()
	for _, err := range []error{
		from.FlushAll(ctx).Err(), to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err(),
		to.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err(), from.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}
