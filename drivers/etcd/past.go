package etcd

import (
	"slices"
	"time"
)

// past is the keys that are not in the book any more, and of which a request may still be on its
// way. Whoever releases such a claim, again and again because of that, need not look for its key
// among all those of its lock. It is guarded by Backend.mu.
type past struct {
	names map[string]pastNames // by the index in the book
	full  int                  // how many there may be before those that are over are looked for
}

type pastNames struct {
	names []string
	until time.Time // when nobody asks any more
}

// There may be leastPast in any case, and mostPast at most: a claim that was forgotten is looked
// for.
const (
	leastPast = 64
	mostPast  = 1 << 16
)

// add notes that the key of the claim with this index may have this name.
func (p *past) add(index, name string, until time.Time) {
	if p.names == nil {
		p.names, p.full = map[string]pastNames{}, leastPast
	}
	n := p.names[index]
	if n.until = until; !slices.Contains(n.names, name) {
		n.names = append(n.names, name)
	}
	if p.names[index] = n; len(p.names) > p.full {
		p.forget(time.Now())
	}
}

// forget drops those that are over. It is next called when there are twice as many as are left.
func (p *past) forget(now time.Time) {
	for index, n := range p.names {
		if now.After(n.until) {
			delete(p.names, index)
		}
	}
	for index := range p.names {
		if len(p.names) <= mostPast/2 {
			break
		}
		delete(p.names, index)
	}
	p.full = max(2*len(p.names), leastPast)
}

// of returns the names that the key of a claim may have; none if it is not among these.
func (p *past) of(index string) []string { return p.names[index].names }
