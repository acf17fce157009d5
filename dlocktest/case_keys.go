package dlocktest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

var keyCases = []testCase{
	keyCase("key-nul", "NUL", "a", "a\x00", "a\x00b", "\x00a", "\x00", "\x00\x00"),
	keyCase("key-crlf", "line ends", "a", "a\n", "a\r\n", "a\r", "\na", "\r\n", "a\r\nb", "a\nb", "ab"),
	keyCase("key-blank", "blanks", "a b", "a", "a ", " a", " ", "  ", "a\t", "\t", "ab", "a+b", "a_b", "a  b"),
	keyCase("key-utf8", "bytes that are no text", "\xff", "\xfe", "\xc3\x28", "\ufffd", "\xef\xbf", "a\xff", "a\xfe", "\xed\xa0\x80"),
	keyCase("key-unicode", "texts that look the same", "é", "e\u0301", "É", "ﬁ", "fi", "a\u200b", "a\u00a0", "ａ", "a"),
	keyCase("key-emoji", "characters beyond the first plane", "🔒", "🔑", "🔒🔒", "😀", "𝒜", "𝒝", "a🔒", "a🔑", "a", "?", "??", "\ufffd", "\U0010ffff", "👩\u200d🔬", "👩🔬"),
	keyCase("key-numbers", "texts that look like numbers", "1", "01", "1.0", "+1", "1e0", "0x1", "１", "0", "00", "-0", "true", "null",
		"9007199254740992", "9007199254740993", "18446744073709551616", "1_0", "10"),
	keyCase("key-case", "upper and lower case", "key", "Key", "KEY", "kEY", "ß", "ss", "ı", "i", "I"),
	keyCase("key-braces", "braces", "a", "{a}", "{a", "a}", "{}a", "{", "}", "{a}b", "{a}{a}", "b", "{b}a"),
	keyCase("key-percent", "escapes", "a/b", "a%2Fb", "a%2fb", "a%252Fb", "%", "%%", "%41", "A", "%7B", "{", `a\x2fb`, "&#47;"),
	keyCase("key-slashes", "slashes", "a", "a/", "/a", "//a", "a//", "/", "//", "a/b", "a//b", `a\b`, `a\`, "a/b/"),
	keyCase("key-dots", "dots", ".", "..", "../a", "a/..", "a/../a", "./a", "a/.", "a", "...", "b/../a", "a."),
	keyCase("key-wildcards", "wildcards", "*", "?", "a*", "a?", "a[b]", "ab", "ac", "a%", "a_", "^a", "a$", "a.c", "a-z"),
	keyCase("key-separators", "separators", "a:b", "a:b:", ":a:b", "a", "b", "a|b", "a,b", "a;b", "a=b", "a@b", "a#b", "a'b", `a"b`, "a--b"),
	keyCase("key-companions", "names that a driver might use itself", "k", "k:f", "k:q", "k:w", "k{k}:f", "k{k}:q", "k{k}:w", "k/", "k/0", "k.lock", "k.tmp",
		"k:fence", "k:queue", "k:waiters", "k-fence", "fence", "fence:k", "lock:k", "queue:k", "0", "~k", "_k"),
	keyCase("key-long", "1,536 bytes, which is a prefix and a key", long("x"), long("y"), long("x")[:1535], long("x")[:1024], long("x")[:1023], long("x")[:512],
		long("x")[:255], long("x")[:128], "y"+long("x")[1:], long("x")[:600]+"y"+long("x")[601:], long("x")[:1200]+"y"+long("x")[1201:]),
	{"key-thousands", "thousands of keys", "Two different keys share no state, and be they two out of thousands.", nil, keyThousands},
}

// long is a key of the greatest length that ends in tail.
func long(tail string) string { return strings.Repeat("x", 1536-len(tail)) + tail }

// keyThousands holds so many keys that a hash of 16 bits makes some of them the same.
func keyThousands(t *caseT) {
	const n, workers = 2000, 40
	b := t.open()
	t.each(workers, func(int) {
		for range t.rounds(n / workers) {
			c := t.claim("order:"+newToken(), ample)
			if _, ok := t.try(b, c); !ok {
				t.Fatalf("Acquire of %q returned ErrHeld, and only other keys are held", c.Key)
			}
		}
	})
}

// keyCase is a case about keys that a driver might mix up.
func keyCase(id, name string, keys ...string) testCase {
	return testCase{id, name, "Two different keys share no state, whatever bytes they contain: " + name + ".", nil,
		func(t *caseT) { t.isolated(slices.Clone(keys)) }}
}

// isolated asserts that each of keys is a lock of its own.
func (t *caseT) isolated(keys []string) {
	a, b := t.open(), t.open()
	claims := make([]driver.Claim, len(keys))
	for i, key := range keys {
		claims[i] = t.claim(key, ample)
		if _, ok := t.try(a, claims[i]); !ok {
			t.Fatalf("Acquire of %s returned ErrHeld, and only these are held: %s", show(key), show(keys[:i]...))
		}
	}
	for i, c := range claims {
		t.taken(b, c.Key)
		t.renew(a, c)
		t.release(a, c)
		t.notOwner("Renew of "+show(c.Key)+", which was released", t.tryRenew(a, c))
		if i > 0 {
			t.free(b, keys[i-1])
		}
	}
	slices.Reverse(keys)
	for i, key := range keys {
		claims[i] = t.claim(key, ample)
		if _, ok := t.try(b, claims[i]); !ok {
			t.Fatalf("Acquire of %s returned ErrHeld, and everything was released", show(key))
		}
		others := []int{0, i / 2, i - 1}
		t.each(min(i, len(others)), func(n int) { t.renew(b, claims[others[n]]) })
	}
}

// show prints keys so that they can be told apart.
func show(keys ...string) string {
	var texts []string
	for _, key := range keys {
		if len(key) > 40 {
			texts = append(texts, fmt.Sprintf("%q… (%d bytes)", key[:16], len(key)))
		} else {
			texts = append(texts, fmt.Sprintf("%+q", key))
		}
	}
	return strings.Join(texts, ", ")
}
