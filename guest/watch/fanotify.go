package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

const (
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK |
		unix.FAN_REPORT_DFID_NAME | unix.FAN_REPORT_FID
	changes = unix.FAN_MODIFY | unix.FAN_CLOSE_WRITE | unix.FAN_ATTRIB | unix.FAN_CREATE | unix.FAN_DELETE |
		unix.FAN_MOVED_FROM | unix.FAN_MOVED_TO | unix.FAN_ONDIR
)

// Sizes and kinds of the kernel's structures.
const (
	headSize   = 24 // struct fanotify_event_metadata
	infoSize   = 4  // struct fanotify_event_info_header
	fsidSize   = 8
	handleSize = 8 // struct file_handle without the handle

	infoFID     = 1
	infoDirName = 2
	infoDir     = 3
)

// group is a fanotify group that watches one file system.
type group struct {
	file  *os.File
	conn  syscall.RawConn
	dir   int // a directory of the file system, that handles are opened by
	dev   uint64
	inos  bool // a handle begins with the inode number
	self  int32
	buf   [64 << 10]byte
	known map[string]uint64 // inode numbers of handles, of one reading
}

// newGroup watches the file system that dir, which it takes over, is on.
func newGroup(dir int) (g *group, err error) {
	defer func() {
		if err != nil {
			unix.Close(dir)
		}
	}()
	var st unix.Statx_t
	if err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return nil, err
	}
	fd, err := unix.FanotifyInit(groupFlags|unix.FAN_REPORT_TARGET_FID, unix.O_RDONLY|unix.O_LARGEFILE)
	if errors.Is(err, unix.EINVAL) { // Linux before 5.17
		fd, err = unix.FanotifyInit(groupFlags, unix.O_RDONLY|unix.O_LARGEFILE)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, changes, dir, ""); err != nil {
		unix.Close(fd)
		return nil, err
	}
	g = &group{file: os.NewFile(uintptr(fd), "fanotify"), dir: dir, dev: unix.Mkdev(st.Dev_major, st.Dev_minor), self: int32(os.Getpid())}
	var fs unix.Statfs_t
	g.inos = unix.Fstatfs(dir, &fs) == nil && fs.Type == unix.EXT4_SUPER_MAGIC
	if g.conn, err = g.file.SyscallConn(); err != nil {
		g.file.Close()
		return nil, err
	}
	return g, nil
}

func (g *group) close() {
	g.file.Close()
	unix.Close(g.dir)
}

// errInterrupted says that the read deadline has passed.
var errInterrupted = os.ErrDeadlineExceeded

// read returns raw events. With wait it waits for some, else none says that there are none. asking is called before the
// kernel is asked, nothing when it has none.
func (g *group) read(wait bool, asking, nothing func()) ([]byte, error) {
	var n int
	var fault error
	err := g.conn.Read(func(fd uintptr) bool {
		for {
			asking()
			n, fault = unix.Read(int(fd), g.buf[:])
			switch fault {
			case unix.EINTR:
			case unix.EAGAIN:
				n, fault = 0, nil
				nothing()
				return !wait
			default:
				return true
			}
		}
	})
	if err == nil {
		err = fault
	}
	if err != nil {
		return nil, err
	}
	return g.buf[:n], nil
}

// change is what the kernel tells.
type change struct {
	agent.WatchEvent
	own      bool // by the agent itself
	overflow bool
}

// each calls tell with every event of b.
func (g *group) each(b []byte, tell func(change)) {
	g.known = map[string]uint64{}
	for len(b) >= headSize {
		size := int(binary.NativeEndian.Uint32(b))
		if size < headSize || size > len(b) {
			return
		}
		mask := binary.NativeEndian.Uint64(b[8:])
		if fd := int32(binary.NativeEndian.Uint32(b[16:])); fd >= 0 {
			unix.Close(int(fd))
		}
		c := change{own: int32(binary.NativeEndian.Uint32(b[20:])) == g.self, overflow: mask&unix.FAN_Q_OVERFLOW != 0}
		infos := b[min(int(binary.NativeEndian.Uint16(b[6:])), size):size]
		b = b[size:]
		if c.own && mask&^(unix.FAN_CLOSE_WRITE|unix.FAN_ONDIR) == 0 {
			continue // the agent maps no files: it has told of every write already
		}
		c.Change = changeOf(mask)
		g.files(infos, &c.WatchEvent)
		if c.overflow || c.Change != 0 && (c.Dir != 0 || c.Node != 0) {
			tell(c)
		}
	}
}

func changeOf(mask uint64) (change uint32) {
	for _, x := range []struct {
		mask   uint64
		change uint32
	}{
		{unix.FAN_MODIFY | unix.FAN_CLOSE_WRITE, agent.WatchData},
		{unix.FAN_ATTRIB, agent.WatchAttr},
		{unix.FAN_CREATE, agent.WatchCreated},
		{unix.FAN_DELETE, agent.WatchDeleted},
		{unix.FAN_MOVED_FROM, agent.WatchMovedAway},
		{unix.FAN_MOVED_TO, agent.WatchMovedHere},
	} {
		if mask&x.mask != 0 {
			change |= x.change
		}
	}
	return change
}

// files reads which files an event is about.
func (g *group) files(b []byte, e *agent.WatchEvent) {
	for len(b) >= infoSize {
		kind, size := b[0], int(binary.NativeEndian.Uint16(b[2:]))
		if size < infoSize || size > len(b) {
			return
		}
		info := b[infoSize:size]
		b = b[size:]
		if len(info) < fsidSize+handleSize {
			continue
		}
		info = info[fsidSize:]
		n := int(binary.NativeEndian.Uint32(info))
		if n > len(info)-handleSize {
			continue
		}
		handle, rest := info[:handleSize+n], info[handleSize+n:]
		switch kind {
		case infoFID:
			e.Node = g.ino(handle)
		case infoDir, infoDirName:
			e.Dir = g.ino(handle)
			if kind == infoDirName {
				name, _, _ := bytes.Cut(rest, []byte{0})
				if string(name) != "." {
					e.Name = bytes.Clone(name)
				}
			}
		}
	}
	if e.Name == nil {
		e.Name = []byte{}
		if e.Node == 0 {
			e.Node = e.Dir
		}
	}
}

// Handle types of ext4 and others that begin with 32 bits of inode number.
const (
	inoGeneration       = 1
	inoGenerationParent = 2
)

// ino returns the inode number of a file's handle, 0 when the file is gone and its number with it.
func (g *group) ino(handle []byte) uint64 {
	kind := int32(binary.NativeEndian.Uint32(handle[4:]))
	if len(handle) == handleSize {
		return 0 // the kernel does not know the file
	}
	if g.inos && (kind == inoGeneration || kind == inoGenerationParent) && len(handle) >= handleSize+4 {
		return uint64(binary.NativeEndian.Uint32(handle[handleSize:]))
	}
	key := string(handle)
	if ino, ok := g.known[key]; ok {
		return ino
	}
	var ino uint64
	fd, err := unix.OpenByHandleAt(g.dir, unix.NewFileHandle(kind, handle[handleSize:]), unix.O_PATH|unix.O_CLOEXEC)
	if err == nil {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil {
			ino = st.Ino
		}
		unix.Close(fd)
	}
	g.known[key] = ino
	return ino
}
