package fusefs

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// notifier tells the kernel what it has to forget. Its calls may wait for
// requests that are under way, in a directory or for a page, so they are made
// where no request waits for their maker.
type notifier struct {
	server *fuse.Server
	device *os.File // a duplicate of the connection; nil: names cannot be expired
}

// What the library cannot say: a name that has expired is asked for again, and
// stays as it is for those who have it, as their working directory for example.
const (
	notifyEntry = 3 // FUSE_NOTIFY_INVAL_ENTRY
	expireOnly  = 1 // FUSE_EXPIRE_ONLY; before Linux 6.2 the name is dropped
)

func (n *notifier) close() {
	if n.device != nil {
		n.device.Close()
	}
}

// attr makes the kernel ask for attributes again. It does not wait.
func (n *notifier) attr(id uint64) { n.server.InodeNotify(id, -1, 0) }

// content makes it ask for attributes and content again.
func (n *notifier) content(id uint64) { n.server.InodeNotify(id, 0, 0) }

// expire makes it look for a name again, or for its absence.
func (n *notifier) expire(dir uint64, name string) {
	if n.device == nil {
		n.server.EntryNotify(dir, name)
		return
	}
	// struct fuse_out_header, struct fuse_notify_inval_entry_out, the name and a NUL
	const headSize, entrySize = 16, 16
	b := make([]byte, headSize+entrySize, headSize+entrySize+len(name)+1)
	b = append(append(b, name...), 0)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], notifyEntry)
	binary.NativeEndian.PutUint64(b[headSize:], dir)
	binary.NativeEndian.PutUint32(b[headSize+8:], uint32(len(name)))
	binary.NativeEndian.PutUint32(b[headSize+12:], expireOnly)
	// Not by Write, which lets only one caller in: this may wait.
	if conn, err := n.device.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), b) })
	}
}

// gone tells that a name was removed together with its file.
func (n *notifier) gone(dir, child uint64, name string) {
	if !n.server.DeleteNotify(dir, child, name).Ok() {
		n.expire(dir, name)
	}
}

// connecting is held while a connection to the kernel is made.
var connecting sync.Mutex

// connectKernel mounts, and returns a duplicate of the connection when it can
// tell which one it is.
func connectKernel(fs fuse.RawFileSystem, dir string, o *fuse.MountOptions) (*fuse.Server, *os.File, error) {
	connecting.Lock()
	defer connecting.Unlock()
	before := connections()
	server, err := fuse.NewServer(fs, dir, o)
	if err != nil {
		return nil, nil, err
	}
	var fresh []int
	for fd := range connections() {
		if !before[fd] {
			fresh = append(fresh, fd)
		}
	}
	if len(fresh) != 1 {
		return server, nil, nil
	}
	fd, err := unix.FcntlInt(uintptr(fresh[0]), syscall.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return server, nil, nil
	}
	return server, os.NewFile(uintptr(fd), fuseDevice), nil
}

// connections are the descriptors of this process that are open on the FUSE
// device.
func connections() map[int]bool {
	found := map[int]bool{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return found
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && target == fuseDevice {
			if fd, err := strconv.Atoi(e.Name()); err == nil {
				found[fd] = true
			}
		}
	}
	return found
}
