package file

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// What is in a directory of locks. The name of a key's file never begins with a dot, so that the rest cannot be taken for one.
const (
	suffix     = ".dlock"    // ends the name of a key's file
	aboutName  = ".dlock"    // what the directory knows of itself
	boxPrefix  = ".dlock-w-" // the mailbox of a process that waits
	newPrefix  = ".dlock-n-" // a file that is being made, to be put in its place when it is ready
	bootPrefix = ".dlock-b-" // says by its name alone in which boot of the machine the directory was last used

	randomLen = 24 // hexadecimal digits behind a prefix
)

// readable is how long the readable part of a name may be. With everything around it, a name stays below the 143 bytes that
// encrypted file systems allow.
const readable = 120

// fileName returns the name of key's file. Small letters, digits, '-', '_' and '.' stand for themselves; every other byte is written %xx, capital
// letters too, because file systems may take 'A' for 'a'. A name that would become too long ends in a hash instead, behind a '~' that no other
// name has. The key itself is in the file, and compared.
func fileName(key string) string {
	var b strings.Builder
	b.Grow(len(key) + len(suffix))
	for i := 0; i < len(key) && b.Len() <= readable; i++ {
		if c := key[i]; plain(c) && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + hex.EncodeToString([]byte{c}))
		}
	}
	name := b.String()
	switch {
	case name == "":
		name = "~" // no key is empty, but the name must be no other file's
	case len(name) > readable:
		sum := sha256.Sum256([]byte(key))
		name = name[:readable-2*len(sum)-1] + "~" + hex.EncodeToString(sum[:])
	}
	return name + suffix
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
}

// Names that come from a shared file or directory are not believed before one of these has seen
// them. None of them accepts a slash, a control character or a name that dlock does not make.

// isKeyFile reports whether name is that of a key's file.
func isKeyFile(name string) bool {
	if !strings.HasSuffix(name, suffix) || name[0] == '.' || len(name) > readable+len(suffix) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f || !plain(byte(r)) && r != '%' && r != '~' })
}

// isLeftover reports whether name is that of a file which never got its own.
func isLeftover(name string) bool { return isRandom(name, newPrefix) }

// isBox reports whether name is that of a mailbox.
func isBox(name string) bool { return isRandom(name, boxPrefix) }

// isBoot reports whether name is that of a file which names a boot of the machine.
func isBoot(name string) bool { return isRandom(name, bootPrefix) }

// isRandom reports whether name is prefix and as many hexadecimal digits as randomName makes.
func isRandom(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && len(digits) == randomLen && strings.Trim(digits, "0123456789abcdef") == ""
}

// bootName returns the name of the file that names a boot of the machine.
func bootName(boot string) string {
	sum := sha256.Sum256([]byte(boot))
	return bootPrefix + hex.EncodeToString(sum[:randomLen/2])
}

// randomName returns a name that nobody else has.
func randomName() string {
	var raw [randomLen / 2]byte
	_, _ = rand.Read(raw[:]) // never fails; see crypto/rand
	return hex.EncodeToString(raw[:])
}
