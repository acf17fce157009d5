// Package etcdtest starts etcd for tests: each member is a process of its own, on free loopback ports, so that a test can kill one or make it hang, and
// so that nothing of the server is left in the test's own process.
//
// No etcd has to be installed: a member is the test binary itself, started once more. The test package's TestMain therefore calls [Main] first.
package etcdtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock/internal/proc"
)

// Timing of the members, unless an option says otherwise. An election is over well within a second, and the shortest TTL of a lease is one second.
const (
	Tick     = 20 * time.Millisecond
	Election = 200 * time.Millisecond
)

// Member is one etcd server.
type Member struct {
	Name string
	Addr string // where it serves clients, host:port

	set     settings
	cmd     *exec.Cmd
	out     io.ReadCloser
	stopped bool
}

// Option changes what Start and StartCluster start.
type Option func(*settings)

// Fsync has the member wait for the disk as it does in production. Without it tests are faster.
func Fsync() Option { return func(s *settings) { s.Fsync = true } }

// Timing has the member send heartbeats at every tick, and hold an election after so long without any. etcd's own defaults are 100 ms and one second, with which
// the shortest TTL of a lease is two seconds.
func Timing(tick, election time.Duration) Option {
	return func(s *settings) { s.Tick, s.Election = tick, election }
}

// TLS has the member serve its clients by TLS, with the certificate and key in these files.
func TLS(cert, key string) Option { return func(s *settings) { s.Cert, s.Key = cert, key } }

// ClientCA has the member, by TLS, accept only clients with a certificate signed by the authority in this file.
func ClientCA(file string) Option { return func(s *settings) { s.ClientCA = file } }

// Start starts a cluster of one member. It is killed when the test ends.
func Start(t testing.TB, opts ...Option) *Member {
	t.Helper()
	return StartCluster(t, 1, opts...)[0]
}

// Endpoint is the member's address as a URL.
func (m *Member) Endpoint() string { return m.set.clientURL().String() }

// Client returns a client of this member alone, which writes no log and is closed when the test ends.
func (m *Member) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return NewClient(t, m.Addr)
}

// NewClient returns a client without TLS for these addresses, such as that of a proxy in front of a member. It writes no log and is closed when the
// test ends.
func NewClient(t testing.TB, addrs ...string) *clientv3.Client {
	t.Helper()
	c, err := newClient(addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newClient(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

// Run starts the member again after Kill, on the same ports and with the data it had, and waits until it serves.
func (m *Member) Run() error {
	if err := m.begin(); err != nil {
		return err
	}
	return m.ready()
}

// begin starts the process.
func (m *Member) begin() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(m.set)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	cmd.Stderr = log
	// A test process that is killed must not leave servers behind.
	proc.Tie(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.cmd, m.out, m.stopped = cmd, out, false
	return nil
}

// ready waits until the process has said that it serves.
func (m *Member) ready() error {
	limit := time.AfterFunc(30*time.Second, func() { _ = m.out.Close() })
	defer limit.Stop()
	if line, _ := bufio.NewReader(m.out).ReadString('\n'); line == serving+"\n" {
		return nil
	}
	m.Kill()
	text, _ := os.ReadFile(m.log())
	return errors.New("etcd does not serve: " + strings.TrimSpace(string(text)))
}

func (m *Member) log() string { return filepath.Join(m.set.Dir, "log") }

// Pid is the process id of the member, which must be running.
func (m *Member) Pid() int { return m.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits for it. A member that is not running stays as it is.
func (m *Member) Kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	m.cmd = nil
}

// Stop suspends the process, as if it hung; Continue lets it go on.
func (m *Member) Stop() {
	_ = proc.Stop(m.cmd.Process)
	m.stopped = true
}

// Continue lets a stopped process go on.
func (m *Member) Continue() {
	_ = proc.Continue(m.cmd.Process)
	m.stopped = false
}

// answers reports whether the member is neither killed nor stopped.
func (m *Member) answers() bool { return m.cmd != nil && !m.stopped }

func (m *Member) String() string { return fmt.Sprintf("%s at %s", m.Name, m.Addr) }
