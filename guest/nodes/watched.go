package nodes

import (
	"golang.org/x/sys/unix"

	"msb/guest/watch"
	"msb/protocol/agent"
)

// Report makes the service tell actors when it changes files; the actor is a client's table. It is called before the
// first request.
func (s *Service) Report(actors *watch.Actors) { s.actors = actors }

// changes tells whether operations may change a file or a name, as the kernel tells it: a close does not.
func changes(ops []agent.NodeOp) bool {
	for _, op := range ops {
		switch op := op.(type) {
		case *agent.NodeSetAttr, *agent.NodeMkdir, *agent.NodeMknod, *agent.NodeSymlink, *agent.NodeLink,
			*agent.NodeUnlink, *agent.NodeRmdir, *agent.NodeRename, *agent.NodeCreate, *agent.NodeWrite,
			*agent.NodeWriteStream, *agent.NodeSetXattr, *agent.NodeRemoveXattr, *agent.NodeAllocate, *agent.NodeCopyRange:
			return true
		case *agent.NodeOpen:
			if op.Flags&agent.NodeTruncate != 0 {
				return true
			}
		}
	}
	return false
}

// Directory opens a directory that a client knows as node, for watch.Service, and returns the client's table.
func (s *Service) Directory(ownerID uint32, id uint64) (fd int, client watch.Client, err error) {
	s.mu.Lock()
	o := s.owners[ownerID]
	var t *table
	if o != nil {
		t = o.table
	}
	s.mu.Unlock()
	if t == nil {
		return -1, nil, unix.ESTALE
	}
	n := t.node(id)
	if n == nil {
		return -1, nil, unix.ESTALE
	}
	held, err := s.cache.use(n)
	if err != nil {
		return -1, nil, err
	}
	defer s.cache.done(n)
	if fd, err = reopen(held, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return -1, nil, err
	}
	return fd, t, nil
}

// Watched counts those who watch for the table's client.
func (t *table) Watched(n int) { t.watchers.Add(int32(n)) }

// Knows tells whether the client has a file as a node, on whatever mount.
func (t *table) Knows(dev, ino uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for mount := range t.mounts {
		if t.index[inode{mount, dev, ino}] != nil {
			return true
		}
	}
	return false
}

// refresh reads the attributes of a node again, now that the table knows it: what happened to it between the first time
// and that was not told.
func (r *request) refresh(n *node, st *unix.Statx_t) {
	if r.table.watchers.Load() == 0 {
		return
	}
	if fd, err := r.svc.cache.use(n); err == nil {
		_ = statx(fd, st)
		r.svc.cache.done(n)
	}
}
