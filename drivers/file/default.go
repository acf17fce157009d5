package file

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// defaultPlace is the user's own directory of locks. Every process of the user must come to the same one, however little there is in its environment.
func defaultPlace() (place, error) {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return place{path: filepath.Join(state, "dlock"), parents: true}, nil
	}
	uid := os.Geteuid()
	for _, home := range []func(int) string{func(int) string { return os.Getenv("HOME") }, homeOf} {
		if h := home(uid); filepath.IsAbs(h) && isHome(h, uid) {
			return place{path: filepath.Join(h, ".local", "state", "dlock"), parents: true}, nil
		}
	}
	return place{path: "/tmp/dlock-" + strconv.Itoa(uid)}, nil
}

// homeOf returns the home directory of a user as the machine's own list of users has it, or nothing.
func homeOf(uid int) string {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if part := strings.Split(lines.Text(), ":"); len(part) == 7 && part[2] == strconv.Itoa(uid) {
			return part[5]
		}
	}
	return ""
}
