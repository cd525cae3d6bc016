package fusefs

import (
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// birth is what tells a file from every other one, also across sessions.
type birth struct {
	dev  uint64 // 0: the file system of the mounted directory
	ino  uint64
	sec  int64
	nsec uint32
	kind uint32
	// Symlinks only: one with several names counts as several, because where
	// its target may lead depends on the directory.
	parent uint64
	name   string
}

// inode is one file that the kernel knows. Its type never changes.
type inode struct {
	id    uint64
	birth birth
	ino   uint64 // what the kernel shows

	// Guarded by inodes.mu.
	lookups  uint64 // the kernel's
	ref      agent.NodeRef
	epoch    uint64 // of ref; 0: none yet
	counts   uint64 // lookups of ref to give back
	parent   *inode
	name     string
	children map[string]*inode
	twin     *inode // another one with the same number; guarded by inodes.mu

	queue writeQueue // data on its way to the guest

	mu        sync.Mutex
	attr      agent.NodeAttr // as the guest told last
	at        time.Time      // when it was asked; zero: never
	wrote     bool           // changed from here since
	version   uint64         // counts changes from here
	changedAt time.Time      // of the last one
	opens     map[*openFile]struct{}
	fill      pages
	names     names
	locked    bool // a POSIX lock was set in this mount
}

func (n *inode) kind() uint32 { return n.birth.kind }

// inodes is the table of the files that the kernel knows.
type inodes struct {
	mu     sync.Mutex
	byID   map[uint64]*inode
	births map[birth]*inode
	inos   map[uint64]*inode // of the mounted directory's file system, the first of the twins
	lastID uint64
	dev    uint64    // of the mounted directory in this session
	lost   time.Time // when a file was forgotten that had been changed from here
}

func newInodes() *inodes {
	t := &inodes{byID: map[uint64]*inode{}, births: map[birth]*inode{}, inos: map[uint64]*inode{}, lastID: fuse.FUSE_ROOT_ID}
	t.byID[fuse.FUSE_ROOT_ID] = &inode{id: fuse.FUSE_ROOT_ID, lookups: 1}
	return t
}

// attach makes the answer to an attach the root.
func (t *inodes) attach(e *agent.NodeEntryResult, epoch uint64) {
	t.mu.Lock()
	root := t.byID[fuse.FUSE_ROOT_ID]
	t.dev = e.Attr.Dev
	delete(t.births, root.birth)
	t.unnumber(root)
	root.birth = t.birthOf(&e.Attr, nil, "")
	t.births[root.birth] = root
	root.ino = e.Attr.Ino
	t.number(root)
	root.ref, root.epoch, root.counts = e.Node, epoch, 1
	t.mu.Unlock()
	root.learn(&e.Attr)
}

func (t *inodes) birthOf(a *agent.NodeAttr, parent *inode, name string) birth {
	b := birth{ino: a.Ino, sec: a.BtimeSec, nsec: a.BtimeNsec, kind: a.Mode & syscall.S_IFMT}
	if a.Dev != t.dev {
		b.dev = a.Dev
	}
	if b.kind == syscall.S_IFLNK && parent != nil {
		b.parent, b.name = parent.id, name
	}
	return b
}

func (t *inodes) get(id uint64) (*inode, syscall.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.byID[id]; n != nil {
		return n, 0
	}
	return nil, syscall.ESTALE
}

func (t *inodes) child(parent *inode, name string) *inode {
	t.mu.Lock()
	defer t.mu.Unlock()
	return parent.children[name]
}

// depth counts the directories between n and the root.
func (t *inodes) depth(n *inode) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := 0
	for p := n; p.parent != nil && d < maxPath; p = p.parent {
		d++
	}
	return d
}

// place returns the inode of a file that has just been seen as name in parent,
// with one more lookup of the kernel's. ref is the guest's node, 0 when only
// attributes came. extra are lookups to give back to the guest at once.
func (t *inodes) place(parent *inode, name string, a *agent.NodeAttr, ref agent.NodeRef, epoch uint64) (n *inode, extra []agent.NodeCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.birthOf(a, parent, name)
	n = t.births[b]
	if n != nil && b.sec == 0 && b.nsec == 0 && ref != 0 && n.epoch == epoch && n.ref != ref {
		delete(t.births, b) // without a time of birth only the guest's node tells files apart
		n = nil
	}
	if n == nil {
		t.lastID++
		n = &inode{id: t.lastID, birth: b, ino: a.Ino}
		if b.dev != 0 {
			n.ino = mix(b.dev, a.Ino)
		}
		t.byID[n.id], t.births[b] = n, n
		t.number(n)
	}
	n.lookups++
	extra = t.refer(n, ref, epoch)
	t.name(n, parent, name)
	return n, extra
}

