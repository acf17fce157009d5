package redis

import "strings"

// encode makes a lock's key of a claim's. Braces would choose the slot in a cluster, and '%' is what they are encoded with.
var encode = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D").Replace

// decode undoes encode.
var decode = strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%").Replace

// keys are the keys of one lock: itself, its fence, its queue, who waits. The hash tag puts the others into the slot of the first.
func keys(key string) []string {
	l := encode(key)
	tagged := l + "{" + l + "}"
	return []string{l, tagged + ":f", tagged + ":q", tagged + ":w"}
}
