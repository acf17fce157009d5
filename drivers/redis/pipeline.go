package redis

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxInFlight is how many requests or batches may be on their way at the same time before further ones are gathered.
const maxInFlight = 2

// patience is how long requests gather behind others that do not return. Then they go out nevertheless, by another connection: replies that are lost must
// not bar the way, for as long as the client waits for them, to requests that would be answered.
const patience = 100 * time.Millisecond

// pipeline sends scripts. A call that finds the way free goes straight out. Calls that come while others are on their way gather, and go out
// together when one of those has returned: one connection that carries many requests at once is faster than many connections.
type pipeline struct {
	b *Backend

	mu       sync.Mutex
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
	args   []any

	reply any
	err   error
	done  chan struct{} // made when the request is gathered
	gone  bool          // nobody waits for it; guarded by pipeline.mu while it is gathered
}

// once is a command that the client does not repeat by itself: what a release finds the second time would be taken for the first.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// run sends r and waits for its reply. When ctx ends first, r may still be sent, or have been.
func (p *pipeline) run(ctx context.Context, r *request) (any, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if p.inFlight < maxInFlight {
		p.inFlight++
		p.mu.Unlock()
		p.send(ctx, r)
		p.next()
		return r.reply, r.err
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

// next sends what has gathered.
func (p *pipeline) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	batch := p.take()
	if len(batch) == 0 || p.closed {
		p.inFlight--
		for _, r := range batch {
			r.err = errClosed
			close(r.done)
		}
		return
	}
	p.wg.Add(1)
	go p.sendBatch(batch)
}

// take returns the requests that have gathered and are still wanted.
func (p *pipeline) take() []*request {
	if p.overdue != nil {
		p.overdue.Stop()
	}
	batch := slices.DeleteFunc(p.gathered, func(r *request) bool { return r.gone })
	p.gathered = nil
	return batch
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
	if batch := p.take(); len(batch) > 0 {
		p.inFlight++
		p.wg.Add(1)
		go p.sendBatch(batch)
	}
}

func (p *pipeline) sendBatch(batch []*request) {
	defer p.wg.Done()
	// The requests belong to different callers; none of their contexts may end it for the others. The client's timeouts do.
	ctx := context.Background()
	if len(batch) == 1 {
		p.send(ctx, batch[0])
	} else {
		runScripts(ctx, p.b.client, batch)
	}
	for _, r := range batch {
		close(r.done)
	}
	p.next()
}

// send sends one request by itself.
func (p *pipeline) send(ctx context.Context, r *request) {
	r.reply, r.err = evaluate(ctx, p.b.client, r)
}

// close refuses further requests and waits for those under way.
func (p *pipeline) close() {
	p.mu.Lock()
	p.closed = true
	gathered := p.take()
	p.mu.Unlock()
	for _, r := range gathered {
		r.err = errClosed
		close(r.done)
	}
}

// evaluate runs a script that the server probably knows.
func evaluate(ctx context.Context, client redis.UniversalClient, r *request) (any, error) {
	cmd := once{redis.NewCmd(ctx, r.command("evalsha", r.script.sha)...)}
	err := client.Process(ctx, cmd)
	if unknownScript(err) {
		cmd = once{redis.NewCmd(ctx, r.command("eval", r.script.source)...)}
		err = client.Process(ctx, cmd)
	}
	return cmd.Val(), ended(ctx, err)
}

func (r *request) command(name, script string) []any {
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
	again := pipelined(ctx, client, batch, func(r *request) []any { return r.command("evalsha", r.script.sha) })
	if len(again) > 0 {
		pipelined(ctx, client, again, func(r *request) []any { return r.command("eval", r.script.source) })
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
