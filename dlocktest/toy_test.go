package dlocktest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// toy is a lock store for testing the suite: complete, and breakable in one place at a time. Where its code asks for a bug by name, the
// line before or after it is what a driver has to do.
type toy struct {
	bug string // what is wrong with it; "": nothing
	odd oddities

	mu      sync.Mutex
	locks   map[string]*toyLock
	fences  map[string]uint64 // the last one, by key
	past    map[string]bool   // tokens that once held something
	down    bool
	changed chan struct{} // closed, and made anew, whenever somebody who waits might want to look
	numbers map[string]uint64

	hung   bool                 // requests are not answered
	ended  map[string]bool      // tokens whose hold expired
	given  map[string]uint64    // the fence, by token
	times  map[string]time.Time // of the last grant, by key
	busy   atomic.Int32         // requests under way
	server chan struct{}        // whose turn it is, if it is one at a time
}

// oddities are what a store may be like.
type oddities struct {
	latency       time.Duration // of every call
	busy          time.Duration // of every call that is not alone
	serial        bool          // calls are served one after the other
	late          time.Duration // how long after it an expiry is noticed
	seconds       bool          // TTLs are rounded up to whole seconds
	noWait        bool          // Wait is not supported
	noFence       bool          // neither are fences
	hang          bool          // calls hang in an outage, until their context ends
	stragglers    bool          // what was sent while it hung is applied later
	interruptible bool          // it says that it is Interruptible, and is
	runs          int           // how many fences are reserved for each grant
	optional      bool          // none of the optional interfaces is there at all
}

// toyLock is a key that is held, or was held and has a queue.
type toyLock struct {
	name    string
	claim   driver.Claim
	client  *toyClient
	fence   uint64
	since   time.Time
	expires time.Time
	ttl     time.Duration
	renewed bool
	given   bool // from the queue, and not fetched by its Wait yet
	deleted bool // from outside, and nobody has noticed
	queue   []*toyWaiter
}

type toyWaiter struct {
	claim  driver.Claim
	client *toyClient
}

// toyClient is one client of a toy.
type toyClient struct {
	s       *toy
	n       int
	closed  bool
	done    chan struct{}
	broken  bool
	renewed map[string]driver.Grant
	turn    chan struct{}
	pool    chan struct{}           // of connections
	ends    map[string][2]time.Time // when a hold is nearly over, and when it is, by token
	gone    time.Time               // when it vanished
	sent    map[string]int          // requests that may still be applied, by token
}

var (
	errToyClosed = errors.New("toy: closed")
	errToyDown   = errors.New("toy: connection refused")
	errToyUnsure = errors.New("toy: not found, but an earlier request has no answer")
)

func newToy(bug string, odd oddities) *toy {
	return &toy{
		bug: bug, odd: odd, locks: map[string]*toyLock{}, fences: map[string]uint64{}, past: map[string]bool{},
		changed: make(chan struct{}), numbers: map[string]uint64{},
		ended: map[string]bool{}, given: map[string]uint64{}, times: map[string]time.Time{}, server: make(chan struct{}, 1),
	}
}

func (s *toy) has(bug string) bool { return s.bug == bug }

func (s *toy) client() *toyClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers["clients"]++
	return &toyClient{
		s: s, n: int(s.numbers["clients"]), done: make(chan struct{}), renewed: map[string]driver.Grant{}, turn: make(chan struct{}, 1),
		pool: make(chan struct{}, 10), ends: map[string][2]time.Time{}, sent: map[string]int{},
	}
}

// bare hides the optional interfaces.
type bare struct{ driver.Backend }

