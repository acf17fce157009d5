package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
)

// monotonicClock stands still while the machine is suspended, and so do all who hold or want a lock here.
const monotonicClock = unix.CLOCK_MONOTONIC

// bootID tells one boot of the machine from another.
func bootID() (string, error) { return bootIDIn("/proc/sys/kernel/random/boot_id") }

// bootIDIn does not believe a file that somebody has put over the kernel's, as some containers do:
// with a boot of its own such a process would take the holds of all others for those of the past.
func bootIDIn(path string) (string, error) {
	id, err := readKernel(path)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(id)), nil
}

// readKernel reads a file that the kernel itself makes, and refuses any other.
func readKernel(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if s.Type != unix.PROC_SUPER_MAGIC {
		return nil, driver.Permanent(fmt.Errorf("%s is not the kernel's own file: something is mounted over it, as containers do; "+
			"processes there and elsewhere could hold a lock at the same time", path))
	}
	return io.ReadAll(io.LimitReader(f, 4096))
}

func (d *dir) makeFIFO(name string) error { return unix.Mkfifoat(d.fd, name, d.fileMode()) }

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
	0x013111a8:                 {name: "ibrix", network: true},
	0x19830326:                 {name: "beegfs", network: true},
	0x20030528:                 {name: "orangefs", network: true},
	0x61636673:                 {name: "acfs", network: true},
	0x786f4256:                 {name: "vboxsf", network: true}, // the host's, as are the next two
	0x7c7c6673:                 {name: "prl_fs", network: true},
	0xbacbacbc:                 {name: "vmhgfs", network: true},
	0xaad7aaea:                 {name: "panfs", network: true},
	0xbeefdead:                 {name: "snfs", network: true},
	unix.FUSE_SUPER_MAGIC:      {name: "fuse", user: true}, // fuseblk and virtiofs, too
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
	return fsKinds[int64(uint32(s.Type))], nil // all of them have 32 bits, signed on some machines
}

// checkClock refuses a process that sees another monotonic clock than the machine's: a hold would
// last longer or shorter for it than for the others.
func checkClock() error {
	offsets, err := readKernel("/proc/self/timens_offsets")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil // no time namespaces here
	case err != nil:
		return fmt.Errorf("whether this process is in a time namespace: %w", err)
	case shifted(string(offsets)):
		return driver.Permanent(errors.New("this process is in a time namespace: its clock is not the machine's, " +
			"so it cannot share locks with the others; start it without one"))
	}
	return nil
}

// shifted reports whether a process with these offsets sees another monotonic clock.
func shifted(offsets string) bool {
	for line := range strings.Lines(offsets) {
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
