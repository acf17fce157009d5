// Package redistest starts redis-server processes for tests, on free loopback ports, and stops them.
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/proc"
)

// Server is a redis-server child process.
type Server struct {
	Addr string // host:port
	Dir  string

	t    testing.TB
	args []string
	cmd  *exec.Cmd
	out  *os.File
}

// Require skips the test when redis-server is not installed, or fails it when DLOCK_REQUIRE_LIVE is set.
func Require(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err == nil {
		return
	}
	const reason = "redis-server is not installed"
	if os.Getenv("DLOCK_REQUIRE_LIVE") != "" {
		t.Fatal(reason + ", and DLOCK_REQUIRE_LIVE is set")
	}
	t.Skip(reason)
}

// FreePort returns a loopback port that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// Start starts a server without persistence; args are further command-line options of redis-server and win over the defaults.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, func(int) []string { return args })
}

// start starts a server with the arguments for the port that it was given.
func start(t testing.TB, args func(port int) []string) *Server {
	t.Helper()
	Require(t)
	var err error
	for range 5 { // somebody else may take the port before the server does
		port := FreePort(t)
		s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Dir: t.TempDir(), t: t}
		s.args = append([]string{
			"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", s.Dir, "--save", "", "--appendonly", "no",
			"--daemonize", "no", "--loglevel", "notice",
		}, args(port)...)
		if err = s.Run(); err == nil {
			t.Cleanup(s.Kill)
			return s
		}
	}
	t.Fatalf("redis-server: %v", err)
	return nil
}

// Run starts the process again after Kill, on the same port, and waits until it accepts connections.
func (s *Server) Run() error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.cmd = exec.Command("redis-server", s.args...)
	s.cmd.Stdout, s.cmd.Stderr, s.out = log, log, log
	// A test process that is killed must not leave servers behind.
	proc.Tie(s.cmd)
	before := s.ready()
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if s.ready() > before {
			return nil
		}
		if s.cmd.ProcessState != nil || syscall.Kill(s.cmd.Process.Pid, 0) != nil {
			break
		}
	}
	s.Kill()
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return errors.New(strings.TrimSpace(string(text)))
}

// ready returns how often the log says that a process, this one or one before it, accepts connections. A server that wants a password does, too.
func (s *Server) ready() int {
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return strings.Count(string(text), "Ready to accept connections") + strings.Count(string(text), "Sentinel ID is")
}

// Kill ends the process with SIGKILL and waits for it.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = s.out.Close()
	s.cmd = nil
}

// Stop suspends the process, as if it hung; Continue lets it go on.
func (s *Server) Stop() { _ = proc.Stop(s.cmd.Process) }

// Continue lets a stopped process go on.
func (s *Server) Continue() { _ = proc.Continue(s.cmd.Process) }

// Do sends one inline command on a connection of its own and returns the raw reply's first line. It is a witness that shares no code with the
// driver.
func (s *Server) Do(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}