// refer notes the guest's node of n.
func (t *inodes) refer(n *inode, ref agent.NodeRef, epoch uint64) (extra []agent.NodeCount) {
	switch {
	case ref == 0:
	case n.epoch != epoch:
		n.ref, n.epoch, n.counts = ref, epoch, 1
	case n.ref == ref:
		n.counts++
	default: // the guest has two nodes of it
		return []agent.NodeCount{{Node: ref, N: 1}}
	}
	return nil
}

// name notes where n was seen last.
func (t *inodes) name(n, parent *inode, name string) {
	if n == parent || n.id == fuse.FUSE_ROOT_ID {
		return // a bind mount of the root in itself
	}
	for p := parent; p != nil; p = p.parent {
		if p == n {
			return // a hostile guest's circle
		}
	}
	t.unname(n)
	if old := parent.children[name]; old != nil && old != n {
		t.unname(old)
	}
	if parent.children == nil {
		parent.children = map[string]*inode{}
	}
	parent.children[name] = n
	n.parent, n.name = parent, name
}

func (t *inodes) unname(n *inode) {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	n.parent, n.name = nil, ""
}

// remove notes that a name is gone.
func (t *inodes) remove(parent *inode, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := parent.children[name]; n != nil {
		t.unname(n)
	}
}

// mistrust makes listings worthless: a file has changed, and which one is not
// known.
func (t *inodes) mistrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = time.Now()
}

// rename moves what is known under one name to another, and with exchange the
// other way as well.
func (t *inodes) rename(from *inode, name string, to *inode, newName string, exchange bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, old := from.children[name], to.children[newName]
	if n == old && n != nil { // two names of one file: nothing happens
		return
	}
	if n != nil {
		t.unname(n)
	}
	if old != nil {
		t.unname(old)
	}
	if n != nil {
		t.name(n, to, newName)
	}
	if old != nil && exchange {
		t.name(old, from, name)
	}
}

// adopt notes the answer to a lookup of n by its name. It tells whether that is
// the same file; if not, the lookup is to be given back.
func (t *inodes) adopt(n *inode, e *agent.NodeEntryResult, epoch uint64) (same bool, extra []agent.NodeCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.birthOf(&e.Attr, nil, "")
	b.parent, b.name = n.birth.parent, n.birth.name
	if b != n.birth {
		return false, []agent.NodeCount{{Node: e.Node, N: 1}}
	}
	return true, t.refer(n, e.Node, epoch)
}

// where returns the name that n was seen under last.
func (t *inodes) where(n *inode) (parent *inode, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.parent, n.name
}

// known returns the guest's node of n, or where to look for it.
func (t *inodes) known(n *inode, epoch uint64) (ref agent.NodeRef, parent *inode, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.epoch == epoch {
		return n.ref, nil, ""
	}
	return 0, n.parent, n.name
}

// forget takes back lookups of the kernel and returns the guest's to give back.
func (t *inodes) forget(id, lookups uint64) (node agent.NodeCount, epoch uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || id == fuse.FUSE_ROOT_ID {
		return
	}
	n.lookups -= min(lookups, n.lookups)
	if n.lookups > 0 {
		return
	}
	n.mu.Lock()
	if !n.changedAt.IsZero() {
		t.lost = time.Now()
	}
	n.mu.Unlock()
	delete(t.byID, id)
	t.unnumber(n)
	if t.births[n.birth] == n {
		delete(t.births, n.birth)
	}
	// Its name stays with it, for children that the kernel still has.
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	node, epoch = agent.NodeCount{Node: n.ref, N: n.counts}, n.epoch
	n.ref, n.epoch, n.counts = 0, 0, 0
	return node, epoch
}

// number makes n be found by its inode number.
func (t *inodes) number(n *inode) {
	if n.birth.dev == 0 {
		n.twin, t.inos[n.ino] = t.inos[n.ino], n
	}
}

func (t *inodes) unnumber(n *inode) {
	if n.birth.dev != 0 {
		return
	}
	if t.inos[n.ino] == n {
		if t.inos[n.ino] = n.twin; n.twin == nil {
			delete(t.inos, n.ino)
		}
	} else {
		for p := t.inos[n.ino]; p != nil; p = p.twin {
			if p.twin == n {
				p.twin = n.twin
				break
			}
		}
	}
	n.twin = nil
}

// numbered returns what the kernel knows of the file of the mounted file system
// that has an inode number.
func (t *inodes) numbered(ino uint64) (all []*inode) {
	if ino == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := t.inos[ino]; n != nil; n = n.twin {
		all = append(all, n)
	}
	return all
}

func (t *inodes) root() *inode {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[fuse.FUSE_ROOT_ID]
}

// device is the device number of the mounted directory.
func (t *inodes) device() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dev
}

func (t *inodes) snapshot() []*inode {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*inode, 0, len(t.byID))
	for _, n := range t.byID {
		all = append(all, n)
	}
	return all
}

// mix makes an inode number of another file system differ from those of the
// mounted one.
func mix(dev, ino uint64) uint64 {
	const prime = 1099511628211
	return (ino*prime ^ dev*prime<<20) &^ (1 << 63)
}
