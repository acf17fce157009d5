package dlocktest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var batchCases = []testCase{
	{"batch-equals-single", "as Renew would", "RenewBatch answers each claim in its place exactly as Renew would, whatever the others come to.", []need{needBatch}, batchEqualsSingle},
	{"batch-renews", "every hold of it", "RenewBatch makes every hold of the batch last for its own claim's TTL from the call on.", []need{needBatch}, batchRenews},
	{"batch-thousands", "thousands", "RenewBatch takes thousands of claims, and cuts them up by itself if it has to.", []need{needBatch}, batchThousands},
	{"batch-never-shortens", "never shorter", "RenewBatch never shortens: a hold with more than its claim's TTL left keeps what it has.", []need{needBatch}, batchNeverShortens},
	{"batch-large", "hundreds at once", "A batch may be large: every claim of it is answered in its place as Renew would, and renewed if it is held.", []need{needBatch}, batchLarge},
	{"batch-empty", "nothing to do", "RenewBatch without claims answers with as many renewals.", []need{needBatch}, batchEmpty},
}

// renewBatch renews claims and asserts that there is an answer for each.
func (t *caseT) renewBatch(b driver.Backend, claims []driver.Claim) []driver.Renewal {
	t.tb.Helper()
	ctx, cancel := t.limited(callLimit)
	defer cancel()
	answers := b.(driver.BatchRenewer).RenewBatch(ctx, claims)
	if len(answers) != len(claims) {
		t.Fatalf("RenewBatch of %d claims has %d answers", len(claims), len(answers))
	}
	return answers
}

func batchEqualsSingle(t *caseT) {
	a, b := t.open(), t.open()
	var claims []driver.Claim
	var holds []hold
	var owned []bool
	for i := range 7 {
		c := t.claim(fmt.Sprintf("k%d", i), ample)
		var h hold
		switch i % 4 {
		case 0, 3:
			h = t.acquire(a, c)
		case 1:
			t.acquire(b, t.claim(c.Key, ample)) // another's
		}
		claims, holds, owned = append(claims, c), append(holds, h), append(owned, i%4 == 0 || i%4 == 3)
	}
	for i, r := range t.renewBatch(a, claims) {
		switch {
		case owned[i] && r.Err != nil:
			t.Errorf("the batch answered claim %d of 7, which is held, with %q", i, r.Err)
		case owned[i] && r.Grant.Fence != holds[i].grant.Fence:
			t.Errorf("the batch answered claim %d with the fence %d, and it was acquired with %d", i, r.Grant.Fence, holds[i].grant.Fence)
		case owned[i] && r.Grant.TTL != 0 && r.Grant.TTL < claims[i].TTL:
			t.Errorf("the batch answered claim %d with a TTL of %v, want at least %v", i, r.Grant.TTL, claims[i].TTL)
		case !owned[i] && !errors.Is(r.Err, driver.ErrNotOwner):
			t.Errorf("the batch answered claim %d of 7, which is not held, with %v, want ErrNotOwner", i, r.Err)
		}
		if i%4 == 2 {
			t.free(b, claims[i].Key)
		}
	}
}

func batchRenews(t *caseT) {
	a, b := t.open(), t.open()
	var claims []driver.Claim
	for i := range 4 {
		c := t.claim(fmt.Sprintf("k%d", i), t.steady())
		t.acquire(a, c)
		c.TTL += time.Duration(i) * t.ttl / 2
		claims = append(claims, c)
	}
	t.sleep(t.steady() / 4)
	sent := time.Now()
	answers := t.renewBatch(a, claims)
	for i, r := range answers {
		if r.Err != nil {
			t.Fatalf("the batch answered claim %d of 4 with %q", i, r.Err)
		}
		t.takeOver(b, hold{Claim: claims[i], grant: r.Grant, sent: sent})
	}
}

