package nodes

import (
	"bytes"
	"container/list"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// inode is what tells one file from another while it exists. The mount is a part of it: a file under two mounts has
// two nodes, as what may be done with them differs.
type inode struct{ mount, dev, ino uint64 }

func inodeOf(st *unix.Statx_t) inode {
	return inode{st.Mnt_id, unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}
}

// node is a file. It is held by an O_PATH descriptor or, when there are many, by the handle that its file system gives
// it; the first keeps a file that has lost its last name, with the second it is ESTALE then.
type node struct {
	id      uint64
	inode   inode
	kind    uint32 // S_IFREG, …
	lookups uint64 // guarded by table.mu

	// guarded by cache.mu
	fd     int // -1: closed, handle is set
	refs   int // operations that use fd
	pins   int // open handles: the file is to stay even without a name
	gone   bool
	place  *list.Element // in the cache's list of idle descriptors
	handle *unix.FileHandle
}

// handle is an open file or directory.
type handle struct {
	id     uint64
	fd     int
	node   *node
	table  *table
	append bool
	write  bool
	refs   atomic.Int32 // the table's and one for each operation
	dir    *listing     // nil for a file
}

// unref drops a reference and returns what close said if it was the last.
func (h *handle) unref() error {
	if h.refs.Add(-1) > 0 {
		return nil
	}
	err := unix.Close(h.fd)
	if h.table.svc.cache.unpin(h.node) {
		h.table.dropLocks(func(l lockOwner) bool { return l.node == h.node })
	}
	return err
}

// cache bounds the descriptors of nodes. When there are too many, those that were not used for longest are closed and
// opened again by file handle when they are needed.
type cache struct {
	soft       int // descriptors above which idle ones are closed
	hard       int // descriptors above which no node is made
	maxNodes   int // of one table
	maxHandles int // of one table

	mu     sync.Mutex
	open   int
	idle   list.List // *node, the one used last in front
	mounts map[uint64]*mount
}

// mount is a mount that nodes are on. Its descriptor is a directory of it that file handles are opened by.
type mount struct {
	nodes int
	fd    int // -1 until a directory of it was seen
}

const (
	minNodes  = 64 << 10
	maxNodes  = 1 << 20
	nodeBytes = 512 // a node with all that belongs to it, roughly
)

func (c *cache) init() {
	c.mounts = make(map[uint64]*mount)
	limit := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	files := int(min(limit.Cur, 1<<17))
	c.soft, c.hard, c.maxHandles = files/4, files/2, files/4
	c.maxNodes = minNodes
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		ram := uint64(info.Totalram) * uint64(info.Unit)
		c.maxNodes = int(min(max(ram/8/nodeBytes, minNodes), maxNodes))
	}
}

// adopt takes a new node with its descriptor.
func (c *cache) adopt(n *node) error {
	c.mu.Lock()
	if c.open >= c.hard {
		c.mu.Unlock()
		c.shrink()
		c.mu.Lock()
		if c.open >= c.hard {
			c.mu.Unlock()
			return unix.ENFILE
		}
	}
	m := c.mounts[n.inode.mount]
	if m == nil {
		m = &mount{fd: -1}
		c.mounts[n.inode.mount] = m
	}
	m.nodes++
	c.open++
	n.place = c.idle.PushFront(n)
	anchor := m.fd < 0 && n.kind == unix.S_IFDIR
	full := c.open > c.soft
	c.mu.Unlock()
	if anchor {
		c.anchor(n)
	}
	if full {
		c.shrink()
	}
	return nil
}

// anchor opens the directory that file handles of its mount are opened by.
func (c *cache) anchor(n *node) {
	fd, err := c.use(n)
	if err != nil {
		return
	}
	defer c.done(n)
	dir, err := reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.mounts[n.inode.mount]; m != nil && m.fd < 0 {
		m.fd = dir
		return
	}
	unix.Close(dir)
}

// use returns the descriptor of a node until done.
func (c *cache) use(n *node) (int, error) {
	c.mu.Lock()
	if n.gone {
		c.mu.Unlock()
		return -1, unix.ESTALE
	}
	if n.fd >= 0 {
		c.busy(n)
		c.mu.Unlock()
		return n.fd, nil
	}
	m := c.mounts[n.inode.mount]
	c.mu.Unlock()

	// The mount stays as long as the node is on it.
	fd, err := openHandle(m.fd, *n.handle)
	if err != nil {
		return -1, err
	}
	c.mu.Lock()
	defer func() {
		full := c.open > c.soft
		c.mu.Unlock()
		if full {
			c.shrink()
		}
	}()
	switch {
	case n.gone:
		unix.Close(fd)
		return -1, unix.ESTALE
	case n.fd >= 0: // opened by another operation meanwhile
		unix.Close(fd)
	default:
		n.fd = fd
		c.open++
	}
	c.busy(n)
	return n.fd, nil
}

