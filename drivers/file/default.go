package file

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// defaultPlace is the user's own directory of locks. Every process of the user must come to the same one, however little there is in its environment.
func defaultPlace(getenv func(string) string, uid int) place {
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return place{path: filepath.Join(state, "dlock"), parents: true}
	}
	home := getenv("HOME")
	if !isHome(home, uid) {
		home = homeOf(uid)
	}
	if !isHome(home, uid) {
		return place{path: "/tmp/dlock-" + strconv.Itoa(uid)}
	}
	return place{path: filepath.Join(home, ".local", "state", "dlock"), parents: true}
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
