package redis

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]. The TTL of the answer is the one that was asked for, also where more is left at the server: that is counted by the server's
// clock, which may have been set back.
func (b *Backend) Renew(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	r := b.RenewBatch(ctx, []driver.Claim{c})[0]
	return r.Grant, r.Err
}

// renewBatchSize is how many locks one script renews. A script that takes long keeps everybody else waiting.
const renewBatchSize = 200

// RenewBatch implements [driver.BatchRenewer]. The client reads on when ctx is canceled, until its
// timeout has passed, so the call leaves it behind. The claims are copied for it.
func (b *Backend) RenewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	answers := make(chan []driver.Renewal, 1)
	mine := slices.Clone(claims)
	go func() { answers <- b.renewBatch(ctx, mine) }()
	select {
	case a := <-answers:
		return a
	case <-ctx.Done():
	}
	select { // an answer that is there counts
	case a := <-answers:
		return a
	default:
		return slices.Repeat([]driver.Renewal{{Err: classify("renew", ctx.Err())}}, len(claims))
	}
}

func (b *Backend) renewBatch(ctx context.Context, claims []driver.Claim) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	if err := b.ready(ctx); err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	batch := b.renewRequests(claims)
	if len(batch) == 1 {
		batch[0].reply, batch[0].err = evaluate(ctx, b.renewer, batch[0])
	} else {
		runScripts(ctx, b.renewer, batch)
	}
	batch = b.renewOneByOne(ctx, batch)
	rest := answers
	for _, r := range batch {
		r.renewals(rest[:len(r.keys)])
		rest = rest[len(r.keys):]
	}
	return answers
}

// renewRequests makes requests for claims, in their order. Those of one request have the same TTL, and in a cluster it is for one lock, because the
// keys of a script must be in one slot. The arguments are pointers into claims.
func (b *Backend) renewRequests(claims []driver.Claim) (batch []*request) {
	size := renewBatchSize
	if b.cluster.on() {
		size = 1
	}
	var r *request
	for i, c := range claims {
		if r == nil || len(r.keys) == size || c.TTL != claims[i-1].TTL {
			n := min(size, len(claims)-i)
			r = &request{script: renewScript(), keys: make([]string, 0, n), args: append(make([]any, 0, n+1), millis(c.TTL))}
			batch = append(batch, r)
		}
		r.keys = append(r.keys, encode(c.Key))
		r.args = append(r.args, &claims[i].Token)
	}
	return batch
}

// renewOneByOne sends the locks of a request that was refused once more, each by itself. A server refuses a script for the sake of one key that the user may not
// use, and the others are not to blame. It returns the requests that count, in the same order.
func (b *Backend) renewOneByOne(ctx context.Context, batch []*request) []*request {
	var whole, single []*request
	for _, r := range batch {
		if len(r.keys) == 1 || !refused(r.err) {
			whole = append(whole, r)
			continue
		}
		for i, key := range r.keys {
			one := &request{script: r.script, keys: []string{key}, args: []any{r.args[0], r.args[i+1]}}
			whole, single = append(whole, one), append(single, one)
		}
	}
	if len(single) == 0 {
		return batch
	}
	runScripts(ctx, b.renewer, single)
	return whole
}

// renewals takes the reply of the renew script apart.
func (r *request) renewals(answers []driver.Renewal) {
	text, refusals := r.renewed()
	words := 1 + strings.Count(text, " ")
	for i := range answers {
		switch {
		case r.err != nil:
			answers[i].Err = classify("renew", r.err)
		case words != len(answers):
			answers[i].Err = unexpected("renew", r.reply)
		default:
			var word string
			if word, text, _ = strings.Cut(text, " "); word == "!" && len(refusals) > 0 {
				answers[i].Err, refusals = classify("renew", refusals[0]), refusals[1:]
				continue
			}
			answers[i].Grant, answers[i].Err = renewal(word, r.args[0].(int64))
		}
	}
}

// renewed is what the script said: a word for each lock, and the server's answer for each that was refused.
func (r *request) renewed() (words string, refusals []error) {
	list, ok := r.reply.([]any)
	if !ok {
		words, _ = r.reply.(string)
		return words, nil
	}
	for i, v := range list {
		if text, _ := v.(string); i == 0 {
			words = text
		} else {
			refusals = append(refusals, answer(text))
		}
	}
	return words, refusals
}

// renewal reads the answer for one lock, whose TTL in milliseconds was to be ttl.
func renewal(word string, ttl int64) (driver.Grant, error) {
	if word == "-" {
		return driver.Grant{}, driver.ErrNotOwner
	}
	fence, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return driver.Grant{}, unexpected("renew", word)
	}
	return driver.Grant{Fence: fence, Fences: fences, TTL: time.Duration(ttl) * time.Millisecond}, nil
}
