package file_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	filedriver "github.com/dlock-go/dlock/drivers/file"
)

func init() { children["fuse"] = childFuse }

// childFuse mounts a file system of its own on dir and tries to lock something there.
func childFuse(dir string) {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		fmt.Println("skip", err)
		return
	}
	if err := unix.Mount("test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)); err != nil {
		fmt.Println("skip", err)
		return
	}
	go serveFuse(dev)
	childThief(dir)
}

// serveFuse is a file system with nothing but an empty root that belongs to the user.
func serveFuse(dev int) {
	const (
		getattr = 3
		statfs  = 17
		initial = 26
		opendir = 27
	)
	for buf := make([]byte, 1<<17); ; {
		n, err := unix.Read(dev, buf)
		if err != nil || n < 40 {
			return
		}
		var body []byte
		failure := int32(0)
		switch binary.LittleEndian.Uint32(buf[4:]) {
		case initial:
			body = make([]byte, 64)
			binary.LittleEndian.PutUint32(body, 7)         // the protocol's version
			binary.LittleEndian.PutUint32(body[4:], 31)    // and the one below
			binary.LittleEndian.PutUint32(body[20:], 4096) // the longest write
		case getattr:
			body = make([]byte, 16+88)
			binary.LittleEndian.PutUint64(body[16:], 1)                     // inode
			binary.LittleEndian.PutUint32(body[16+60:], unix.S_IFDIR|0o700) // mode
			binary.LittleEndian.PutUint32(body[16+64:], 2)                  // links
		case statfs:
			body = make([]byte, 80)
		case opendir:
			body = make([]byte, 16)
		default:
			failure = -int32(unix.ENOSYS)
		}
		head := make([]byte, 16)
		binary.LittleEndian.PutUint32(head, uint32(16+len(body)))
		binary.LittleEndian.PutUint32(head[4:], uint32(failure))
		copy(head[8:], buf[8:16]) // which request it is about
		_, _ = unix.Write(dev, append(head, body...))
	}
}

func TestADirectoryOnAFUSEFileSystemIsRefused(t *testing.T) {
	dir := t.TempDir()
	got := inNamespace(t, "fuse", dir, ":", "--mount")
	if strings.HasPrefix(got, "skip") {
		t.Skip("no FUSE file system can be mounted here: " + got)
	}
	if !strings.HasPrefix(got, "refused") || !strings.Contains(got, "FUSE") || !strings.Contains(got, dir) {
		t.Errorf("a lock on a FUSE file system: %s; want it refused, and told why", got)
	}
}

func TestFileSystemsThatOtherMachinesMayHaveAreRefused(t *testing.T) {
	for _, magic := range []int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC,
		unix.V9FS_MAGIC, 0x786f4256, 0xbacbacbc, 0x7c7c6673, 0x19830326} {
		if filedriver.Unfit(magic) == "" {
			t.Errorf("the file system %#x is taken for one of this machine", magic)
		}
	}
	for _, magic := range []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, 0x2fc12fc1} {
		if why := filedriver.Unfit(magic); why != "" {
			t.Errorf("the file system %#x is %s, want it to be usable", magic, why)
		}
	}
}
