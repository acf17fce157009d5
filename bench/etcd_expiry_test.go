package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

// etcdHoldEnv makes the test program a holder in etcd that waits to be killed: the contender's name.
const etcdHoldEnv = "BENCH_ETCD_HOLD"

// runEtcdG is runG for etcd, whose server does not tell a lease's end to the millisecond: the holder tells each time that its lease was kept alive.
func runEtcdG(b *testing.B, t *target, c contender) { killHolders(b, t, c, killEtcdHolder) }

func killEtcdHolder(b *testing.B, t *target, c contender, waiter client, key string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), etcdHoldEnv+"="+c.name, childAddrEnv+"="+t.addr, childKeyEnv+"="+key)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	said := bufio.NewReader(out)
	if _, err := said.ReadString('\n'); err != nil {
		b.Fatalf("the holder said nothing: %v", err)
	}
	next := lockLater(ctx, waiter, key)
	time.Sleep(killTTL + rand.N(time.Second)) // its lease was kept alive in between, and dies at any phase of the server's clean-up
	_ = cmd.Process.Kill()
	kept := lastTime(said)
	_ = cmd.Wait()
	g := <-next
	if g.err != nil {
		b.Fatal(g.err)
	}
	_ = g.unlock()
	return g.at.Sub(kept.Add(killTTL))
}

// lastTime returns the last of the times that were written, a line each.
func lastTime(r io.Reader) (last time.Time) {
	for s := bufio.NewScanner(r); s.Scan(); {
		var ns int64
		if _, err := fmt.Sscan(s.Text(), &ns); err == nil {
			last = time.Unix(0, ns)
		}
	}
	return last
}

// etcdHolder is what the holder's process does.
func etcdHolder() int {
	i := slices.IndexFunc(etcdQueued, func(c contender) bool { return c.name == os.Getenv(etcdHoldEnv) })
	if i < 0 {
		return 2
	}
	tell := func(at time.Time) { fmt.Println(at.UnixNano()) }
	onKeepAlive.Store(&tell)
	failed := &testing.B{} // Fatal on it ends this goroutine, which is all there is
	c := etcdQueued[i].open(failed, &target{addr: os.Getenv(childAddrEnv)}, killTTL)
	if _, err := c.lock(context.Background(), os.Getenv(childKeyEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tell(time.Now())
	time.Sleep(time.Minute)
	return 1
}
