package nodes

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/bulk/bulktest"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

func TestData(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	f := g.create(root, "f")
	read := func(h agent.NodeRef, off uint64, n uint32) string {
		t.Helper()
		return data(g.must(&agent.NodeRead{Handle: h, Offset: off, Len: n})[0])
	}
	g.must(&agent.NodeWrite{Handle: f.Handle, Offset: 1 << 20, Data: []byte("end")})
	if got := read(f.Handle, 1<<20-2, 100); got != "\x00\x00end" {
		t.Errorf("%q", got)
	}
	if got := read(f.Handle, 1<<21, 100); got != "" {
		t.Errorf("behind the end: %q", got)
	}
	// Two handles that append do not overwrite each other.
	one := opened(g.must(&agent.NodeOpen{Node: f.Node, Flags: agent.NodeWriteOnly | agent.NodeAppend | agent.NodeTruncate})[0])
	two := opened(g.must(&agent.NodeOpen{Node: f.Node, Flags: agent.NodeWriteOnly | agent.NodeAppend})[0])
	for range 3 {
		g.must(&agent.NodeWrite{Handle: one, Data: []byte("a")}, &agent.NodeWrite{Handle: two, Data: []byte("b")})
	}
	if got := read(f.Handle, 0, 100); got != "ababab" {
		t.Errorf("%q", got)
	}
	g.must(&agent.NodeFlush{Handle: one, Owner: 1}, &agent.NodeSync{Target: one}, &agent.NodeSync{Target: f.Node, DataOnly: true},
		&agent.NodeSync{Target: root}, &agent.NodeSyncFS{Node: root}, &agent.NodeClose{Handle: one}, &agent.NodeClose{Handle: two})

	// Holes, and space without data.
	g.must(&agent.NodeSetAttr{Target: f.Handle, Valid: agent.NodeSetSize, Size: 0}, &agent.NodeWrite{Handle: f.Handle, Offset: 1 << 20, Data: []byte("x")})
	if at := number(g.must(&agent.NodeSeek{Handle: f.Handle, Whence: agent.NodeSeekData})[0]); at != 1<<20 {
		t.Errorf("data at %d", at)
	}
	if at := number(g.must(&agent.NodeSeek{Handle: f.Handle, Offset: 1 << 20, Whence: agent.NodeSeekHole})[0]); at != 1<<20+1 {
		t.Errorf("hole at %d", at)
	}
	g.must(&agent.NodeAllocate{Handle: f.Handle, Mode: unix.FALLOC_FL_KEEP_SIZE, Offset: 0, Len: 2 << 20})
	if a := attr(g.must(&agent.NodeGetAttr{Target: f.Handle})[0]); a.Size != 1<<20+1 || a.Blocks < 4096 {
		t.Errorf("%+v", a)
	}
	g.fails(unix.ENOSPC, &agent.NodeAllocate{Handle: f.Handle, Offset: 0, Len: 1 << 30})
	g.must(&agent.NodeSetAttr{Target: f.Handle, Valid: agent.NodeSetSize})

	// A copy within the guest.
	to := g.create(root, "to")
	g.must(&agent.NodeWrite{Handle: f.Handle, Data: bytes.Repeat([]byte("0123456789"), 10)})
	if n := number(g.must(&agent.NodeCopyRange{From: f.Handle, FromOffset: 5, To: to.Handle, ToOffset: 2, Len: 10})[0]); n != 10 || read(to.Handle, 0, 100) != "\x00\x005678901234" {
		t.Errorf("copied %d: %q", n, read(to.Handle, 0, 100))
	}
	if n := number(g.must(&agent.NodeCopyRange{From: f.Handle, FromOffset: 1 << 30, To: to.Handle, Len: 10})[0]); n != 0 {
		t.Errorf("copied %d behind the end", n)
	}
	g.must(&agent.NodeClose{Handle: f.Handle}, &agent.NodeClose{Handle: to.Handle})
}

