// Package file keeps locks in a directory of this machine. There is no server: processes that use the same directory exclude each other. Import it for
// its side effect and open it as "file":
//
//	dlock.Open("file", "file:///var/lib/myapp/locks", cfg)
//
// It works on Linux and macOS. Elsewhere opening it is an error that matches [errors.ErrUnsupported].
//
// # DSN
//
//	file:///absolute/path           the locks in that directory
//	file:///absolute/path?group=on  shared by the members of its group
//	file:// or nothing              the user's own directory, see below
//
// There are no other parameters. A relative path is refused: processes that are started in different directories would not meet. The directory is made if it is missing,
// but the one above it must be there, so that a slip of the pen does not become a place of its own. One for a group to share must be there.
//
// The user's own directory is the first of these that is absolute and usable:
//
//	$XDG_STATE_HOME/dlock
//	$HOME/.local/state/dlock     if $HOME belongs to the user and is not on a network
//	~user/.local/state/dlock     with the home that /etc/passwd names, likewise
//	/tmp/dlock-UID
//
// Every process of a user has to come to the same one, also a cron job or a service with next to nothing in its environment. That is why the home directory is looked up if the environment does
// not know it, why one that belongs to somebody else (sudo keeps it) is not used, and why TMPDIR is not asked. XDG_STATE_HOME is, because it is set on purpose; whoever sets it has to set it for cron too. A
// service with a private /tmp, and two users who have to exclude each other, need a DSN.
//
// # What it promises
//
//   - All that the driver contract asks for: tokens, TTLs, fences, first come first served. A process that is killed, at whatever point, leaves either the state before its call or the
//     state after it; its lock goes to the next one after the TTL.
//   - TTLs are counted by the machine's monotonic clock, which nobody can set. It is the clock that Go's timers go by, so a holder's deadline and the expiry of its hold cannot drift apart. While
//     the machine is suspended it stands still for everybody.
//   - Fences are no less than the wall clock in microseconds, and rise also when that is set back, when a file is removed because nobody needs it, and over restarts of the machine.
//   - Who waits is given the lock by whoever releases it, and told so through a named pipe. One that was killed is passed over at once, one that is stopped after 4/3 of its TTL, but not before 0.2 and not after 8
//     seconds; it queues again when it goes on.
//   - A file that is damaged gives its lock to nobody: every call about the key returns an error that
//     names the file. So does a file of more than 4 MiB. Only an empty file is a free lock. After a
//     restart of the machine, when nobody can hold anything, damaged files are removed.
//
// # What it does not
//
//   - One machine only. A directory on a network or FUSE file system is refused. Containers that
//     share a directory must share the kernel. A process that has a boot id of its own, as LXC and
//     systemd-nspawn give to a container, or a time namespace with another clock, is refused.
//   - A process that is stopped (SIGSTOP) within the few microseconds of a call keeps others from
//     that key, beyond its TTL, until it goes on or is killed. Their calls return when their context
//     ends, or after 5 seconds with an error; Acquire after 2 seconds. On Linux Acquire returns
//     after 0.2 seconds, and the error says which process it is.
//   - Whoever removes or truncates a file takes the lock from its holder, who learns of it at its next renewal.
//   - A hold does not end when its process does, but after the TTL: the process may have children who go on.
//
// # Files
//
// A directory belongs to its user and has the mode 0700, its files 0600. One that another user owns, that others can write to, or that is a symbolic link is refused. With group=on it must have the mode
// 2770 (install -d -m 2770 -g GROUP DIRECTORY) and must not be sticky, and its files have 0660. All members of the group are then trusted with all of its locks:
// they can remove, forge and withhold them. They cannot reach through another member what is outside the directory.
//
// A key's file is named like the key, with %xx for everything but small letters, digits, '-', '_' and '.', and ends in .dlock; of a long key the end is replaced by a hash. It has two records of
// which one counts, so that a change is a write to the other one, and a byte that says so. Files are written in place, because replacing them by rename makes
// file systems write to the disk. Nothing but the directory's own file is synced: when the machine crashes all holders are gone.
//
// Files stay for a while after the lock was released. They are removed in the background about once a minute, by any process that uses the directory, and whenever one
// process has made 256. Before a file goes, its fence is noted in the directory's own file, .dlock. An empty file beside it names the boot of the machine, .dlock-b- and a hash.
package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("file", Driver{}) }

// Driver opens directories by DSN. It is registered as "file", and its zero value can be used without the registry.
type Driver struct{}

// place is where the locks are.
type place struct {
	path    string
	parents bool // make what is missing above it
	group   bool // members of its group share it
}

// Option changes a Backend that New makes.
type Option func(*place)

// WithGroup lets the members of the directory's group share the locks. Each of them can then remove or forge those of the others. The directory must be there and have the mode 2770.
// Default: only its owner uses it.
func WithGroup() Option { return func(p *place) { p.group = true } }

// New returns a Backend for the locks in dir, which must be an absolute path; the empty path is the default directory. Nothing is opened or made before the first call.
// The Backend also is a [driver.Waiter], [driver.Inspector], [driver.Breaker], [driver.Pinger] and [driver.Doctor].
func New(dir string, opts ...Option) (driver.Backend, error) {
	where, err := placeOf(dir)
	if err != nil {
		return nil, err
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&where)
		}
	}
	return newBackend(where)
}

// Open returns a Backend for dsn; see the package's documentation for its form. Nothing is opened or made before the first call.
func (Driver) Open(dsn string) (driver.Backend, error) {
	if dsn == "" {
		return New("")
	}
	d, err := driver.ParseDSN(dsn, "file")
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	var opts []Option
	if d.Bool("group", false) {
		opts = append(opts, WithGroup())
	}
	if d.User != "" || d.Password != "" || len(d.Hosts) > 0 {
		return nil, fmt.Errorf("file: %w: it must be file:///absolute/path, without user, password or host", driver.ErrInvalidDSN)
	}
	if err := d.Err(); err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	b, err := New(d.Path, opts...)
	if errors.Is(err, errRelative) {
		err = fmt.Errorf("%w: %w", driver.ErrInvalidDSN, err)
	}
	return b, err
}

var errRelative = errors.New("file: the directory must be an absolute path: processes that are started in different directories would not meet")

func placeOf(dir string) (place, error) {
	switch {
	case dir == "":
		return defaultPlace(os.Getenv, os.Geteuid()), nil
	case !filepath.IsAbs(dir):
		return place{}, errRelative
	}
	return place{path: filepath.Clean(dir)}, nil
}
