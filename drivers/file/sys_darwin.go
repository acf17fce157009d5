package file

import (
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// monotonicClock stands still while the machine sleeps, and so do all who hold or want a lock here.
const monotonicClock = unix.CLOCK_UPTIME_RAW

// bootID tells one boot of the machine from another.
func bootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

// makeFIFO goes by the path, as there is no mkfifoat. The directory has just been found to be ours.
func (d *dir) makeFIFO(name string) error {
	return unix.Mkfifo(filepath.Join(d.path, name), d.fileMode())
}

func fileSystem(fd int) (fsKind, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return fsKind{}, err
	}
	name := unix.ByteSliceToString(s.Fstypename[:])
	return fsKind{
		name:    name,
		network: s.Flags&unix.MNT_LOCAL == 0 || slices.Contains([]string{"nfs", "smbfs", "afpfs", "webdav"}, name),
		user:    strings.Contains(name, "fuse"),
		memory:  name == "tmpfs",
	}, nil
}

// checkClock is about time namespaces, which there are none of.
func checkClock() error { return nil }

// renameNew gives a file another name that nobody has.
func renameNew(fd int, from, to string) error {
	return unix.RenameatxNp(fd, from, fd, to, unix.RENAME_EXCL)
}

// flockOwner is not told here.
func flockOwner(int) int { return 0 }

func isStopped(int) bool { return false }