// A request does what it can, and says how far it came.
func TestCompound(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	r := g.must(&agent.NodeMkdir{Dir: root, Name: []byte("a"), Mode: 0o755}, &agent.NodeMkdir{Dir: 0, Name: []byte("b"), Mode: 0o755},
		&agent.NodeCreate{Dir: 1, Name: []byte("c"), Flags: agent.NodeReadWrite, Mode: 0o600}, &agent.NodeWrite{Handle: 2, Data: []byte("deep")},
		&agent.NodeSetAttr{Target: 2, Valid: agent.NodeSetMtime, MtimeSec: 1}, &agent.NodeRead{Handle: 2, Len: 10}, &agent.NodeClose{Handle: 2},
		&agent.NodeGetAttr{Target: 2})
	_ = r
	if data(r[5]) != "deep" {
		t.Errorf("%q", data(r[5]))
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a/b/c")); string(b) != "deep" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	partial, errno := g.do(&agent.NodeLookup{Dir: root, Name: []byte("a")}, &agent.NodeLookup{Dir: 0, Name: []byte("nope")}, &agent.NodeRmdir{Dir: root, Name: []byte("a")})
	if errno != unix.ENOENT || len(partial) != 1 {
		t.Errorf("%v after %d results", errno, len(partial))
	}
	// The answer has to fit into a frame.
	h := opened(g.must(&agent.NodeLookup{Dir: g.lookup(nodeOf(r[0]), "b"), Name: []byte("c")}, &agent.NodeOpen{Node: 0, Flags: agent.NodeReadWrite})[1])
	g.must(&agent.NodeSetAttr{Target: h, Valid: agent.NodeSetSize, Size: 2 << 20})
	reads := []agent.NodeOp{}
	for range 5 {
		reads = append(reads, &agent.NodeRead{Handle: h, Len: agent.MaxNodeInline})
	}
	if done, errno := g.do(reads...); errno != unix.E2BIG || len(done) != 3 {
		t.Errorf("%v after %d results", errno, len(done))
	}
	g.must(&agent.NodeClose{Handle: h})
}

// stream is a request with raw records.
func (g *guest) stream(offer agent.BulkOffer, ops ...agent.NodeOp) uint32 {
	g.t.Helper()
	return g.send(agent.NodeRequestPayload{Ops: ops, Bulk: &offer})
}

func TestStreams(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	size := uint64(5)
	write := []agent.NodeOp{
		&agent.NodeCreate{Dir: root, Name: []byte("f"), Flags: agent.NodeReadWrite, Mode: 0o600},
		&agent.NodeWriteStream{Handle: 0, Len: &size}, &agent.NodeGetAttr{Target: 0},
	}
	id := g.stream(agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}, write...)
	accepted := bulktest.Decode[agent.BulkAcceptedPayload](t, g.out.Next(t, id), agent.BulkAccepted)
	if accepted.Flows != agent.MaskHostToGuest || accepted.Kind != frame.BulkFilesystem {
		t.Errorf("%+v", accepted)
	}
	g.files.Bulk(frame.Bulk{ID: id, Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, Payload: []byte("hel")}, func() {})
	g.files.Bulk(frame.Bulk{ID: id, Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, Offset: 3, Payload: []byte("lo")}, func() {})
	g.files.Finish(id, agent.BulkFinishPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, FinalOffset: 5})
	r, errno := g.answer(id, write)
	if errno != 0 || number(r[1]) != 5 || attr(r[2]).Size != 5 {
		t.Fatalf("%v: %v", errno, r)
	}
	h := r[0].(*agent.NodeCreatedResult).Handle
	// What comes too late disturbs nothing.
	g.files.Credit(id, agent.BulkCreditPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowGuestToHost, CreditLimit: 1})

	read := []agent.NodeOp{&agent.NodeReadStream{Handle: h, Offset: 1}, &agent.NodeClose{Handle: h}}
	id = g.stream(agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20, GuestToHostCreditLimit: 1 << 20}, read...)
	bulktest.Decode[agent.BulkAcceptedPayload](t, g.out.Next(t, id), agent.BulkAccepted)
	if rec := g.out.Next(t, id); string(rec.Bulk.Payload) != "ello" {
		t.Errorf("%v", rec)
	}
	if fin := bulktest.Decode[agent.BulkFinishPayload](t, g.out.Next(t, id), agent.BulkFinish); fin.FinalOffset != 4 {
		t.Errorf("%+v", fin)
	}
	if r, errno := g.answer(id, read); errno != 0 || number(r[0]) != 4 {
		t.Errorf("%v: %v", errno, r)
	}
	g.files.Credit(id, agent.BulkCreditPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowGuestToHost, ConsumedOffset: 4, CreditLimit: 2 << 20})

	// One that the host cancels, and one that it gets wrong.
	h = opened(g.must(&agent.NodeLookup{Dir: root, Name: []byte("f")}, &agent.NodeOpen{Node: 0, Flags: agent.NodeReadWrite})[1])
	for name, c := range map[string]struct {
		end  func(id uint32)
		want unix.Errno
		last agent.Type
	}{
		"cancel": {func(id uint32) {
			g.files.Cancel(id, agent.BulkCancelPayload{Kind: frame.BulkFilesystem, Reason: agent.CancelCaller, Message: "no"})
			g.svc.Cancel(id)
		}, unix.ECANCELED, agent.NodeResponse},
		"gap": {func(id uint32) {
			g.files.Bulk(frame.Bulk{ID: id, Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, Offset: 9, Payload: []byte("x")}, func() {})
		}, unix.EPROTO, agent.BulkCancel},
	} {
		ops := []agent.NodeOp{&agent.NodeWriteStream{Handle: h}, &agent.NodeGetAttr{Target: h}}
		id := g.stream(agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}, ops...)
		bulktest.Decode[agent.BulkAcceptedPayload](t, g.out.Next(t, id), agent.BulkAccepted)
		c.end(id)
		if c.last == agent.BulkCancel {
			bulktest.Decode[agent.BulkCancelPayload](t, g.out.Next(t, id), agent.BulkCancel)
		}
		if r, errno := g.answer(id, ops); errno != c.want || len(r) != 0 {
			t.Errorf("%s: %v after %d results", name, errno, len(r))
		}
	}
	g.must(&agent.NodeClose{Handle: h})
	// Offers that are none.
	for name, id := range map[string]uint32{
		"no offer":  g.send(agent.NodeRequestPayload{Ops: []agent.NodeOp{&agent.NodeReadStream{Handle: h}}}),
		"no stream": g.stream(agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}, &agent.NodeGetAttr{Target: root}),
		"two":       g.stream(agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}, &agent.NodeReadStream{Handle: h}, &agent.NodeReadStream{Handle: h}),
	} {
		if _, errno := g.answer(id, []agent.NodeOp{&agent.NodeReadStream{}, &agent.NodeReadStream{}}); errno != unix.EINVAL {
			t.Errorf("%s: %v", name, errno)
		}
	}
}

