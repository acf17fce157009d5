package redis

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxInFlight is how many requests or batches may be on their way at the same time before further ones are gathered.
const maxInFlight = 4

// patience is how long requests gather behind others that do not return. Then they go out nevertheless, by another connection: replies that are lost must
// not bar the way, for as long as the client waits for them, to requests that would be answered.
const patience = 100 * time.Millisecond

// pipeline sends scripts. A call that finds the way free goes straight out. Calls that come while others are on their way gather, and go out
// together when one of those has returned: one connection that carries many requests at once is faster than many connections.
type pipeline struct {
	newLane func() *lane
	shared  *lane // if there is just this one, which everybody has
	ctx     context.Context
	cancel  context.CancelFunc

	mu       sync.Mutex
	free     []*lane
	lanes    map[*lane]struct{} // all there are
	inFlight int
	gathered []*request
	overdue  *time.Timer // runs while requests are gathered
	closed   bool
	wg       sync.WaitGroup // batches under way
}

// request is one run of a script.
type request struct {
	script *script
	keys   []string
	args   []any // those that many requests have are pointers, which need not be boxed

	reply any
	err   error
	done  chan struct{} // made when the request is gathered
	gone  bool          // nobody waits for it; guarded by pipeline.mu while it is gathered
}

// once is a command that the client does not repeat by itself: what a release finds the second time would be taken for the first.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// init has p make lanes of its own, where client is one whose connections are all to one server. Waiting for replicas keeps a connection long, so that
// many are needed.
func (p *pipeline) init(client redis.UniversalClient, replicas int) {
	p.lanes = map[*lane]struct{}{}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if c, ok := client.(*redis.Client); ok && replicas == 0 {
		p.newLane = func() *lane { return newLane(*c.Options()) }
	} else {
		p.shared = &lane{client: client, shared: true}
	}
}

// take returns a lane that nobody uses. The mutex is held.
func (p *pipeline) take() *lane {
	p.inFlight++
	if p.shared != nil {
		return p.shared
	}
	if n := len(p.free); n > 0 {
		ln := p.free[n-1]
		p.free = p.free[:n-1]
		return ln
	}
	ln := p.newLane()
	p.lanes[ln] = struct{}{}
	return ln
}

// give puts a lane back. Those that were made because the others were stuck are not kept. The mutex is held.
func (p *pipeline) give(ln *lane) {
	p.inFlight--
	switch {
	case ln.shared:
	case len(p.free) < maxInFlight && !p.closed:
		p.free = append(p.free, ln)
	default:
		delete(p.lanes, ln)
		go ln.close()
	}
}

// do has f use a connection by itself, and returns when ctx ends.
func (p *pipeline) do(ctx context.Context, f func(context.Context, redis.UniversalClient) error) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errClosed
	}
	ln := p.take()
	p.mu.Unlock()
	v := ln.enter(ctx)
	err := f(p.contextOf(ctx, ln), ln.client)
	v.leave()
	p.next(ln)
	return p.ended(ctx, err)
}

// ended says what ended a call that failed: Close, or the end of ctx.
func (p *pipeline) ended(ctx context.Context, err error) error {
	if err != nil && p.ctx.Err() != nil {
		return errClosed
	}
	return ended(ctx, err)
}

// run sends r and waits for its reply. When ctx ends first, r may still be sent, or have been.
func (p *pipeline) run(ctx context.Context, r *request) (any, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if p.inFlight < maxInFlight {
		ln := p.take()
		p.mu.Unlock()
		v := ln.enter(ctx)
		r.reply, r.err = evaluate(p.contextOf(ctx, ln), ln.client, r)
		v.leave()
		p.next(ln)
		return r.reply, p.ended(ctx, r.err)
	}
	r.done = make(chan struct{})
	if p.gathered = append(p.gathered, r); len(p.gathered) == 1 {
		p.watch()
	}
	p.mu.Unlock()
	select {
	case <-r.done:
		return r.reply, r.err
	case <-ctx.Done():
		p.mu.Lock()
		r.gone = true
		p.mu.Unlock()
		return nil, ctx.Err()
	}
}

// contextOf is what the client is given for a call: where the lane sees to its end it need not look itself.
func (p *pipeline) contextOf(ctx context.Context, ln *lane) context.Context {
	if ln.shared {
		return ctx
	}
	return p.ctx
}