// busy counts an operation on n. c.mu is held.
func (c *cache) busy(n *node) {
	n.refs++
	if n.place != nil {
		c.idle.Remove(n.place)
		n.place = nil
	}
}

// done ends an operation's use of a node.
func (c *cache) done(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.refs--
	c.rest(n)
}

// rest puts a node away that nothing uses. c.mu is held.
func (c *cache) rest(n *node) {
	switch {
	case n.refs > 0 || n.pins > 0:
	case n.gone:
		c.release(n)
	case n.fd >= 0 && n.place == nil:
		n.place = c.idle.PushFront(n)
	}
}

// release closes what a node that is gone still has. c.mu is held.
func (c *cache) release(n *node) {
	if n.fd >= 0 {
		unix.Close(n.fd)
		n.fd = -1
		c.open--
	}
	m := c.mounts[n.inode.mount]
	if m.nodes--; m.nodes == 0 {
		if m.fd >= 0 {
			unix.Close(m.fd)
		}
		delete(c.mounts, n.inode.mount)
	}
}

// pin keeps a node that is in use from being closed.
func (c *cache) pin(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.pins++
}

// unpin takes a pin back and tells whether it was the last.
func (c *cache) unpin(n *node) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.pins--
	c.rest(n)
	return n.pins == 0
}

// drop ends a node.
func (c *cache) drop(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.gone {
		return
	}
	n.gone = true
	if n.place != nil {
		c.idle.Remove(n.place)
		n.place = nil
	}
	c.rest(n)
}

// shrinkTries bounds the idle descriptors that are looked at in one go: some have no handle.
const shrinkTries = 64

// shrink closes idle descriptors until there are few enough.
func (c *cache) shrink() {
	for range shrinkTries {
		c.mu.Lock()
		last := c.idle.Back()
		if c.open <= c.soft || last == nil {
			c.mu.Unlock()
			return
		}
		n := last.Value.(*node)
		c.busy(n)
		wanted := n.handle == nil && c.mounts[n.inode.mount].fd >= 0
		c.mu.Unlock()

		if wanted {
			if h, err := fileHandle(n.fd); err == nil {
				c.mu.Lock()
				n.handle = &h
				c.mu.Unlock()
			}
		}
		c.mu.Lock()
		n.refs--
		if n.refs == 0 && n.pins == 0 && !n.gone && n.handle != nil {
			unix.Close(n.fd)
			n.fd = -1
			c.open--
		} else {
			c.rest(n)
		}
		c.mu.Unlock()
	}
}

// same tells whether a node is the file of fd, which has the same inode number.
func (c *cache) same(n *node, fd int) bool {
	c.mu.Lock()
	if n.gone {
		c.mu.Unlock()
		return false
	}
	if n.fd >= 0 { // the number cannot have been given away
		c.mu.Unlock()
		return true
	}
	known := *n.handle
	c.mu.Unlock()
	h, err := fileHandle(fd)
	return err == nil && h.Type() == known.Type() && bytes.Equal(h.Bytes(), known.Bytes())
}

// anchorOf returns a descriptor that file handles of the node's file system can be opened by; valid while the node is
// in use.
func (c *cache) anchorOf(n *node) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.mounts[n.inode.mount]; m != nil && m.fd >= 0 {
		return m.fd, nil
	}
	return -1, unix.EOPNOTSUPP
}

func fileHandle(fd int) (unix.FileHandle, error) {
	h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	return h, err
}

func openHandle(mountFD int, h unix.FileHandle) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.OpenByHandleAt(mountFD, h, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
		return err
	})
	return fd, err
}

// procPath names the file of a descriptor, whatever it is: for calls that take no O_PATH descriptor.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// reopen opens the file of an O_PATH descriptor.
func reopen(fd, flags int) (opened int, err error) {
	err = retry(func() (err error) {
		opened, err = unix.Open(procPath(fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		return err
	})
	return opened, err
}
