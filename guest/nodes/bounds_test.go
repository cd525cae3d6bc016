package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"msb/guest/bulk/bulktest"
	"msb/guest/files"
	"msb/protocol/agent"
)

// bound makes the service keep few descriptors.
func (g *guest) bound(soft, hard int) { g.svc.cache.soft, g.svc.cache.hard = soft, hard }

func (g *guest) descriptors() int {
	g.svc.cache.mu.Lock()
	defer g.svc.cache.mu.Unlock()
	return g.svc.cache.open
}

// Nodes beyond the descriptors are still the files they were: moved ones are found, removed ones are ESTALE, and a
// number that was given away is another node.
func TestManyNodes(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	g.bound(8, 64)
	root := g.attach(dir)
	const count = 200
	ids := make([]agent.NodeRef, count)
	inodes := make([]uint64, count)
	for i := range ids {
		ops := []agent.NodeOp{
			&agent.NodeMkdir{Dir: root, Name: fmt.Appendf(nil, "%d", i), Mode: 0o755},
			&agent.NodeSymlink{Dir: root, Name: fmt.Appendf(nil, "%d", i), Target: []byte("x")},
			&agent.NodeMknod{Dir: root, Name: fmt.Appendf(nil, "%d", i), Mode: unix.S_IFREG | 0o644},
		}
		e := g.must(ops[i%3])[0].(*agent.NodeEntryResult)
		ids[i], inodes[i] = e.Node, e.Attr.Ino
	}
	if n := g.descriptors(); n > 8 {
		t.Errorf("%d descriptors are open", n)
	}
	for i := range ids {
		if err := os.Rename(filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint("moved", i))); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		if a := attr(g.must(&agent.NodeGetAttr{Target: id})[0]); a.Ino != inodes[i] {
			t.Fatalf("node %d is inode %d, was %d", i, a.Ino, inodes[i])
		}
		if again := g.lookup(root, fmt.Sprint("moved", i)); again != id {
			t.Fatalf("node %d is found as %x, was %x", i, again, id)
		}
	}
	// In use they keep their descriptor; an open one survives its last name.
	var handles []agent.NodeOp
	for i := 2; i < count; i += 3 {
		h := opened(g.must(&agent.NodeOpen{Node: ids[i], Flags: agent.NodeReadWrite})[0])
		handles = append(handles, &agent.NodeClose{Handle: h})
		if len(handles) == 20 {
			break
		}
	}
	g.must(&agent.NodeUnlink{Dir: root, Name: []byte("moved2")}, &agent.NodeUnlink{Dir: root, Name: fmt.Appendf(nil, "moved%d", 197)})
	if a := attr(g.must(&agent.NodeGetAttr{Target: ids[2]})[0]); a.Nlink != 0 {
		t.Errorf("%+v", a)
	}
	unix.Sync()
	g.fails(unix.ESTALE, &agent.NodeGetAttr{Target: ids[197]})
	for range 50 { // until the number comes again
		e := g.create(root, "new")
		g.must(&agent.NodeClose{Handle: e.Handle})
		if e.Node == ids[197] {
			t.Fatal("a new file has an old node")
		}
		if e.Attr.Ino == inodes[197] {
			break
		}
		g.must(&agent.NodeUnlink{Dir: root, Name: []byte("new")}, &agent.NodeForget{Nodes: []agent.NodeCount{{Node: e.Node, N: 1}}})
	}
	g.must(handles...)
	if n := g.descriptors(); n > 8+len(handles) {
		t.Errorf("%d descriptors are open", n)
	}
	// Keys find the same files from another connection.
	key := data(g.must(&agent.NodeKey{Node: ids[0]})[0])
	gone := data(g.must(&agent.NodeKey{Node: ids[5]})[0])
	g.must(&agent.NodeUnlink{Dir: root, Name: []byte("moved5")}, &agent.NodeForget{Nodes: []agent.NodeCount{{Node: ids[5], N: 9}}})
	other := &guest{t: t, svc: g.svc, files: g.files, out: g.out, owner: 5}
	defer func() { <-g.svc.CloseOwner(5) }()
	otherRoot := other.attach(dir)
	if e := other.must(&agent.NodeRecall{Base: otherRoot, Key: []byte(key)})[0].(*agent.NodeEntryResult); e.Attr.Ino != inodes[0] || e.Node == ids[0] {
		t.Errorf("recall: %+v", e)
	}
	other.fails(unix.ESTALE, &agent.NodeRecall{Base: otherRoot, Key: []byte(gone)})
	other.fails(unix.ESTALE, &agent.NodeGetAttr{Target: ids[0]})
	other.fails(unix.EBADF, &agent.NodeClose{Handle: handles[0].(*agent.NodeClose).Handle})
}