func TestLocks(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	f := g.create(root, "f")
	second := opened(g.must(&agent.NodeOpen{Node: f.Node, Flags: agent.NodeReadWrite})[0])
	lock := func(owner uint64, typ uint32, start, n uint64) *agent.NodeLock {
		return &agent.NodeLock{Handle: f.Handle, Type: typ, Start: start, Len: n, Owner: owner}
	}
	g.must(lock(1, agent.NodeWriteLock, 0, 10), lock(2, agent.NodeWriteLock, 10, 10), lock(2, agent.NodeReadLock, 30, 0))
	g.fails(unix.EAGAIN, lock(2, agent.NodeReadLock, 5, 1))
	g.must(lock(1, agent.NodeReadLock, 35, 5))
	g.fails(unix.EAGAIN, lock(1, agent.NodeWriteLock, 35, 5))
	l := g.must(&agent.NodeTestLock{Handle: f.Handle, Type: agent.NodeWriteLock, Start: 0, Len: 100, Owner: 3})[0].(*agent.NodeLockResult)
	if l.Type != agent.NodeWriteLock || l.Start != 0 || l.Len != 10 {
		t.Errorf("%+v", l)
	}
	if l := g.must(&agent.NodeTestLock{Handle: f.Handle, Type: agent.NodeReadLock, Start: 30, Len: 0, Owner: 3})[0].(*agent.NodeLockResult); l.Type != agent.NodeUnlock {
		t.Errorf("%+v", l)
	}
	// The guest's own processes are kept out too, and see what is locked.
	own, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := unix.FcntlFlock(own.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 3, Len: 1}); err != unix.EAGAIN {
		t.Errorf("a process of the guest: %v", err)
	}
	// A waiting lock is got when the other goes, and given up on request.
	wait := lock(1, agent.NodeWriteLock, 10, 1)
	wait.Wait = true
	id := g.send(agent.NodeRequestPayload{Ops: []agent.NodeOp{wait}})
	g.must(lock(2, agent.NodeUnlock, 0, 0))
	if _, errno := g.answer(id, []agent.NodeOp{wait}); errno != 0 {
		t.Errorf("wait: %v", errno)
	}
	wait = lock(2, agent.NodeWriteLock, 0, 1)
	wait.Wait = true
	ops := []agent.NodeOp{wait, &agent.NodeGetAttr{Target: root}}
	id = g.send(agent.NodeRequestPayload{Ops: ops})
	for !g.svc.Has(id) {
		time.Sleep(time.Millisecond)
	}
	g.svc.Cancel(id)
	if r, errno := g.answer(id, ops); errno != unix.EINTR || len(r) != 0 {
		t.Errorf("cancelled: %v after %d results", errno, len(r))
	}
	// More waits than may run keep nobody else waiting.
	var ids []uint32
	for owner := range uint64(3 * maxRunningPerOwner) {
		w := lock(100+owner, agent.NodeWriteLock, 0, 1)
		w.Wait = true
		ids = append(ids, g.send(agent.NodeRequestPayload{Ops: []agent.NodeOp{w}}))
	}
	g.must(&agent.NodeGetAttr{Target: root})
	for _, id := range ids {
		g.svc.Cancel(id)
		g.answer(id, ops[:1])
	}
	// A flush gives up its owner's locks, the close of the last handle everyone's.
	g.must(&agent.NodeFlush{Handle: second, Owner: 1}, lock(2, agent.NodeWriteLock, 0, 0))
	g.must(&agent.NodeClose{Handle: second}, &agent.NodeClose{Handle: f.Handle})
	if err := unix.FcntlFlock(own.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Errorf("after the close: %v", err)
	}
	// flock belongs to the handle.
	a, b := opened(g.must(&agent.NodeOpen{Node: f.Node})[0]), opened(g.must(&agent.NodeOpen{Node: f.Node})[0])
	g.must(&agent.NodeLock{Handle: a, Kind: agent.NodeFlock, Type: agent.NodeWriteLock})
	g.fails(unix.EAGAIN, &agent.NodeLock{Handle: b, Kind: agent.NodeFlock, Type: agent.NodeReadLock})
	g.must(&agent.NodeClose{Handle: a}, &agent.NodeLock{Handle: b, Kind: agent.NodeFlock, Type: agent.NodeReadLock}, &agent.NodeClose{Handle: b})
}
