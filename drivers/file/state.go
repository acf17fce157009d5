package file

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// state is what a key's file says. Instants are nanoseconds of the machine's monotonic clock.
type state struct {
	key   string
	boot  string // the boot of the machine that the instants belong to
	fence uint64 // the last one that was given

	holder  string // the holder's token; empty: nobody
	owner   string
	since   int64 // when it was granted, in microseconds of the wall clock: for people
	start   int64 // when it was granted or renewed
	expires int64

	queue []waiter
}

// waiter is a claim's place in the queue.
type waiter struct {
	token, owner string
	ttl          time.Duration
	box          string // the mailbox of its process
	ticket       uint64 // what to put into it
	seen         int64  // when its process last looked
}

// instant is a moment by the clock that all processes share, and by the one that the engine knows, read a little earlier.
type instant struct {
	mono int64
	time time.Time
}

// before returns mono, which is not later than i, as a time that is not later than mono.
func (i instant) before(mono int64) time.Time { return i.time.Add(time.Duration(mono - i.mono)) }

// after returns mono + d, but not what is before mono or beyond the end of the numbers.
func after(mono int64, d time.Duration) int64 {
	if d > time.Duration(math.MaxInt64-mono) {
		return math.MaxInt64
	}
	return mono + max(int64(d), 0)
}

// settle makes the state be that of now: what another boot left, and a hold that has expired, are over.
func (s *state) settle(boot string, now int64) {
	if s.boot != boot {
		s.boot, s.queue = boot, nil
		s.free()
	}
	if s.holder != "" && now >= s.expires {
		s.free()
	}
}

func (s *state) free() { s.holder, s.owner, s.since, s.start, s.expires = "", "", 0, 0, 0 }

// give makes token the holder. The fence rises also when the file, or all of them, were lost: it is no less than the wall clock.
func (s *state) give(token, owner string, ttl time.Duration, now instant) {
	wall := max(now.time.UnixMicro(), 0)
	s.fence = max(s.fence+1, uint64(wall))
	s.holder, s.owner, s.since = token, owner, wall
	s.start, s.expires = now.mono, after(now.mono, ttl)
}

// lengthen makes the hold last for ttl from now. One with more left stays as it was granted: what is
// left of it is no TTL that anybody asked for.
func (s *state) lengthen(ttl time.Duration, now instant) {
	if end := after(now.mono, ttl); end > s.expires {
		s.start, s.expires = now.mono, end
	}
}

// grant is the holder's, whose TTL has been counted since start.
func (s *state) grant(now instant) driver.Grant {
	return driver.Grant{Fence: s.fence, TTL: time.Duration(s.expires - s.start), Start: now.before(s.start)}
}

// heldByAnother reports whether a token other than this one holds the key.
func (s *state) heldByAnother(token string) bool { return s.holder != "" && s.holder != token }

// unknown reports whether a token neither holds the key nor waits for it.
func (s *state) unknown(token string) bool { return s.holder != token && s.place(token) < 0 }

func (s *state) place(token string) int {
	return slices.IndexFunc(s.queue, func(w waiter) bool { return w.token == token })
}

// leave reports whether token was in the queue.
func (s *state) leave(token string) bool {
	i := s.place(token)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
}

// enqueue puts w at the end, or keeps the place it has, and returns that.
func (s *state) enqueue(w waiter) int {
	i := s.place(w.token)
	if i < 0 {
		i = len(s.queue)
		s.queue = append(s.queue, waiter{})
	}
	s.queue[i] = w
	return i
}

// lookEvery is how long a waiter with this TTL waits at most before it looks again, and says by that that it is there.
func lookEvery(ttl time.Duration) time.Duration {
	return min(max(ttl/3, 50*time.Millisecond), 2*time.Second)
}

// silent reports that w's process has not looked for so long that it must be stopped or gone. One
// that looked in the future is nobody's.
func (w waiter) silent(now int64) bool {
	return w.seen > now || w.seen < now-4*int64(lookEvery(w.ttl))
}

// awaited reports whether somebody who is there is in the queue.
func (s *state) awaited(now int64) bool {
	return slices.ContainsFunc(s.queue, func(w waiter) bool { return !w.silent(now) })
}

var errBody = errors.New("it does not hold what a lock's file holds")

const (
	// maxFence is beyond every clock, and far below the end of the numbers: a forged fence must
	// not make the next one begin at zero. After it a key is given to nobody.
	maxFence = 1 << 62

	// maxFloor leaves as many fences again to every key: one that is forged must not use up those
	// of the others.
	maxFloor = maxFence / 2

	// maxSince is in the year 6536: a year of more than four digits cannot be written as JSON.
	maxSince = 1 << 57
)

var errNoFence = errors.New("no fence is left")

func (s *state) encode(b []byte) []byte {
	b = putText(b, s.key)
	b = putText(b, s.boot)
	b = binary.LittleEndian.AppendUint64(b, s.fence)
	b = putText(b, s.holder)
	b = putText(b, s.owner)
	for _, n := range []int64{s.since, s.start, s.expires} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.AppendUvarint(b, uint64(len(s.queue)))
	for _, w := range s.queue {
		b = putText(b, w.token)
		b = putText(b, w.owner)
		b = putText(b, w.box)
		for _, n := range []uint64{uint64(w.ttl), w.ticket, uint64(w.seen)} {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	return b
}

func decodeState(b []byte) (state, error) {
	d := decoder{b: b}
	s := state{key: d.text(), boot: d.text(), fence: d.num(), holder: d.text(), owner: d.text()}
	s.since, s.start, s.expires = d.int(), d.int(), d.int()
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		w := waiter{token: d.text(), owner: d.text(), box: d.text()}
		w.ttl, w.ticket, w.seen = time.Duration(d.int()), d.num(), d.int()
		s.queue = append(s.queue, w)
	}
	if d.bad || len(d.b) > 0 || !s.possible() {
		return state{}, errBody
	}
	return s, nil
}

// possible reports whether s can be: the checksum of a forged file may be right. Who has no token
// can be given nothing, and would make the next one be asked, too.
func (s *state) possible() bool {
	return s.fence <= maxFence && 0 <= s.since && s.since <= maxSince && 0 <= s.start && s.start <= s.expires && s.place("") < 0
}

func putText(b []byte, s string) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }

// decoder takes a text apart; bad is set when there was too little of it.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	head := d.b[:n]
	d.b = d.b[n:]
	return head
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() string { return string(d.take(d.uvarint())) }

func (d *decoder) num() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) int() int64 { return int64(d.num()) }
