//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
)

// dir is an open directory of locks. Everything in it is reached through its descriptor and without following links.
type dir struct {
	path  string
	group bool
	fd    int
	stat  unix.Stat_t
	boot  string
}

// thisBoot is changed by tests that restart the machine.
var thisBoot = bootID

const openFlags = unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// openDir opens the directory, makes it if it is missing, and refuses one that others could tamper with.
func openDir(where place) (*dir, error) {
	d := &dir{path: where.path, group: where.group}
	var err error
	if d.boot, err = thisBoot(); err != nil {
		return nil, fmt.Errorf("which boot of the machine this is: %w", err)
	}
	if err := checkClock(); err != nil {
		return nil, err
	}
	d.fd, err = openAt(unix.AT_FDCWD, d.path, unix.O_RDONLY|unix.O_DIRECTORY|openFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		if err = d.make(where.parents); errors.Is(err, driver.ErrPermanent) {
			return nil, err
		}
		if err == nil {
			d.fd, err = openAt(unix.AT_FDCWD, d.path, unix.O_RDONLY|unix.O_DIRECTORY|openFlags, 0)
		}
	}
	if err != nil && isLink(d.path) {
		return nil, d.refuse("it is a symbolic link; name the directory that it leads to")
	}
	if err != nil {
		return nil, d.trouble("", err)
	}
	if err := d.check(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func isLink(path string) bool {
	var s unix.Stat_t
	return fstatAt(unix.AT_FDCWD, path, &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFLNK
}

func (d *dir) make(parents bool) error {
	if d.group { // which group it is to belong to is not for us to say
		return d.refuse("it does not exist; make one for the group to share: install -d -m 2770 -g GROUP " + d.path)
	}
	if parents {
		if err := os.MkdirAll(filepath.Dir(d.path), 0o700); err != nil {
			return err
		}
	}
	if err := unix.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// check refuses a directory that cannot keep locks, or keep them safe.
func (d *dir) check() error {
	if err := unix.Fstat(d.fd, &d.stat); err != nil {
		return d.trouble("", err)
	}
	mode := d.stat.Mode
	switch {
	case d.group && mode&0o002 != 0, !d.group && mode&0o022 != 0:
		return d.refuse("it can be written by others; chmod it to 0700, or use group=on for a directory that a group shares")
	case d.group && mode&(unix.S_ISGID|0o070) != unix.S_ISGID|0o070:
		return d.refuse("with group=on its mode must be 2770, so that files belong to the group")
	case d.group && mode&unix.S_ISVTX != 0:
		return d.refuse("with group=on it must not be sticky: members have to remove each other's files; chmod -t it")
	case !d.group && d.stat.Uid != uint32(os.Geteuid()) && d.stat.Uid != 0:
		return d.refuse("it belongs to another user")
	}
	if fs, err := fileSystem(d.fd); err == nil && fs.unfit() != "" {
		return d.refuse("it is on " + fs.unfit() + "; use a directory on a disk of this machine")
	}
	return nil
}

// fsKind is a kind of file system.
type fsKind struct {
	name    string
	network bool // other machines may have it too
	user    bool // a process serves it, from wherever it likes
	memory  bool // it is gone after a restart
}

// unfit says why locks cannot be kept there, or nothing.
func (k fsKind) unfit() string {
	switch {
	case k.network:
		return "a network file system (" + k.name + "), whose machines have no clock in common"
	case k.user:
		return "a FUSE file system, which may be on a network and need not keep flock(2) between processes"
	}
	return ""
}

func (d *dir) refuse(why string) error {
	return driver.Permanent(fmt.Errorf("directory %s: %s", d.path, why))
}

// isHome reports whether path can keep the locks of a user: a directory of its own, and of this machine.
func isHome(path string, uid int) bool {
	var s unix.Stat_t
	if !filepath.IsAbs(path) || unix.Stat(path, &s) != nil || s.Mode&unix.S_IFMT != unix.S_IFDIR || int(s.Uid) != uid {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	fs, err := fileSystem(int(f.Fd()))
	return err == nil && fs.unfit() == ""
}

// same reports whether the directory's path still leads to it.
func (d *dir) same() bool {
	var s unix.Stat_t
	return fstatAt(unix.AT_FDCWD, d.path, &s) == nil && s.Ino == d.stat.Ino && s.Dev == d.stat.Dev
}

func (d *dir) close() { _ = unix.Close(d.fd) }

// fileMode is the mode of what is made in the directory.
func (d *dir) fileMode() uint32 {
	if d.group {
		return 0o660
	}
	return 0o600
}

// names returns what is in the directory.
func (d *dir) names() ([]string, error) {
	fd, err := openAt(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|openFlags, 0)
	if err != nil {
		return nil, d.trouble("", err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, d.trouble("", err)
	}
	return names, nil
}

func (d *dir) remove(name string) error {
	if err := unix.Unlinkat(d.fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return d.trouble(name, err)
	}
	return nil
}

// trouble names the file that an error is about, and marks what trying again does not mend.
func (d *dir) trouble(name string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	wrapped := fmt.Errorf("%s: %w", filepath.Join(d.path, name), err)
	for _, e := range []error{unix.EACCES, unix.EPERM, unix.EROFS, unix.ELOOP} {
		if errors.Is(err, e) {
			return driver.Permanent(wrapped)
		}
	}
	return wrapped
}

// damaged is for a file whose content cannot be believed. Who holds the lock is not known then, so it is given to nobody.
func (d *dir) damaged(name string, err error) error {
	return driver.Permanent(fmt.Errorf("%s is %w: %w; remove it when nobody holds the lock", filepath.Join(d.path, name), errDamaged, err))
}

var (
	errDamaged = errors.New("damaged")
	errClosed  = errors.New("the backend is closed")
)
