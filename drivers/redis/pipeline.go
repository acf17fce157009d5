package redis

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/internal/gather"
)

// pipeline sends scripts: a single one straight, those that come while others are on their way together, because one connection that carries many requests at
// once is faster than many connections.
type pipeline struct {
	gate   gather.Gate[*request]
	lanes  lanes
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// request is one run of a script.
type request struct {
	gather.Ticket
	script *script
	keys   []string
	args   []any // those that many requests have are pointers, which need not be boxed

	reply any
	err   error
}

// once is a command that the client does not repeat by itself: what a release finds the second time would be taken for the first.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// outcome is how the command came out in a pipeline that failed like this, if it did: an error of a connection which cannot be made is not the commands'.
func (c once) outcome(failed error) (any, error) {
	reply, err := c.Result()
	if err == nil && reply == nil {
		err = failed
	}
	return reply, err
}

func (p *pipeline) init(client redis.UniversalClient, replicas int) {
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.lanes.init(client, replicas)
	p.gate = gather.Gate[*request]{Width: lanesKept, Patience: 100 * time.Millisecond, Alone: p.alone, Together: p.together, Closed: errClosed}
}

// run sends r and waits for its reply. When ctx ends first, r may still be sent, or have been.
func (p *pipeline) run(ctx context.Context, r *request) (any, error) {
	if err := p.gate.Do(ctx, r); err != nil {
		return nil, err
	}
	return r.reply, p.ended(ctx, r.err)
}

func (p *pipeline) alone(ctx context.Context, r *request) {
	r.err = p.use(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		r.reply, err = evaluate(ctx, client, r)
		return err
	})
}

// together sends requests of different callers, until the client's timeouts or Close end it.
func (p *pipeline) together(batch []*request) {
	ln, err := p.lanes.take()
	switch {
	case err != nil:
		for _, r := range batch {
			r.err = err
		}
		return
	case len(batch) == 1:
		batch[0].reply, batch[0].err = evaluate(p.ctx, ln.client, batch[0])
	default:
		runScripts(p.ctx, ln.client, batch)
	}
	p.lanes.give(ln)
}

// do has f use a connection by itself, and returns when ctx ends.
func (p *pipeline) do(ctx context.Context, f func(context.Context, redis.UniversalClient) error) error {
	return p.ended(ctx, p.use(ctx, f))
}

func (p *pipeline) use(ctx context.Context, f func(context.Context, redis.UniversalClient) error) error {
	ln, err := p.lanes.take()
	if err != nil {
		return err
	}
	v := ln.enter(ctx)
	err = f(p.contextOf(ctx, ln), ln.client)
	v.leave()
	p.lanes.give(ln)
	return err
}

// ended says what ended a call that failed: Close, or the end of ctx.
func (p *pipeline) ended(ctx context.Context, err error) error {
	if err != nil && p.ctx.Err() != nil {
		return errClosed
	}
	return ended(ctx, err)
}

// contextOf is what the client is given for a call: where the lane sees to its end it need not look itself.
func (p *pipeline) contextOf(ctx context.Context, ln *lane) context.Context {
	if ln.shared {
		return ctx
	}
	return p.ctx
}

// close refuses further requests, ends those under way, and waits for them where they can be ended.
func (p *pipeline) close() {
	p.gate.Close()
	p.cancel()
	p.lanes.close()
	if p.lanes.shared == nil {
		p.gate.Wait()
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
	_, failed := pipe.Exec(ctx)
	for i, r := range batch {
		r.reply, r.err = cmds[i].outcome(failed)
		if unknownScript(r.err) {
			unknown = append(unknown, r)
		}
	}
	return unknown
}
