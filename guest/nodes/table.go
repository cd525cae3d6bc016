package nodes

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

const (
	maxHandles = 16 << 10 // of one table
	maxTables  = 128
)

// sessionKey is the secret name of a table.
type sessionKey [16]byte

// table holds the nodes and handles of one client, or of several that have joined. Ids are never used twice and begin
// with a random number of the table, so that one of another table or of an earlier connection is nobody's.
type table struct {
	svc     *Service
	session sessionKey
	owners  int // guarded by Service.mu

	mu      sync.Mutex
	last    uint64
	closed  bool
	nodes   map[uint64]*node
	index   map[inode]*node
	handles map[uint64]*handle
	locks   map[lockOwner]*lockFile
	mounts  map[uint64]struct{} // that nodes are or were on

	watchers atomic.Int32 // of the file systems that nodes are on
}

// idBits is how many bits of an id count nodes and handles.
const idBits = 40

func (s *Service) newTable() *table {
	t := &table{
		svc:     s,
		nodes:   make(map[uint64]*node),
		index:   make(map[inode]*node),
		handles: make(map[uint64]*handle),
		locks:   make(map[lockOwner]*lockFile),
		mounts:  make(map[uint64]struct{}),
	}
	_, _ = rand.Read(t.session[:]) // never fails
	var b [8]byte
	_, _ = rand.Read(b[:])
	t.last = (binary.BigEndian.Uint64(b[:])>>(idBits+1) | 1) << idBits
	return t
}

// tableOf returns the table of a client. Its first request makes one or joins another client's.
func (s *Service) tableOf(o *owner, ops []agent.NodeOp) (*table, error) {
	join, joins := ops[0].(*agent.NodeJoin)
	for _, op := range ops[1:] {
		if _, ok := op.(*agent.NodeJoin); ok {
			return nil, fail(unix.EINVAL, "join comes first or not at all")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case o.ctx.Err() != nil:
		return nil, unix.EINTR
	case o.table != nil && joins:
		return nil, fail(unix.EBUSY, "this connection has a table already")
	case o.table != nil:
		return o.table, nil
	case joins:
		if len(join.Session) != len(sessionKey{}) {
			return nil, unix.ENOENT
		}
		t := s.sessions[sessionKey(join.Session)]
		if t == nil {
			return nil, unix.ENOENT
		}
		t.owners++
		o.table = t
		return t, nil
	case len(s.sessions) >= maxTables:
		return nil, unix.ENFILE
	}
	o.table = s.newTable()
	o.table.owners = 1
	s.sessions[o.table.session] = o.table
	return o.table, nil
}

// leave takes a client off its table and tells whether it was the last. s.mu is held.
func (s *Service) leave(t *table) (last bool) {
	t.owners--
	if t.owners > 0 {
		return false
	}
	delete(s.sessions, t.session)
	return true
}

// close drops everything.
func (t *table) close() {
	t.mu.Lock()
	t.closed = true
	nodes, handles, locks := t.nodes, t.handles, t.locks
	t.nodes, t.index, t.handles, t.locks = nil, nil, nil, nil
	t.mu.Unlock()
	for _, l := range locks {
		l.unref()
	}
	for _, h := range handles {
		_ = h.unref()
	}
	for _, n := range nodes {
		t.svc.cache.drop(n)
	}
}

func (t *table) node(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[id]
}

func (t *table) handle(id uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.handles[id]
	if h != nil {
		h.refs.Add(1)
	}
	return h
}

// enter returns the node of the file that fd, an O_PATH descriptor, stands for, counted once more as looked up. It
// takes fd over.
func (t *table) enter(fd int, st *unix.Statx_t) (*node, error) {
	key := inodeOf(st)
	t.mu.Lock()
	known := t.index[key]
	t.mu.Unlock()
	same := known != nil && t.svc.cache.same(known, fd)

	t.mu.Lock()
	switch {
	case t.closed:
		t.mu.Unlock()
		unix.Close(fd)
		return nil, unix.EINTR
	case same && t.nodes[known.id] == known:
		known.lookups++
		t.mu.Unlock()
		unix.Close(fd)
		return known, nil
	case len(t.nodes) >= t.svc.cache.maxNodes:
		t.mu.Unlock()
		unix.Close(fd)
		return nil, fail(unix.ENFILE, "more than %d nodes: forget some", t.svc.cache.maxNodes)
	}
	t.last++
	n := &node{id: t.last, inode: key, kind: uint32(st.Mode) & unix.S_IFMT, lookups: 1, fd: fd}
	t.mu.Unlock()
	if err := t.svc.cache.adopt(n); err != nil {
		unix.Close(fd)
		return nil, err
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.svc.cache.drop(n)
		return nil, unix.EINTR
	}
	// Two lookups of a file at the same moment may make two nodes of it. Both are right; the later one is found.
	t.nodes[n.id] = n
	t.index[key] = n
	t.mounts[key.mount] = struct{}{}
	t.mu.Unlock()
	return n, nil
}

// again counts one more lookup of a node that is in use.
func (t *table) again(n *node) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[n.id] != n {
		return unix.ESTALE
	}
	n.lookups++
	return nil
}

// forget takes lookups back.
func (t *table) forget(id, count uint64) {
	t.mu.Lock()
	n := t.nodes[id]
	if n == nil {
		t.mu.Unlock()
		return
	}
	n.lookups -= min(n.lookups, count)
	gone := n.lookups == 0
	if gone {
		delete(t.nodes, id)
		if t.index[n.inode] == n {
			delete(t.index, n.inode)
		}
	}
	t.mu.Unlock()
	if gone {
		t.svc.cache.drop(n)
	}
}

// insert gives an open handle its id.
func (t *table) insert(h *handle) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.roomLocked(); err != nil {
		return err
	}
	t.last++
	h.id = t.last
	t.handles[h.id] = h
	return nil
}

// room fails when no handle can be opened.
func (t *table) room() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.roomLocked()
}

func (t *table) roomLocked() error {
	switch {
	case t.closed:
		return unix.EINTR
	case len(t.handles) >= min(maxHandles, t.svc.cache.maxHandles):
		return unix.EMFILE
	}
	return nil
}

// remove takes a handle out of the table for its caller to unref.
func (t *table) remove(id uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.handles[id]
	delete(t.handles, id)
	return h
}