// Descriptors that cannot be closed, of a file system without handles, are bounded.
func TestNodesWithoutHandles(t *testing.T) {
	g := newGuest(t)
	g.bound(4, 16)
	root := g.attach("/proc/self")
	h := opened(g.must(&agent.NodeOpen{Node: root, Flags: agent.NodeDirectory})[0])
	entries := g.must(&agent.NodeReadDir{Handle: h, Size: 1 << 16})[0].(*agent.NodeListResult).Entries
	refused := 0
	for _, e := range entries {
		switch r, errno := g.do(&agent.NodeLookup{Dir: root, Name: e.Name}); errno {
		case 0:
			_ = r
		case unix.ENFILE:
			refused++
		default:
			t.Errorf("%s: %v", e.Name, errno)
		}
	}
	if n := g.descriptors(); n > 16 || refused == 0 {
		t.Errorf("%d descriptors, %d refused of %d", n, refused, len(entries))
	}
}

func TestTableBounds(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	g.svc.cache.maxNodes, g.svc.cache.maxHandles = 3, 2
	f := g.create(root, "a")
	g.must(&agent.NodeMkdir{Dir: root, Name: []byte("b")})
	g.fails(unix.ENFILE, &agent.NodeLookup{Dir: root, Name: []byte("lost+found")})
	g.must(&agent.NodeOpen{Node: f.Node})
	g.fails(unix.EMFILE, &agent.NodeOpen{Node: f.Node})
	g.fails(unix.EMFILE, &agent.NodeCreate{Dir: root, Name: []byte("c")})
	if _, err := os.Lstat(filepath.Join(dir, "c")); err == nil {
		t.Error("a file was made for which there was no handle")
	}
	g.must(&agent.NodeClose{Handle: f.Handle}, &agent.NodeForget{Nodes: []agent.NodeCount{{Node: f.Node, N: 1}}})
	g.lookup(root, "lost+found")
}

// A client that goes leaves nothing open, whatever it was doing.
func TestCloseOwner(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	f := g.create(root, "f")
	g.must(&agent.NodeLock{Handle: f.Handle, Type: agent.NodeWriteLock, Owner: 1})
	for range 40 {
		g.send(agent.NodeRequestPayload{Ops: []agent.NodeOp{&agent.NodeLock{Handle: f.Handle, Type: agent.NodeWriteLock, Owner: 2, Wait: true}}})
	}
	offer := agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}
	id := g.stream(offer, &agent.NodeWriteStream{Handle: f.Handle})
	bulktest.Decode[agent.BulkAcceptedPayload](t, g.out.Next(t, id), agent.BulkAccepted)
	quiet := []<-chan struct{}{g.files.CloseOwner(0), g.svc.CloseOwner(0)}
	for _, q := range quiet {
		<-q
	}
	for _, f := range g.out.Pending() {
		t.Errorf("sent for nobody: %v", f)
	}
	if n := g.descriptors(); n != 0 {
		t.Errorf("%d descriptors are open", n)
	}
	// Its ids are nobody's for the next client of the slot.
	g.fails(unix.ESTALE, &agent.NodeGetAttr{Target: root})
	g.fails(unix.EBADF, &agent.NodeClose{Handle: f.Handle})
}

// More requests than are taken are refused; all others are answered, once each.
func TestFlood(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	ops := []agent.NodeOp{&agent.NodeGetAttr{Target: root}}
	refused := 0
	var ids []uint32
	for range 3 * maxQueued {
		ids = append(ids, g.send(agent.NodeRequestPayload{Ops: ops}))
	}
	for _, id := range ids {
		if _, errno := g.answer(id, ops); errno == unix.EAGAIN {
			refused++
		} else if errno != 0 {
			t.Fatal(errno)
		}
	}
	if held := g.svc.held.Load(); held != 0 {
		t.Errorf("%d bytes are still counted", held)
	}
	t.Logf("%d of %d refused", refused, len(ids))
}

