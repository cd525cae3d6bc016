package fusefs

import (
	"math"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is one file that the kernel knows. Its type never changes: when the
// guest puts another kind of file in its place, that is a new node.
type node struct {
	id   uint64
	ino  uint64
	kind uint32 // S_IFREG, ...

	// Guarded by tree.mu.
	parent   *node
	name     string
	children map[string]*node
	lookups  uint64
	gone     bool // has no name (any more): unlinked, replaced or changed in kind

	queue writeQueue // data on its way to the guest

	mu       sync.Mutex
	handles  map[*handle]struct{}
	listings map[*listing]struct{}
	facts    facts
	known    knowledge
}

// tree is the table of nodes: the names that the kernel holds, by id and as a
// tree, from which guest paths are made.
type tree struct {
	root string // guest path of the root node

	mu     sync.RWMutex
	nodes  map[uint64]*node
	inodes map[uint64]struct{} // inode numbers in use
	lastID uint64
}

func newTree(root string) *tree {
	t := &tree{
		root:   root,
		nodes:  map[uint64]*node{},
		inodes: map[uint64]struct{}{},
		lastID: fuse.FUSE_ROOT_ID,
	}
	n := &node{id: fuse.FUSE_ROOT_ID, kind: syscall.S_IFDIR, lookups: 1}
	n.ino = t.inode(root)
	t.nodes[n.id] = n
	return t
}

func (t *tree) get(id uint64) (*node, syscall.Errno) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n := t.nodes[id]; n != nil {
		return n, 0
	}
	return nil, syscall.ESTALE
}

// path returns the guest path of n, ESTALE when it has none.
func (t *tree) path(n *node) (string, syscall.Errno) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pathLocked(n)
}

func (t *tree) pathLocked(n *node) (string, syscall.Errno) {
	size := len(t.root)
	for p := n; p.parent != nil || p.gone; p = p.parent {
		if p.gone {
			return "", syscall.ESTALE
		}
		size += 1 + len(p.name)
	}
	buf := make([]byte, size)
	end := size
	for p := n; p.parent != nil; p = p.parent {
		end -= len(p.name)
		copy(buf[end:], p.name)
		end--
		buf[end] = '/'
	}
	copy(buf, t.root)
	if t.root == "/" && n.parent != nil {
		return string(buf[1:]), 0
	}
	return string(buf), 0
}

// depth counts the directories between n and the root.
func (t *tree) depth(n *node) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d := 0
	for p := n; p.parent != nil; p = p.parent {
		d++
	}
	return d
}

// isGone tells whether n has lost its name.
func (t *tree) isGone(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.gone
}

func (t *tree) child(parent *node, name string) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return parent.children[name]
}

// place returns the node for name in parent with one more lookup, a new one
// when there is none of this kind.
func (t *tree) place(parent *node, name string, kind uint32) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := parent.children[name]
	if n != nil && n.kind != kind {
		t.detach(n)
		n = nil
	}
	if n == nil {
		t.lastID++
		n = &node{id: t.lastID, kind: kind}
		t.attach(n, parent, name)
		n.ino = t.inode(t.inodeKey(n))
		t.nodes[n.id] = n
	}
	n.lookups++
	return n
}

// forget takes back lookups; a node without any is dropped with the parents
// that it kept.
func (t *tree) forget(id, lookups uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[id]
	if n == nil || n.parent == nil && !n.gone {
		return
	}
	n.lookups -= min(lookups, n.lookups)
	for n != nil && n.lookups == 0 && len(n.children) == 0 && (n.parent != nil || n.gone) {
		parent := n.parent
		t.detach(n)
		delete(t.nodes, n.id)
		delete(t.inodes, n.ino)
		n = parent
	}
}

// remove takes the name away from whatever node has it.
func (t *tree) remove(parent *node, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := parent.children[name]; n != nil {
		t.detach(n)
	}
}

// removeNode takes the name of n away.
func (t *tree) removeNode(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detach(n)
}

// rename moves what is known under one name to another.
func (t *tree) rename(from *node, name string, to *node, newName string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, old := from.children[name], to.children[newName]
	if n == old { // the same file, or neither is known
		return
	}
	if old != nil {
		t.detach(old)
	}
	if n != nil {
		delete(from.children, name)
		t.attach(n, to, newName)
	}
}

func (t *tree) attach(n, parent *node, name string) {
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	n.parent, n.name = parent, name
	parent.children[name] = n
}

func (t *tree) detach(n *node) {
	if n.parent != nil {
		delete(n.parent.children, n.name)
		n.parent = nil
		n.gone = true
	}
}

// snapshot returns all nodes.
func (t *tree) snapshot() []*node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]*node, 0, len(t.nodes))
	for _, n := range t.nodes {
		all = append(all, n)
	}
	return all
}

func (t *tree) inodeKey(n *node) string {
	p, errno := t.pathLocked(n)
	if errno != 0 {
		return n.name
	}
	return p
}

// inode makes the inode number for a path: the protocol has none, and programs
// like git look at a file again when its number changed, so the same path gets
// the same number in every mount, unless it is taken.
func (t *tree) inode(path string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h := uint64(offset)
	for i := range len(path) {
		h = (h ^ uint64(path[i])) * prime
	}
	for {
		h &= math.MaxInt64
		if _, taken := t.inodes[h]; h > 1 && !taken {
			t.inodes[h] = struct{}{}
			return h
		}
		h = h*prime + 1
	}
}
