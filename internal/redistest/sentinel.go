package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// MasterName is what StartSentinel's Sentinel calls its master.
const MasterName = "mymaster"

// StartReplica starts a replica of master and waits until it follows.
func StartReplica(t testing.TB, master *Server, args ...string) *Server {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := Start(t, append([]string{"--replicaof", host, port}, args...)...)
	Eventually(t, 20*time.Second, "the replica follows", func() bool {
		text, err := replica.Text("INFO replication")
		return err == nil && strings.Contains(text, "master_link_status:up")
	})
	// WAIT counts only replicas that the master has heard from.
	Eventually(t, 20*time.Second, "the master knows its replica", func() bool {
		text, err := master.Text("INFO replication")
		return err == nil && strings.Contains(text, "state=online")
	})
	return replica
}

// StartSentinel starts a master, a replica of it, and one Sentinel that alone decides on a failover, downAfter after the master fell silent.
func StartSentinel(t testing.TB, downAfter time.Duration) (sentinel, master, replica *Server) {
	t.Helper()
	master = Start(t, "--repl-diskless-sync-delay", "0")
	replica = StartReplica(t, master)
	host, port, _ := net.SplitHostPort(master.Addr)
	var err error
	for range 5 { // as in start
		own := FreePort(t)
		sentinel = &Server{Addr: fmt.Sprintf("127.0.0.1:%d", own), Dir: t.TempDir(), t: t}
		file := filepath.Join(sentinel.Dir, "sentinel.conf")
		config := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\n", own, sentinel.Dir) +
			fmt.Sprintf("sentinel monitor %s %s %s 1\n", MasterName, host, port) +
			fmt.Sprintf("sentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s 3000\n", MasterName, downAfter.Milliseconds(), MasterName)
		if err = os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		sentinel.args = []string{file, "--sentinel"}
		if err = sentinel.Run(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("redis-sentinel: %v", err)
	}
	t.Cleanup(sentinel.Kill)
	Eventually(t, 20*time.Second, "Sentinel knows the replica", func() bool {
		text, err := sentinel.Text("INFO sentinel")
		return err == nil && strings.Contains(text, "status=ok") && strings.Contains(text, "slaves=1")
	})
	return sentinel, master, replica
}