// Everything at once, under the race detector.
func TestManyClients(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	g.bound(16, 1000)
	var all sync.WaitGroup
	var failed atomic.Int64
	for client := range uint32(8) {
		all.Go(func() {
			c := &guest{t: t, svc: g.svc, files: g.files, out: g.out, owner: client + 1}
			defer func() { <-g.svc.CloseOwner(client + 1) }()
			root, errno := c.do(&agent.NodeAttach{Path: []byte(dir)})
			if errno != 0 {
				failed.Add(1)
				return
			}
			base := nodeOf(root[0])
			if client%2 == 1 {
				c.as = &agent.NodeIdentity{UID: 1000, GID: 1000, Privileged: client%4 == 1}
			}
			for i := range 60 {
				name := fmt.Appendf(nil, "%d-%d", client, i%7)
				h := fmt.Appendf(nil, "shared%d", i%3)
				_, _ = c.do(&agent.NodeCreate{Dir: base, Name: name, Flags: agent.NodeReadWrite, Mode: 0o666}, &agent.NodeWrite{Handle: 0, Data: name},
					&agent.NodeLock{Handle: 0, Type: agent.NodeWriteLock, Owner: uint64(i)}, &agent.NodeClose{Handle: 0})
				_, _ = c.do(&agent.NodeLink{Node: base, Dir: base, Name: h})
				_, _ = c.do(&agent.NodeRename{Dir: base, Name: name, NewDir: base, NewName: h})
				r, errno := c.do(&agent.NodeLookup{Dir: base, Name: h})
				if errno == 0 {
					_, _ = c.do(&agent.NodeForget{Nodes: []agent.NodeCount{{Node: nodeOf(r[0]), N: uint64(i % 3)}}})
				}
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 || g.descriptors() != 0 {
		t.Errorf("%d clients failed, %d descriptors are open", failed.Load(), g.descriptors())
	}
}

// FuzzRequest feeds requests to a service that knows some nodes and handles. It is about panics, hangs and names that
// lead out of the folder.
func FuzzRequest(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root")
	}
	out := bulktest.New()
	fs := files.New(out)
	svc := New(out, fs)
	svc.cache.soft, svc.cache.hard, svc.cache.maxHandles = 4, 64, 16
	base := f.TempDir()
	inside := filepath.Join(base, "in", "side")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		f.Fatal(err)
	}
	canary := filepath.Join(base, "canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
		f.Fatal(err)
	}
	g := &guest{t: f, svc: svc, files: fs, out: out}
	root := g.attach(inside)
	h := g.create(root, "f")
	for _, ops := range [][]agent.NodeOp{
		{&agent.NodeLookup{Dir: root, Name: []byte("f")}, &agent.NodeOpen{Node: 0}, &agent.NodeRead{Handle: 1, Len: 9}, &agent.NodeClose{Handle: 1}},
		{&agent.NodeMkdir{Dir: root, Name: []byte("d"), Mode: 0o777}, &agent.NodeSymlink{Dir: 0, Name: []byte("s"), Target: []byte("../../canary")}},
		{&agent.NodeRename{Dir: root, Name: []byte("f"), NewDir: root, NewName: []byte("..")}, &agent.NodeUnlink{Dir: root, Name: []byte("../canary")}},
		{&agent.NodeSetAttr{Target: h.Handle, Valid: 511, Size: 3}, &agent.NodeLock{Handle: h.Handle, Wait: true}},
		{&agent.NodeReadDir{Handle: h.Handle, Size: 99, Flags: 3}, &agent.NodeForget{Nodes: []agent.NodeCount{{Node: root, N: 1}}}},
		{&agent.NodeWriteStream{Handle: h.Handle}},
	} {
		p, err := agent.EncodePayload(agent.NodeRequestPayload{Ops: ops, Bulk: &agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p)
		p, _ = agent.EncodePayload(agent.NodeRequestPayload{Ops: ops, As: &agent.NodeIdentity{UID: 9, Groups: []uint32{1}}})
		f.Add(p)
	}
	id := uint32(1 << 20)
	f.Fuzz(func(t *testing.T, p []byte) {
		var req agent.NodeRequestPayload
		if agent.DecodePayload(p, &req) == nil {
			// Paths are the host's to choose, and it may well remove what is there.
			if slices.ContainsFunc(req.Ops, func(op agent.NodeOp) bool { _, ok := op.(*agent.NodeAttach); return ok }) {
				return
			}
		}
		id++
		svc.Request(0, id, agent.Generation, p, func() {})
		svc.Cancel(id)
		fs.Cancel(id, agent.BulkCancelPayload{})
		for {
			fr := out.Next(t, id)
			if fr.Type == agent.BulkAccepted {
				fs.Cancel(id, agent.BulkCancelPayload{})
			}
			if fr.Type == agent.NodeResponse || fr.Type == agent.Error {
				break
			}
		}
		out.Drop(id)
		if b, err := os.ReadFile(canary); err != nil || string(b) != "alive" {
			t.Fatalf("what is outside was touched: %q, %v", b, err)
		}
	})
}

// The two ways to hold a node: a descriptor that stays open, and a file handle that is opened for each use.
func BenchmarkNodeHeld(b *testing.B)     { benchNode(b, 1000) }
func BenchmarkNodeReopened(b *testing.B) { benchNode(b, 0) }

func benchNode(b *testing.B, soft int) {
	g := newGuest(b)
	dir := disk(b)
	root := g.attach(dir)
	ids := make([]*node, 100)
	table := g.svc.owners[0].table
	for i := range ids {
		e := g.create(root, fmt.Sprint(i))
		g.must(&agent.NodeClose{Handle: e.Handle})
		ids[i] = table.node(e.Node)
	}
	g.bound(soft, 1000)
	i := 0
	for b.Loop() {
		n := ids[i%len(ids)]
		i++
		fd, err := g.svc.cache.use(n)
		if err != nil {
			b.Fatal(err)
		}
		var st unix.Statx_t
		if err := statx(fd, &st); err != nil {
			b.Fatal(err)
		}
		g.svc.cache.done(n)
		if soft == 0 {
			g.svc.cache.shrink()
		}
	}
	b.StopTimer()
	<-g.svc.CloseOwner(0)
}