func (s *toy) store(t testing.TB) Store {
	dsn := registerToy(t, s)
	return Store{
		Driver: "dlocktest-toy", DSN: dsn,
		Open: func(testing.TB) driver.Backend {
			if s.odd.optional {
				return bare{s.client()}
			}
			return s.client()
		},
		Outage: func(down bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.down = down
			s.signal()
		},
		Hang: func(hangs bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.hung = hangs
			s.signal()
		},
		Vanish: func(b driver.Backend) {
			if wrapped, ok := b.(bare); ok {
				b = wrapped.Backend
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			b.(*toyClient).gone = time.Now()
			s.signal()
		},
		Delete: func(key string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l := s.find(s.fold(key), time.Now()); l != nil && s.has("acquire-overtakes-after-a-delete") {
				l.expires, l.deleted = time.Now(), true
			} else if l != nil {
				s.pass(l, time.Now())
			}
			if s.has("fence-reset-on-delete") {
				delete(s.fences, key)
			}
		},
	}
}

// signal has everybody who waits look again.
func (s *toy) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// find returns the lock of name as it is at now, nil if nobody holds it.
func (s *toy) find(name string, now time.Time) *toyLock {
	l := s.locks[name]
	for l != nil && s.expired(l, now) {
		s.ended[l.claim.Token] = true
		s.past[l.claim.Token] = s.past[l.claim.Token] || s.has("expired-token-still-releases")
		if s.has("fence-reset-on-expiry") {
			delete(s.fences, name)
		}
		l = s.pass(l, l.expires.Add(s.odd.late))
	}
	return l
}

func (s *toy) expired(l *toyLock, now time.Time) bool {
	switch {
	case s.has("ttl-ignored"), s.has("client-renews-by-itself") && !l.client.closed:
		return false
	case s.has("close-leaves-renewals") && l.renewed && l.client.closed:
		return false
	}
	return !now.Before(l.expires.Add(s.odd.late))
}

// pass takes l from its holder and gives it to the first in line.
func (s *toy) pass(l *toyLock, at time.Time) *toyLock {
	if !s.has("wake-up-lost") {
		defer s.signal()
	}
	if l.deleted = false; !s.has("no-liveness-of-waiters") {
		l.queue = slices.DeleteFunc(l.queue, func(w *toyWaiter) bool {
			return !w.client.gone.IsZero() && at.Sub(w.client.gone) >= w.claim.TTL
		})
	}
	if len(l.queue) == 0 {
		delete(s.locks, l.name)
		return nil
	}
	i := 0
	if s.has("queue-is-lifo") {
		i = len(l.queue) - 1
	}
	w := l.queue[i]
	if !s.has("handed-over-stays-queued") {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	s.give(l, w.client, w.claim, at)
	l.given = true
	return l
}

func (s *toy) give(l *toyLock, c *toyClient, claim driver.Claim, at time.Time) {
	l.claim, l.client, l.since, l.renewed, l.given = claim, c, at, false, false
	l.fence = s.nextFence(l.name, c, claim)
	l.ttl = s.ttl(claim.TTL)
	l.expires = at.Add(l.ttl)
}

// ttl is what the store sets when d is asked for.
func (s *toy) ttl(d time.Duration) time.Duration {
	switch {
	case s.has("ttl-floored-to-milliseconds"):
		return d.Truncate(time.Millisecond)
	case s.has("ttl-floored-in-silence"):
		return d.Truncate(100 * time.Millisecond)
	case s.has("ttl-halved"):
		return d / 2
	case s.has("ttl-in-whole-seconds"):
		return max(time.Second, d.Truncate(time.Second))
	case s.has("ttl-overflows"):
		return time.Duration(int32(d.Microseconds())) * time.Microsecond
	case s.odd.seconds:
		return (d + time.Second - 1).Truncate(time.Second)
	}
	return d
}

func (s *toy) nextFence(name string, c *toyClient, claim driver.Claim) uint64 {
	const base = 1000
	n, last := s.fences[name], s.times[name]
	s.times[name] = time.Now()
	if n == 0 || s.has("fence-forgotten-after-5s") && time.Since(last) > 5*time.Second {
		n = base
	}
	n += uint64(max(1, s.odd.runs))
	switch {
	case s.has("fence-per-client"):
		id := fmt.Sprint(c.n, name)
		s.fences[id]++
		return base + s.fences[id]
	case s.has("fence-repeats"):
		s.numbers[name]++
		return base + s.numbers[name]/2
	case s.has("fence-by-the-clock-in-ms"):
		return uint64(time.Now().UnixMilli())
	case s.has("fence-wraps"):
		s.fences[name] = n
		return base + n%256
	case s.has("fence-in-a-float"):
		s.fences[name] = n
		return uint64(float64(1<<53 + n))
	case s.has("fence-runs-overlap"):
		n -= uint64(s.odd.runs - 1)
	case s.has("token-remembers-its-fence"):
		if s.given[claim.Token] == 0 {
			s.given[claim.Token], s.fences[name] = n, n
		}
		return s.given[claim.Token]
	case s.has("fence-taken-before-the-lock"):
		return s.numbers[claim.Token]
	}
	s.fences[name] = n
	return n
}

// name is the key in the store.
func (s *toy) name(c *toyClient, key string) string {
	if s.has("client-has-its-own-locks") {
		return fmt.Sprint(c.n, key)
	}
	return s.fold(key)
}

// fold is key as a driver writes it down that does so badly.
func (s *toy) fold(key string) string {
	if fold := folds[s.bug]; fold != nil {
		return fold(key)
	}
	return key
}

// folds are ways to write keys down that are not injective.
var folds = map[string]func(string) string{
	"key-hashed-to-few":   func(k string) string { return fmt.Sprint(len(k), k[:1]) },
	"key-cut-at-nul":      func(k string) string { k, _, _ = strings.Cut(k, "\x00"); return k },
	"key-loses-line-ends": func(k string) string { return strings.NewReplacer("\r", "", "\n", "").Replace(k) },
	"key-trimmed":         strings.TrimSpace,
	"key-made-valid-utf8": func(k string) string { return strings.ToValidUTF8(k, "\ufffd") },
	"key-normalized": func(k string) string {
		return strings.NewReplacer("e\u0301", "é", "ﬁ", "fi", "\u200b", "").Replace(k)
	},
	"key-lower-cased":       strings.ToLower,
	"key-is-its-hash-tag":   hashTag,
	"key-unescaped":         func(k string) string { return strings.NewReplacer("%2F", "/", "%2f", "/", "%7B", "{").Replace(k) },
	"key-loses-slashes":     func(k string) string { return strings.Trim(k, "/") },
	"key-is-a-clean-path":   path.Clean,
	"key-made-a-file-name":  func(k string) string { return strings.Map(fileName, k) },
	"key-loses-its-prefix":  func(k string) string { return k[strings.LastIndexByte(k, ':')+1:] },
	"key-loses-its-suffix":  func(k string) string { return strings.TrimSuffix(k, ".lock") },
	"key-cut-at-255-bytes":  func(k string) string { return k[:min(len(k), 255)] },
	"key-cut-at-1100-bytes": func(k string) string { return k[:min(len(k), 1100)] },
	"key-loses-astral-characters": func(k string) string {
		return regexp.MustCompile(`[\x{10000}-\x{10ffff}]`).ReplaceAllString(k, "?")
	},
	"key-read-as-a-number":  asNumber,
	"key-hashed-to-16-bits": func(k string) string { h := fnv.New32a(); h.Write([]byte(k)); return fmt.Sprint(h.Sum32() & 0xffff) },
	"key-cut-at-1000-bytes": func(k string) string { return k[:min(len(k), 1000)] },
}

func asNumber(k string) string {
	if n, err := strconv.ParseInt(k, 10, 64); err == nil {
		return fmt.Sprint(n)
	}
	return k
}

func hashTag(k string) string {
	if _, rest, ok := strings.Cut(k, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return k
}

func fileName(r rune) rune {
	if strings.ContainsRune(`*?[]|<>`, r) {
		return '_'
	}
	return r
}

// owns reports whether claim is that of l's holder.
func (s *toy) owns(l *toyLock, claim driver.Claim) bool {
	token := claim.Token
	switch {
	case l == nil:
		return false
	case s.has("token-compared-by-prefix"):
		return l.claim.Token[:8] == token[:8]
	case s.has("token-may-be-cut"):
		return strings.HasPrefix(l.claim.Token, token)
	case s.has("token-compared-without-case"):
		return strings.EqualFold(l.claim.Token, token)
	case s.has("owner-text-is-the-token"):
		return l.claim.Owner == claim.Owner
	case s.has("token-found-in-the-owner"):
		return strings.Contains(l.claim.Token+" "+l.claim.Owner, token)
	}
	return l.claim.Token == token
}
