// Cron runs a job once per tick although three replicas want to run it. The lock keeps two from running it at the same time; that a tick was
// served is written down under the lock, because a replica that comes late finds the lock free again.
package main

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/drivers/memory"
)

func main() {
	jobs := &jobTable{}
	var replicas sync.WaitGroup
	for range 3 {
		replicas.Go(func() { replica(jobs) })
	}
	replicas.Wait()
	fmt.Println("runs:", jobs.runs)
}

// replica wants to run the job at each of three ticks.
func replica(jobs *jobTable) {
	locker, err := dlock.Open("memory", "memory://cron", &dlock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	for tick := 1; tick <= 3; tick++ {
		time.Sleep(50 * time.Millisecond)
		if err := runOnce(context.Background(), locker, jobs, tick); err != nil {
			log.Print(err)
		}
	}
}

// runOnce runs the job for tick unless another replica does so or has done so.
func runOnce(ctx context.Context, locker dlock.Locker, jobs *jobTable, tick int) (err error) {
	lease, ok, err := dlock.TryAcquire(ctx, locker, "report")
	if err != nil || !ok {
		return err
	}
	defer func() {
		if e := lease.Unlock(ctx); err == nil {
			err = e
		}
	}()
	if jobs.served(tick) {
		return nil
	}
	fmt.Println("report for tick", tick)
	jobs.serve(tick)
	return nil
}

// jobTable stands for a table of the application's database. The mutex is the database's: the replicas are processes of their own.
type jobTable struct {
	mu   sync.Mutex
	last int
	runs int
}

func (j *jobTable) served(tick int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last >= tick
}

func (j *jobTable) serve(tick int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = tick
	j.runs++
}
