//go:build linux || darwin

package file_test

import (
	"strings"
	"testing"

	filedriver "github.com/dlock-go/dlock/drivers/file"
)

func TestTwoKeysNeverShareAFileWhateverTheFileSystemMakesOfCase(t *testing.T) {
	long := strings.Repeat("x", 1024)
	keys := []string{long, long[1:], long[:200], long[:121], long[:120], "y" + long[1:], long[:1023] + "y", strings.Repeat("\x00", 40), strings.Repeat("\x00", 41)}
	for i := range 256 {
		keys = append(keys, string([]byte{byte(i)}))
		for j := range 256 {
			keys = append(keys, string([]byte{byte(i), byte(j)}))
		}
	}
	seen := map[string]string{}
	for _, key := range keys {
		name := strings.ToLower(filedriver.FileName(key))
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q are both in the file %q", key, other, name)
		}
		seen[name] = key
	}
}

func TestNamesThatDlockDoesNotMakeAreNotBelieved(t *testing.T) {
	const digits = "0123456789abcdef01234567"
	for _, c := range []struct {
		prefix string
		is     func(name string) bool
	}{{".dlock-w-", filedriver.IsBox}, {".dlock-n-", filedriver.IsLeftover}} {
		if !c.is(c.prefix + digits) {
			t.Errorf("%q is not believed, want it to be", c.prefix+digits)
		}
		for _, name := range []string{"", "x", digits[1:], digits + "0", digits[1:] + "/", digits[1:] + "G", digits[1:] + "A", "../../../../../../x",
			"x/../../../../../target", digits[1:] + "\x00", digits[1:] + "\n", "/" + digits[1:], digits + "/../target"} {
			if c.is(c.prefix + name) {
				t.Errorf("%q is believed, want it not to be", c.prefix+name)
			}
		}
		if c.is(digits) || c.is("x"+c.prefix+digits) {
			t.Errorf("digits without the prefix %s in front are believed", c.prefix)
		}
	}
	for _, name := range []string{".dlock", "a/b.dlock", "../x.dlock", "A.dlock", "a\n.dlock", "\x1b[2J.dlock", "\xff.dlock", "é.dlock", strings.Repeat("x", 130) + ".dlock", "x"} {
		if filedriver.IsKeyFile(name) {
			t.Errorf("%q is taken for a lock's file, want it not to be", name)
		}
	}
	for _, key := range []string{"k", "..", "a/b", "Ä", "\x00", strings.Repeat("x", 1024), strings.Repeat("x", 120), strings.Repeat("x", 121), ""} {
		if name := filedriver.FileName(key); !filedriver.IsKeyFile(name) {
			t.Errorf("%q, the file of %q, is not taken for a lock's", name, key)
		}
	}
}

func TestFileNamesAreHarmless(t *testing.T) {
	for _, key := range []string{".", "..", "../../etc/passwd", "/", ".dlock", ".dlock-w-1", "a\x00b", "-rf", "a\nb", strings.Repeat("/", 1024), strings.Repeat("..", 512), ""} {
		name := filedriver.FileName(key)
		if strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\x00\n") || len(name) > 134 {
			t.Errorf("the file of %q is %q, want a short name without '/' and without a dot in front", key, name)
		}
	}
}

func TestShortKeysCanBeReadInFileNames(t *testing.T) {
	for key, want := range map[string]string{
		"nightly-report": "nightly-report.dlock",
		"app:orders/17":  "app%3aorders%2f17.dlock",
		"A.b":            "%41.b.dlock",
		".":              "%2e.dlock",
		"50%":            "50%25.dlock",
	} {
		if got := filedriver.FileName(key); got != want {
			t.Errorf("the file of %q is %q, want %q", key, got, want)
		}
	}
}
