package redis_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dlock-go/dlock/driver"
	redisdriver "github.com/dlock-go/dlock/drivers/redis"
)

// openBackend opens a DSN for the length of the test.
func openBackend(t testing.TB, dsn string) *redisdriver.Backend {
	t.Helper()
	b, err := driver.Open("redis", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*redisdriver.Backend)
}

// fakeServer speaks enough RESP to be asked for its version. It answers every command but INFO with OK. asked returns the commands that it was sent.
func fakeServer(t testing.TB, info string) (addr string, asked func() []string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var commands []string
	var wg sync.WaitGroup
	conns := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				for r := bufio.NewReader(conn); ; {
					args, err := readCommand(r)
					if err != nil || len(args) == 0 {
						return
					}
					name := strings.ToUpper(args[0])
					mu.Lock()
					commands = append(commands, strings.Join(append([]string{name}, args[1:]...), " "))
					mu.Unlock()
					answer := "+OK\r\n"
					switch name {
					case "INFO":
						answer = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
					case "HELLO":
						answer = "-ERR unknown command 'HELLO'\r\n"
					}
					if _, err := io.WriteString(conn, answer); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(commands)
	}
}