func batchNeverShortens(t *caseT) {
	a, b := t.open(), t.open()
	var claims []driver.Claim
	var holds []hold
	for i := range 3 {
		h := t.acquire(a, t.claim(fmt.Sprintf("k%d", i), t.steady()+2*t.ttl))
		h.TTL = t.ttl
		claims, holds = append(claims, h.Claim), append(holds, h)
		holds[i].TTL = t.steady() + 2*t.ttl
	}
	for i, r := range t.renewBatch(a, claims) {
		if r.Err != nil {
			t.Fatalf("the batch answered claim %d of 3, which is held, with %q", i, r.Err)
		}
	}
	for _, h := range holds {
		t.takeOver(b, h)
	}
}

// batchLarge renews hundreds of claims, of which every seventh is held by nobody or by another.
func batchLarge(t *caseT) {
	const workers = 20
	a, b := t.open(), t.open()
	n, took := t.dryRun(a, 300, workers)
	ttl := max(t.steady(), time.Second) + 3*took
	holds := make([]hold, n)
	owned := func(i int) bool { return i%7 != 3 }
	t.each(workers, func(w int) {
		for i := w; i < n; i += workers {
			holds[i].Claim = t.claim(fmt.Sprintf("k%d", i), ttl)
			switch {
			case owned(i):
				holds[i] = t.acquire(a, holds[i].Claim)
			case i%2 == 0:
				t.acquire(b, t.claim(holds[i].Key, ample))
			}
		}
	})
	claims := make([]driver.Claim, n)
	for i, h := range holds {
		claims[i] = h.Claim
		claims[i].TTL = ample
	}
	for i, r := range t.renewBatch(a, claims) {
		switch {
		case owned(i) && r.Err != nil:
			t.Fatalf("the batch of %d answered claim %d, which is held, with %q", n, i, r.Err)
		case owned(i) && r.Grant.Fence != holds[i].grant.Fence:
			t.Fatalf("the batch of %d answered claim %d with the fence %d, and it was acquired with %d",
				n, i, r.Grant.Fence, holds[i].grant.Fence)
		case !owned(i) && !errors.Is(r.Err, driver.ErrNotOwner):
			t.Fatalf("the batch of %d answered claim %d, which is not held, with %v, want ErrNotOwner", n, i, r.Err)
		}
	}
	t.sleep(ttl + late)
	t.each(workers, func(w int) {
		for i := w; i < n; i += workers {
			if owned(i) {
				t.taken(b, claims[i].Key)
			}
		}
	})
}

// batchThousands renews claims of which every thousandth is held: acquiring all of them would take long.
func batchThousands(t *caseT) {
	b := t.open()
	claims := make([]driver.Claim, 3000)
	owned := func(i int) bool { return i%1000 == 999 }
	for i := range claims {
		if claims[i] = t.claim(fmt.Sprintf("k%d", i), ample); owned(i) {
			t.acquire(b, claims[i])
		}
	}
	for i, r := range t.renewBatch(b, claims) {
		switch {
		case owned(i) && r.Err != nil:
			t.Fatalf("the batch of %d answered claim %d, which is held, with %q", len(claims), i, r.Err)
		case !owned(i) && !errors.Is(r.Err, driver.ErrNotOwner):
			t.Fatalf("the batch of %d answered claim %d, which is not held, with %v, want ErrNotOwner", len(claims), i, r.Err)
		}
	}
}

// dryRun acquires and releases up to n keys by so many workers. It tells how many it got done within three seconds, and
// how long that took. A case whose calls have to end within a TTL measures them so before: a store with much to do
// answers later than one that has a single call to answer.
func (t *caseT) dryRun(b driver.Backend, n, workers int) (done int, took time.Duration) {
	t.tb.Helper()
	began, counts := time.Now(), make([]int, workers)
	t.each(workers, func(w int) {
		for i := w; i < n && (counts[w] == 0 || time.Since(began) < 3*time.Second); i += workers {
			c := t.claim(fmt.Sprintf("k%d", i), ample)
			t.acquire(b, c)
			t.release(b, c)
			counts[w]++
		}
	})
	return min(n, slices.Min(counts)*workers), time.Since(began)
}

func batchEmpty(t *caseT) {
	b := t.open()
	t.renewBatch(b, nil)
	c := t.claim("k", ample)
	t.acquire(b, c)
	if r := t.renewBatch(b, []driver.Claim{c}); r[0].Err != nil {
		t.Errorf("a batch of one claim, which is held, was answered with %q", r[0].Err)
	}
}
