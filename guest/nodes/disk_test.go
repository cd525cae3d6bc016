package nodes

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"msb/guest/bulk/bulktest"
	"msb/guest/files"
	"msb/protocol/agent"
)

// disk is a folder on an ext4 file system of its own.
func disk(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a loop mount needs root")
	}
	image := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-I", "256", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop,acl,user_xattr", image, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("something is left open on the disk: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// guest is a service with one client.
type guest struct {
	t     testing.TB
	svc   *Service
	files *files.Service
	out   *bulktest.Recorder
	owner uint32
	as    *agent.NodeIdentity
}

var lastID atomic.Uint32

func newGuest(t testing.TB) *guest {
	t.Helper()
	out := bulktest.New()
	f := files.New(out)
	g := &guest{t: t, svc: New(out, f), files: f, out: out}
	t.Cleanup(func() {
		<-g.svc.CloseOwner(g.owner)
		g.svc.Close()
		f.Close()
	})
	return g
}

// send sends a request and returns its id.
func (g *guest) send(req agent.NodeRequestPayload) uint32 {
	g.t.Helper()
	id := g.owner*33554431 + lastID.Add(1)
	p, err := agent.EncodePayload(req)
	if err != nil {
		g.t.Fatal(err)
	}
	g.svc.Request(g.owner, id, agent.Generation, p, func() {})
	return id
}

// do sends operations and returns their results and the errno.
func (g *guest) do(ops ...agent.NodeOp) ([]agent.NodeResult, unix.Errno) {
	g.t.Helper()
	return g.answer(g.send(agent.NodeRequestPayload{Ops: ops, As: g.as}), ops)
}

func (g *guest) answer(id uint32, ops []agent.NodeOp) ([]agent.NodeResult, unix.Errno) {
	g.t.Helper()
	f := g.out.Next(g.t, id)
	if f.Type != agent.NodeResponse {
		g.t.Fatalf("got %v", f)
	}
	r, err := agent.DecodeNodeResponse(f.Payload, ops)
	if err != nil {
		g.t.Fatal(err)
	}
	return r.Results, unix.Errno(r.Errno)
}

// must is do for operations that succeed.
func (g *guest) must(ops ...agent.NodeOp) []agent.NodeResult {
	g.t.Helper()
	r, errno := g.do(ops...)
	if errno != 0 {
		g.t.Fatalf("%s: %v", agent.NodeOpName(ops[len(r)]), errno)
	}
	return r
}

// fails checks the errno of the last operation.
func (g *guest) fails(want unix.Errno, ops ...agent.NodeOp) {
	g.t.Helper()
	r, errno := g.do(ops...)
	if errno != want || len(r) != len(ops)-1 {
		g.t.Errorf("%s: %v after %d results, want %v", agent.NodeOpName(ops[min(len(r), len(ops)-1)]), errno, len(r), want)
	}
}

func (g *guest) attach(path string) agent.NodeRef {
	g.t.Helper()
	return nodeOf(g.must(&agent.NodeAttach{Path: []byte(path)})[0])
}

func (g *guest) lookup(dir agent.NodeRef, name string) agent.NodeRef {
	g.t.Helper()
	return nodeOf(g.must(&agent.NodeLookup{Dir: dir, Name: []byte(name)})[0])
}

func (g *guest) create(dir agent.NodeRef, name string) *agent.NodeCreatedResult {
	g.t.Helper()
	return g.must(&agent.NodeCreate{Dir: dir, Name: []byte(name), Flags: agent.NodeReadWrite, Mode: 0o644})[0].(*agent.NodeCreatedResult)
}

func nodeOf(r agent.NodeResult) agent.NodeRef { return r.(*agent.NodeEntryResult).Node }
func attr(r agent.NodeResult) agent.NodeAttr  { return r.(*agent.NodeAttrResult).Attr }
func data(r agent.NodeResult) string          { return string(r.(*agent.NodeBytesResult).Data) }
func number(r agent.NodeResult) uint64        { return r.(*agent.NodeNumberResult).N }
func opened(r agent.NodeResult) agent.NodeRef { return r.(*agent.NodeHandleResult).Handle }
