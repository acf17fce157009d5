package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// StartCluster starts a cluster of n masters without replicas, which share the slots evenly, and waits until every one of them finds it in order.
//
// announce, if it is not nil, gives for the address of a server the one that clients are told instead, such as that of a proxy in front of it.
func StartCluster(t testing.TB, n int, announce func(addr string) string) []*Server {
	t.Helper()
	servers := make([]*Server, n)
	buses := make([]int, n)
	for i := range servers {
		servers[i] = start(t, func(port int) []string {
			buses[i] = FreePort(t)
			args := []string{
				"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "15000",
				"--cluster-port", fmt.Sprint(buses[i]),
			}
			if announce != nil {
				_, told, _ := net.SplitHostPort(announce(fmt.Sprintf("127.0.0.1:%d", port)))
				args = append(args, "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", told)
			}
			return args
		})
	}
	for i, s := range servers {
		s.must(fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1))
		const some = 4000 // an inline command has a limit
		for from, end := slots*i/n, slots*(i+1)/n; from < end; from += some {
			var b strings.Builder
			for slot := from; slot < min(from+some, end); slot++ {
				b.WriteString(" " + strconv.Itoa(slot))
			}
			s.must("CLUSTER ADDSLOTS" + b.String())
		}
	}
	for i, s := range servers[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		servers[0].must(fmt.Sprintf("CLUSTER MEET %s %s %d", host, port, buses[i+1]))
	}
	for _, s := range servers {
		Eventually(t, 20*time.Second, "the cluster is in order", func() bool { return s.clusterReady(n) })
	}
	return servers
}

// clusterReady reports whether s sees n masters and all the slots.
func (s *Server) clusterReady(n int) bool {
	info, err1 := s.Text("CLUSTER INFO")
	nodes, err2 := s.Text("CLUSTER NODES")
	return err1 == nil && err2 == nil && strings.Contains(info, "cluster_state:ok") &&
		strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d\r\n", slots)) && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r\n", n)) &&
		strings.Count(nodes, " connected ") == n && !strings.Contains(nodes, "handshake")
}

// Eventually waits until cond holds, and fails the test when it does not within limit.
func Eventually(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v it is still not so that %s", limit, what)
		}
	}
}

// must sends a command that has to be answered with OK.
func (s *Server) must(command string) {
	s.t.Helper()
	if line, err := s.Do(command); err != nil || line != "+OK" {
		s.t.Fatalf("%.60s: %q, %v", command, line, err)
	}
}

// Text is Do for commands whose reply is a text of many lines, such as INFO.
func (s *Server) Text(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "$"))
	if err != nil || n < 0 {
		return "", errors.New(strings.TrimSpace(line))
	}
	text := make([]byte, n)
	_, err = io.ReadFull(r, text)
	return string(text), err
}
