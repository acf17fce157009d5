package file

import (
	"os"
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
