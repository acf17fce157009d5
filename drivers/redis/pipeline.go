package redis

import (
	"context"
	"errors"
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
	open   unanswered
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// request is one run of a script.
type request struct {
	gather.Ticket
	script *script
	keys   []string
	args   []any  // those that many requests have are pointers, which need not be boxed
	token  string // of the claim that it may put into the store; empty: it does not

	full  bool // the script itself is sent, and not only its name
	reply any
	err   error
}

// MarshalBinary is the argument of the command that says which script is run. It is asked for when the command is written, perhaps long after the request was
// made, because a connection had to be made first. What nobody wants any more becomes a script that does nothing.
func (r *request) MarshalBinary() ([]byte, error) {
	wanted := r.Begin()
	switch {
	case !wanted && r.full:
		return nothing, nil
	case !wanted:
		return unknown, nil
	case r.full:
		return r.script.source, nil
	default:
		return r.script.sha, nil
	}
}

// String is what a hook that prints commands shows.
func (r *request) String() string { return string(r.script.sha) }

var (
	nothing = []byte("return 0")
	unknown = []byte(strings.Repeat("0", 40)) // no script has this name
)

// errUnwanted is the outcome of a request that was not sent because nobody waited for it, or not sent again when the server had said that it did not know the
// script. Nothing of it will be carried out.
var errUnwanted = errors.New("redis: the call had ended before its request was sent")

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

// run sends r and waits for its reply. When ctx ends first r may have been sent; if it was not, it never is.
func (p *pipeline) run(ctx context.Context, r *request) (any, error) {
	if err := p.gate.Do(ctx, r); err != nil {
		if r.token != "" && r.Sent() {
			p.open.until(r.Done(), r.token)
		}
		return nil, err
	}
	return r.reply, p.ended(ctx, r.err)
}

// alone sends a request by itself.
func (p *pipeline) alone(ctx context.Context, r *request) {
	ln, err := p.lanes.take()
	if err != nil {
		r.err = err
		return
	}
	v := ln.enter(ctx, r)
	r.reply, r.err = evaluate(p.contextOf(ctx, ln), ln.client, r)
	v.leave()
	p.note(ln, r)
	p.lanes.give(ln)
}

// note remembers requests that were sent and have no answer.
func (p *pipeline) note(ln *lane, batch ...*request) {
	var tokens []string
	for _, r := range batch {
		if r.err != nil && r.token != "" && r.Sent() && !isAnswer(r.err) && !errors.Is(r.err, errUnwanted) {
			tokens = append(tokens, r.token)
		}
	}
	if len(tokens) > 0 {
		p.open.until(ln.settled(), tokens...)
	}
}

func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// together sends requests of different callers, until the client's timeouts or Close end it, or nobody wants any of the answers.
func (p *pipeline) together(batch []*request) {
	ln, err := p.lanes.take()
	if err != nil {
		for _, r := range batch {
			r.err = err
		}
		return
	}
	ctx := p.ctx
	if ln.shared {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longestTimeout)
		defer cancel()
	}
	v := ln.enterWith(batch)
	if len(batch) == 1 {
		batch[0].reply, batch[0].err = evaluate(ctx, ln.client, batch[0])
	} else {
		runScripts(ctx, ln.client, batch)
	}
	v.leave()
	p.note(ln, batch...)
	p.lanes.give(ln)
}

// do has f use a connection by itself, and returns when ctx ends.
func (p *pipeline) do(ctx context.Context, f func(context.Context, redis.UniversalClient) error) error {
	return p.doFor(ctx, nil, f)
}

// doFor is do for a request that f sends.
func (p *pipeline) doFor(ctx context.Context, r *request, f func(context.Context, redis.UniversalClient) error) error {
	ln, err := p.lanes.take()
	if err != nil {
		return err
	}
	v := ln.enter(ctx, r)
	err = f(p.contextOf(ctx, ln), ln.client)
	v.leave()
	if r != nil {
		r.err = err
		p.note(ln, r)
	}
	p.lanes.give(ln)
	return p.ended(ctx, err)
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
	cmd := once{redis.NewCmd(ctx, r.command()...)}
	err := client.Process(ctx, cmd)
	if unknownScript(err) {
		if !r.again() {
			return nil, errUnwanted
		}
		cmd = once{redis.NewCmd(ctx, r.command()...)}
		err = client.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// again prepares r to be sent once more, in full. It reports whether anybody wants that.
func (r *request) again() bool {
	r.full = true
	return !r.Gone()
}

// The names of the commands, boxed once.
var evalsha, eval any = "evalsha", "eval"

func (r *request) command() []any {
	name := evalsha
	if r.full {
		name = eval
	}
	args := make([]any, 0, 3+len(r.keys)+len(r.args))
	args = append(args, name, r, len(r.keys))
	for _, k := range r.keys {
		args = append(args, k)
	}
	return append(args, r.args...)
}

func unknownScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }

// runScripts runs many scripts in one pipeline. What the server does not know is sent once more, in full.
func runScripts(ctx context.Context, client redis.UniversalClient, batch []*request) {
	if rest := pipelined(ctx, client, batch); len(rest) > 0 {
		pipelined(ctx, client, rest)
	}
}

// pipelined sends a batch, and returns what the server does not know and somebody still wants.
func pipelined(ctx context.Context, client redis.UniversalClient, batch []*request) (rest []*request) {
	pipe := client.Pipeline()
	cmds := make([]once, len(batch))
	for i, r := range batch {
		cmds[i] = once{redis.NewCmd(ctx, r.command()...)}
		_ = pipe.Process(ctx, cmds[i])
	}
	_, failed := pipe.Exec(ctx)
	for i, r := range batch {
		r.reply, r.err = cmds[i].outcome(failed)
		switch {
		case !unknownScript(r.err):
		case r.again():
			rest = append(rest, r)
		default:
			r.err = errUnwanted
		}
	}
	return rest
}
