package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

// childEnv makes the test program a holder that waits to be killed: the contender's name.
const (
	childEnv     = "BENCH_HOLD"
	childAddrEnv = "BENCH_ADDR"
	childKeyEnv  = "BENCH_KEY"
)

const killTTL = 2 * time.Second

// runG kills the process of a holder, and measures from the moment when its key expires until a waiter has the lock.
func runG(b *testing.B, t *target, c contender) { killHolders(b, t, c, killHolder) }

// killHolders has kill do so to one holder after the other, and reports how long a waiter needs beyond the TTL, which kill returns.
func killHolders(b *testing.B, t *target, c contender, kill func(*testing.B, *target, contender, client, string) time.Duration) {
	waiter := c.clients(b, t, 1, killTTL)[0]
	var all []time.Duration
	for i := range b.N {
		all = append(all, kill(b, t, c, waiter, fmt.Sprintf("%s-kill-%d", c.name, i)))
	}
	slices.Sort(all)
	b.ReportMetric(millis(percentile(all, 0.5)), "beyond-ttl-ms")
}

func killHolder(b *testing.B, t *target, c contender, waiter client, key string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	kill := startHolder(b, t, c, key)
	next := lockLater(ctx, waiter, key)
	time.Sleep(300 * time.Millisecond)
	kill()
	left, err := t.admin.PTTL(ctx, c.serverKey(key)).Result()
	expiry := time.Now().Add(left)
	if err != nil || left <= 0 {
		b.Fatalf("the holder's key expires in %v, %v", left, err)
	}
	g := <-next
	if g.err != nil {
		b.Fatal(g.err)
	}
	_ = g.unlock()
	return g.at.Sub(expiry)
}

// startHolder starts a process that holds key, and returns what kills it.
func startHolder(b *testing.B, t *target, c contender, key string) (kill func()) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+c.name, childAddrEnv+"="+t.addr, childKeyEnv+"="+key)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		kill()
		b.Fatalf("the holder said %q", line)
	}
	return kill
}

// child is what the holder's process does.
func child() int {
	t := &target{addr: os.Getenv(childAddrEnv)}
	all := append([]contender{bare, ours}, peers...)
	i := slices.IndexFunc(all, func(c contender) bool { return c.name == os.Getenv(childEnv) })
	if i < 0 {
		return 2
	}
	failed := &testing.B{} // Fatal on it ends this goroutine, which is all there is
	c := all[i].open(failed, t, killTTL)
	if _, err := c.lock(context.Background(), os.Getenv(childKeyEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("held")
	time.Sleep(time.Minute)
	return 1
}