// next sends what has gathered by a lane that has become free.
func (p *pipeline) next(ln *lane) {
	if batch := p.following(ln); len(batch) > 0 {
		go p.sendBatches(ln, batch)
	}
}

// following returns what has gathered, to be sent by a lane that has become free. If there is nothing the lane is put back.
func (p *pipeline) following(ln *lane) []*request {
	p.mu.Lock()
	defer p.mu.Unlock()
	batch := p.collect()
	if len(batch) == 0 || p.closed {
		p.give(ln)
		refuse(batch)
		return nil
	}
	p.wg.Add(1)
	return batch
}

// collect returns the requests that have gathered and are still wanted.
func (p *pipeline) collect() []*request {
	if p.overdue != nil {
		p.overdue.Stop()
	}
	batch := slices.DeleteFunc(p.gathered, func(r *request) bool { return r.gone })
	p.gathered = nil
	return batch
}

func refuse(batch []*request) {
	for _, r := range batch {
		r.err = errClosed
		close(r.done)
	}
}

func (p *pipeline) watch() {
	if p.overdue == nil {
		p.overdue = time.AfterFunc(patience, p.overtake)
	} else {
		p.overdue.Reset(patience)
	}
}

// overtake sends what has gathered although those before it have not returned.
func (p *pipeline) overtake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if batch := p.collect(); len(batch) > 0 && !p.closed {
		p.wg.Add(1)
		go p.sendBatches(p.take(), batch)
	} else {
		refuse(batch)
	}
}

// sendBatches sends requests by a lane, and then what has gathered meanwhile, until there is nothing more.
func (p *pipeline) sendBatches(ln *lane, batch []*request) {
	for len(batch) > 0 {
		p.sendBatch(ln, batch)
		p.wg.Done()
		batch = p.following(ln)
	}
}

// sendBatch sends requests of different callers. None of their contexts may end it for the others; the client's timeouts do.
func (p *pipeline) sendBatch(ln *lane, batch []*request) {
	if len(batch) == 1 {
		batch[0].reply, batch[0].err = evaluate(p.ctx, ln.client, batch[0])
	} else {
		runScripts(p.ctx, ln.client, batch)
	}
	for _, r := range batch {
		close(r.done)
	}
	if len(batch) > 1 {
		runtime.Gosched() // those who have got their answers may have more to ask, and then it goes out together
	}
}

// close refuses further requests, ends those under way, and waits for them where they can be ended.
func (p *pipeline) close() {
	p.mu.Lock()
	p.closed = true
	refuse(p.collect())
	lanes := slices.Collect(maps.Keys(p.lanes))
	p.mu.Unlock()
	p.cancel()
	for _, ln := range lanes {
		ln.close()
	}
	if p.shared == nil {
		p.wg.Wait()
	}
}

// evaluate runs a script that the server probably knows.
func evaluate(ctx context.Context, client redis.UniversalClient, r *request) (any, error) {
	cmd := once{redis.NewCmd(ctx, r.command("evalsha", &r.script.sha)...)}
	err := client.Process(ctx, cmd)
	if unknownScript(err) {
		cmd = once{redis.NewCmd(ctx, r.command("eval", &r.script.source)...)}
		err = client.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

func (r *request) command(name string, script *string) []any {
	args := make([]any, 0, 3+len(r.keys)+len(r.args))
	args = append(args, name, script, len(r.keys))
	for _, k := range r.keys {
		args = append(args, k)
	}
	return append(args, r.args...)
}

func unknownScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }

// runScripts runs many scripts in one pipeline. What the server does not know is sent once more, in full.
func runScripts(ctx context.Context, client redis.UniversalClient, batch []*request) {
	again := pipelined(ctx, client, batch, func(r *request) []any { return r.command("evalsha", &r.script.sha) })
	if len(again) > 0 {
		pipelined(ctx, client, again, func(r *request) []any { return r.command("eval", &r.script.source) })
	}
}

func pipelined(ctx context.Context, client redis.UniversalClient, batch []*request, command func(*request) []any) (unknown []*request) {
	pipe := client.Pipeline()
	cmds := make([]once, len(batch))
	for i, r := range batch {
		cmds[i] = once{redis.NewCmd(ctx, command(r)...)}
		_ = pipe.Process(ctx, cmds[i])
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, r := range batch {
		r.reply, r.err = cmds[i].Result()
		if unknownScript(r.err) {
			unknown = append(unknown, r)
		}
	}
	return unknown
}
