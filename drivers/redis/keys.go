package redis

import "strings"

// encode makes a lock's key of a claim's. Braces would choose the slot in a cluster, and '%' is what they are encoded with.
var encode = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D").Replace

// decode undoes encode.
var decode = strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%").Replace

// keys are the keys of one lock that its scripts are told: the lock itself, and in a cluster, which must know all of them before it runs a script, also
// its fence, its queue, and who waits.
func (b *Backend) keys(key string) []string {
	l := encode(key)
	if !b.cluster.on() {
		return []string{l}
	}
	fence, queue, who := companions(l)
	return []string{l, fence, queue, who}
}

// companions are the keys beside a lock. The hash tag puts them into its slot. The scripts know them too.
func companions(lock string) (fence, queue, who string) {
	stem := lock + "{" + lock + "}:"
	return stem + "f", stem + "q", stem + "w"
}
