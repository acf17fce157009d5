package file

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// monotonicClock stands still while the machine is suspended, and so do all who hold or want a lock here.
const monotonicClock = unix.CLOCK_MONOTONIC

// bootID tells one boot of the machine from another.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

func (d *dir) makeFIFO(name string) error { return unix.Mkfifoat(d.fd, name, d.fileMode()) }

// fsKind is a kind of file system.
type fsKind struct {
	name    string
	network bool // other machines may have it too
	memory  bool // it is gone after a restart
}

var fsKinds = map[int64]fsKind{
	unix.NFS_SUPER_MAGIC:       {name: "nfs", network: true},
	unix.SMB_SUPER_MAGIC:       {name: "smb", network: true},
	unix.SMB2_SUPER_MAGIC:      {name: "smb", network: true},
	unix.CIFS_SUPER_MAGIC:      {name: "cifs", network: true},
	unix.NCP_SUPER_MAGIC:       {name: "ncp", network: true},
	unix.AFS_SUPER_MAGIC:       {name: "afs", network: true},
	unix.AFS_FS_MAGIC:          {name: "afs", network: true},
	unix.CODA_SUPER_MAGIC:      {name: "coda", network: true},
	unix.CEPH_SUPER_MAGIC:      {name: "ceph", network: true},
	unix.OCFS2_SUPER_MAGIC:     {name: "ocfs2", network: true},
	unix.V9FS_MAGIC:            {name: "9p", network: true},
	0x01161970:                 {name: "gfs2", network: true},
	0x0bd00bd0:                 {name: "lustre", network: true},
	0x47504653:                 {name: "gpfs", network: true},
	unix.FUSE_SUPER_MAGIC:      {name: "fuse"},
	unix.TMPFS_MAGIC:           {name: "tmpfs", memory: true},
	unix.RAMFS_MAGIC:           {name: "ramfs", memory: true},
	unix.EXT4_SUPER_MAGIC:      {name: "ext4"},
	unix.XFS_SUPER_MAGIC:       {name: "xfs"},
	unix.BTRFS_SUPER_MAGIC:     {name: "btrfs"},
	unix.OVERLAYFS_SUPER_MAGIC: {name: "overlay"},
}

func fileSystem(fd int) (fsKind, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return fsKind{}, err
	}
	return fsKinds[int64(s.Type)], nil //nolint:unconvert // it is narrower on some machines
}

// clockShifted reports whether this process sees another monotonic clock than the machine's.
func clockShifted() bool {
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return false // no time namespaces here
	}
	for line := range strings.Lines(string(offsets)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "monotonic" {
			return f[1] != "0" || f[2] != "0"
		}
	}
	return false
}

// renameNew gives a file another name that nobody has.
func renameNew(fd int, from, to string) error {
	return unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
}

// flockOwner returns the process that has the flock of a file, or 0 if the kernel does not tell.
func flockOwner(fd int) int {
	var s unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(fd, &s) != nil {
		return 0
	}
	exact := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(s.Dev)), unix.Minor(uint64(s.Dev)), s.Ino) //nolint:unconvert // it is narrower on some machines
	inode := fmt.Sprintf(":%d", s.Ino)
	var likely []int // file systems with several volumes give the kernel's list another device
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // 1: FLOCK ADVISORY WRITE pid device:inode 0 EOF
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		switch {
		case err != nil || pid <= 0: // a process that is not to be seen from here
		case f[5] == exact:
			return pid
		default:
			likely = append(likely, pid)
		}
	}
	if len(likely) == 1 {
		return likely[0]
	}
	return 0
}

// isStopped reports whether a process was stopped by a signal or a debugger.
func isStopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The name before the state is in parentheses, and may have some itself.
	state := bytes.TrimLeft(stat[bytes.LastIndexByte(stat, ')')+1:], " ")
	return len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}
