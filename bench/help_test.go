package bench

import (
	"cmp"
	"context"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/internal/redistest"
)

// quiet keeps the client library from logging connections that are closed while they are in use.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

// target is the server under test, and what has been sent to it.
type target struct {
	addr     string
	admin    *redis.Client // not counted
	pid      int           // of a server that has to be looked at from outside; 0: it tells itself
	requests atomic.Int64
}

// newTarget starts a server that is used by nobody else.
func newTarget(tb testing.TB) *target {
	tb.Helper()
	t := &target{addr: redistest.Start(tb).Addr}
	t.admin = redis.NewClient(&redis.Options{Addr: t.addr})
	tb.Cleanup(func() { _ = t.admin.Close() })
	return t
}

// dial connects to the server and counts the requests that are written.
func (t *target) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{TCPConn: conn.(*net.TCPConn), requests: &t.requests}, nil
}

// client is a go-redis client as an application would have it.
func (t *target) client(size int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: t.addr, PoolSize: size, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx) },
	})
}

// cpu returns the processor time that the server has used.
func (t *target) cpu(tb testing.TB) time.Duration {
	tb.Helper()
	if t.pid != 0 {
		return cpuOf(tb, t.pid)
	}
	text, err := t.admin.Info(context.Background(), "cpu").Result()
	if err != nil {
		tb.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			n, _ := strconv.ParseFloat(value, 64)
			sum += n
		}
	}
	return time.Duration(sum * float64(time.Second))
}

// ownCPU returns the processor time that this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// countedConn counts the requests that are written to it: the arrays of bulk strings at the top level. It keeps the methods of a TCP connection, by which
// clients find out whether it is still open.
type countedConn struct {
	*net.TCPConn
	requests *atomic.Int64

	skip   int // bytes of the present string that are still to come, with its end
	left   int // strings of the present request that are still to come
	number int // of the line that has begun
	inLine bool
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.count(p)
	return c.TCPConn.Write(p)
}

func (c *countedConn) count(p []byte) {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.skip -= n
			p = p[n:]
			continue
		}
		b := p[0]
		p = p[1:]
		switch {
		case !c.inLine: // '*' or '$'
			c.inLine, c.number = true, 0
		case b >= '0' && b <= '9':
			c.number = 10*c.number + int(b-'0')
		case b == '\n':
			c.inLine = false
			if c.left == 0 {
				c.requests.Add(1)
				c.left = c.number
				break
			}
			c.left--
			c.skip = c.number + 2
		}
	}
}

func percentile[T cmp.Ordered](sorted []T, p float64) T {
	return sorted[int(math.Ceil(float64(len(sorted)-1)*p))]
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// jain is Jain's index of fairness: 1 if all have got the same, 1/n if one has got everything.
func jain(counts []int) float64 {
	sum, squares := 0.0, 0.0
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	return sum * sum / (float64(len(counts)) * squares)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func TestRequestsAreCounted(t *testing.T) {
	var n atomic.Int64
	c := &countedConn{requests: &n}
	text := "*1\r\n$4\r\nPING\r\n" + "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$7\r\n*1\r\n$1\r\r\n" + "*2\r\n$3\r\nGET\r\n$0\r\n\r\n"
	for i := range text { // a byte at a time: requests may be cut anywhere
		c.count([]byte(text[i : i+1]))
	}
	c.count([]byte(text))
	if got := n.Load(); got != 6 {
		t.Errorf("%d requests counted, want 6", got)
	}
}

func TestStatistics(t *testing.T) {
	if got := jain([]int{5, 5, 5, 5}); got != 1 {
		t.Errorf("jain of equals = %v, want 1", got)
	}
	if got := jain([]int{20, 0, 0, 0}); got != 0.25 {
		t.Errorf("jain of one among four = %v, want 0.25", got)
	}
	if got := median([]float64{3, 1, 2, 10}); got != 2.5 {
		t.Errorf("median = %v, want 2.5", got)
	}
	if got := percentile([]int{1, 2, 3, 4, 5}, 0.99); got != 5 {
		t.Errorf("percentile = %v, want 5", got)
	}
}
