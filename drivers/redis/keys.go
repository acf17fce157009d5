package redis

import "strings"

// encode makes a lock's key of a claim's. A name with a hash tag keeps its braces, because whoever else uses the same key must meet us there. In any other name they
// would choose the slot, together with those of the companions, and are encoded, and so is '%' always, which marks the companions.
func encode(key string) string {
	switch {
	case !strings.ContainsAny(key, "%{}"):
		return key
	case tagged(key):
		return strings.ReplaceAll(key, "%", "%25")
	default:
		return encodeAll(key)
	}
}

var encodeAll = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D").Replace

// decode undoes encode.
var decode = strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%").Replace

// tagged reports whether a key has a hash tag, as Redis defines it: something between its first '{' and the first '}' behind that.
func tagged(key string) bool {
	_, rest, ok := strings.Cut(key, "{")
	return ok && strings.IndexByte(rest, '}') > 0
}

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

// companions are the keys beside a lock, in its slot. The scripts know them too. In no lock's name a '%' has anything but two hexadecimal digits behind it.
func companions(lock string) (fence, queue, who string) {
	stem := lock + "%"
	if !tagged(lock) {
		stem += "{" + lock + "}"
	}
	return stem + "f", stem + "q", stem + "w"
}

// isCompanion reports whether a key in the server is named like a companion.
func isCompanion(key string) bool {
	for {
		_, rest, found := strings.Cut(key, "%")
		if !found {
			return false
		}
		if len(rest) < 2 || !isHex(rest[0]) || !isHex(rest[1]) {
			return true
		}
		key = rest
	}
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' || 'a' <= c && c <= 'f' }

// scanPattern matches at least the locks whose keys begin with prefix. How a brace is written depends on what follows it.
func scanPattern(prefix string) string {
	if i := strings.IndexAny(prefix, "{}"); i >= 0 {
		prefix = prefix[:i]
	}
	return globEscape(strings.ReplaceAll(prefix, "%", "%25")) + "*"
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace
