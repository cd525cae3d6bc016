package nodes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// straight is a client's end of a direct connection.
type straight struct {
	t    *testing.T
	conn net.Conn
	id   uint32
}

// direct serves direct connections and returns a dialler.
func (g *guest) direct(t *testing.T) func() *straight {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.svc.ServeDirect(l) }()
	t.Cleanup(func() {
		g.svc.direct.close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() *straight {
		t.Helper()
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return &straight{t: t, conn: conn}
	}
}

// joined returns a connection that shares the session of g.
func (g *guest) joined(t *testing.T, dial func() *straight) *straight {
	t.Helper()
	s := dial()
	session := g.must(&agent.NodeSession{})[0].(*agent.NodeBytesResult).Data
	if _, errno, err := s.do(nil, &agent.NodeJoin{Session: session}); errno != 0 || err != nil {
		t.Fatal(errno, err)
	}
	return s
}

func (s *straight) send(as *agent.NodeIdentity, ops ...agent.NodeOp) error {
	s.id++
	var g agent.Gathered
	if err := g.Request(s.id, &agent.NodeRequestPayload{Ops: ops, As: as}); err != nil {
		s.t.Fatal(err)
	}
	_, err := s.conn.Write(bytes.Join(g.Parts(), nil))
	return err
}

func (s *straight) receive(ops ...agent.NodeOp) ([]agent.NodeResult, unix.Errno, error) {
	var head [frame.Overhead]byte
	if _, err := io.ReadFull(s.conn, head[:]); err != nil {
		return nil, 0, err
	}
	if id := binary.BigEndian.Uint32(head[4:]); id != s.id || head[8] != agent.NodeResponse.Flags() {
		return nil, 0, fmt.Errorf("answer %d with flags %d to %d", id, head[8], s.id)
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-frame.HeaderSize)
	if _, err := io.ReadFull(s.conn, body); err != nil {
		return nil, 0, err
	}
	e, err := agent.ParseEnvelope(body)
	if err != nil {
		return nil, 0, err
	}
	r, err := agent.DecodeNodeResponse(e.P, ops)
	return r.Results, unix.Errno(r.Errno), err
}

func (s *straight) do(as *agent.NodeIdentity, ops ...agent.NodeOp) ([]agent.NodeResult, unix.Errno, error) {
	if err := s.send(as, ops...); err != nil {
		return nil, 0, err
	}
	return s.receive(ops...)
}

func (s *straight) must(as *agent.NodeIdentity, ops ...agent.NodeOp) []agent.NodeResult {
	s.t.Helper()
	r, errno, err := s.do(as, ops...)
	if errno != 0 || err != nil {
		s.t.Fatal(errno, err)
	}
	return r
}

// A direct connection shares nodes and handles with the client that it has joined, and moves data of any size.
func TestDirect(t *testing.T) {
	dir := t.TempDir()
	g := newGuest(t)
	s := g.joined(t, g.direct(t))
	root := g.attach(dir)
	made := g.create(root, "f")
	for _, size := range []int{0, 1, sendFrom - 1, sendFrom, 100 << 10, agent.MaxNodeInline} {
		data := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
		s.must(nil, &agent.NodeWrite{Handle: made.Handle, Data: data}, &agent.NodeSetAttr{Target: made.Handle, Valid: agent.NodeSetSize, Size: uint64(size)})
		if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes: the file has %d, %v", size, len(got), err)
		}
		got := s.must(nil, &agent.NodeRead{Handle: made.Handle, Len: agent.MaxNodeInline})[0].(*agent.NodeBytesResult).Data
		if !bytes.Equal(got, data) {
			t.Fatalf("%d bytes: read %d", size, len(got))
		}
		if size > 10 {
			got = s.must(nil, &agent.NodeRead{Handle: made.Handle, Offset: 7, Len: uint32(size)})[0].(*agent.NodeBytesResult).Data
			if !bytes.Equal(got, data[7:]) {
				t.Fatalf("%d bytes: read %d from 7", size, len(got))
			}
		}
	}
	if got := g.lookup(root, "f"); got != made.Node {
		t.Errorf("the file is node %x, was %x", got, made.Node)
	}
	for want, op := range map[unix.Errno]agent.NodeOp{
		unix.ENOENT:     &agent.NodeLookup{Dir: root, Name: []byte("none")},
		unix.EBADF:      &agent.NodeRead{Handle: 1 << 50, Len: 1 << 20},
		unix.EOPNOTSUPP: &agent.NodeLock{Handle: made.Handle, Wait: true},
		unix.EINVAL:     &agent.NodeReadStream{Handle: made.Handle},
	} {
		if _, errno, err := s.do(nil, op); err != nil || errno != want && errno != unix.EOPNOTSUPP {
			t.Errorf("%s: %v, %v, want %v", agent.NodeOpName(op), errno, err, want)
		}
	}
}

// What does not begin with a join, joins twice or is no request ends its connection and nothing else.
func TestDirectStrangers(t *testing.T) {
	g := newGuest(t)
	dial := g.direct(t)
	session := g.must(&agent.NodeSession{})[0].(*agent.NodeBytesResult).Data
	s := dial()
	if _, errno, err := s.do(nil, &agent.NodeJoin{Session: make([]byte, 16)}); errno != unix.ENOENT || err != nil {
		t.Errorf("a wrong session: %v, %v", errno, err)
	}
	for name, first := range map[string]func(s *straight) error{
		"no join": func(s *straight) error { return s.send(nil, &agent.NodeAttach{Path: []byte("/")}) },
		"two joins": func(s *straight) error {
			s.must(nil, &agent.NodeJoin{Session: session})
			return s.send(nil, &agent.NodeJoin{Session: session})
		},
		"another message": func(s *straight) error {
			b, err := agent.AppendFrame(nil, 1, agent.Ping, agent.Generation, agent.Empty{})
			if err == nil {
				_, err = s.conn.Write(b)
			}
			return err
		},
		"a frame without an end": func(s *straight) error {
			_, err := s.conn.Write([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 2})
			return err
		},
		"noise": func(s *straight) error {
			b, err := frame.Append(nil, 1, agent.NodeRequest.Flags(), []byte("noise"))
			if err == nil {
				_, err = s.conn.Write(b)
			}
			return err
		},
	} {
		s := dial()
		if err := first(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v, want the end", name, err)
		}
	}
	g.joined(t, dial)
}

// The table lives as long as one of those who share it.
func TestDirectKeepsTheTable(t *testing.T) {
	g := newGuest(t)
	s := g.joined(t, g.direct(t))
	root := g.attach(t.TempDir())
	<-g.svc.CloseOwner(g.owner)
	s.must(nil, &agent.NodeGetAttr{Target: root})
}

// What a request has brought that nobody waits for any more is given back, and what has not begun is not done.
func TestDirectLeaves(t *testing.T) {
	dir := t.TempDir()
	g := newGuest(t)
	dial := g.direct(t)
	root := g.attach(dir)
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	count := func() (nodes, handles int) {
		g.svc.mu.Lock()
		defer g.svc.mu.Unlock()
		for _, t := range g.svc.sessions {
			t.mu.Lock()
			nodes, handles = nodes+len(t.nodes), handles+len(t.handles)
			t.mu.Unlock()
		}
		return nodes, handles
	}
	nodes, _ := count()

	answered := g.joined(t, dial)
	if err := answered.send(nil, &agent.NodeLookup{Dir: root, Name: []byte("f")}, &agent.NodeOpen{Node: 0}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, handles := count(); handles == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing is opened")
		}
	}
	time.Sleep(5 * time.Millisecond) // the answer is sent; if not, writing it fails
	answered.conn.Close()

	held := g.joined(t, dial)
	g.svc.Hold()
	if err := held.send(nil, &agent.NodeMkdir{Dir: root, Name: []byte("d"), Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	held.conn.Close()
	g.svc.Release()

	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		g.svc.direct.mu.Lock()
		left := len(g.svc.direct.conns)
		g.svc.direct.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("connections are left")
		}
	}
	if n, h := count(); n != nodes || h != 0 {
		t.Errorf("%d nodes and %d handles are left, want %d and none", n, h, nodes)
	}
	if _, err := os.Stat(filepath.Join(dir, "d")); !errors.Is(err, os.ErrNotExist) {
		t.Error("made for somebody who had left:", err)
	}
}

// While the guest is frozen nothing is done, and freezing waits for what is under way.
func TestDirectHold(t *testing.T) {
	dir := t.TempDir()
	g := newGuest(t)
	s := g.joined(t, g.direct(t))
	root := g.attach(dir)
	g.svc.Hold()
	op := &agent.NodeMkdir{Dir: root, Name: []byte("d"), Mode: 0o755}
	if err := s.send(nil, op); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // it would have been made by now
	if _, err := os.Stat(filepath.Join(dir, "d")); !errors.Is(err, os.ErrNotExist) {
		t.Error("made while held:", err)
	}
	g.svc.Release()
	if _, errno, err := s.receive(op); errno != 0 || err != nil {
		t.Error(errno, err)
	}
}

// A connection stays who it was, and is nobody else than each request says.
func TestDirectIdentities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users' identities need root")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	g := newGuest(t)
	s := g.joined(t, g.direct(t))
	root := g.attach(dir)
	dev := &agent.NodeIdentity{UID: 1000, GID: 1001, Groups: []uint32{}, Privileged: true}
	plain := &agent.NodeIdentity{UID: 1000, GID: 1001, Groups: []uint32{}}
	other := &agent.NodeIdentity{UID: 1002, GID: 1003, Groups: []uint32{7}, Privileged: true}
	for i, as := range []*agent.NodeIdentity{dev, nil, dev, other, dev, plain, nil, plain, dev} {
		name := fmt.Appendf(nil, "f%d", i)
		op := &agent.NodeMkdir{Dir: root, Name: name, Mode: 0o700}
		if as == plain {
			if _, errno, err := s.do(as, op); errno != unix.EACCES || err != nil {
				t.Errorf("%d: a user made something in root's directory: %v, %v", i, errno, err)
			}
			continue
		}
		a := s.must(as, op)[0].(*agent.NodeEntryResult).Attr
		want := agent.NodeIdentity{}
		if as != nil {
			want = *as
		}
		if a.UID != want.UID || a.GID != want.GID {
			t.Errorf("%d: made by %d:%d, want %d:%d", i, a.UID, a.GID, want.UID, want.GID)
		}
		// root may do everything in between, whoever the thread is.
		s.must(nil, &agent.NodeSetAttr{Target: root, Valid: agent.NodeSetMode, Mode: 0o700}, &agent.NodeLookup{Dir: root, Name: name},
			&agent.NodeSetAttr{Target: root, Valid: agent.NodeSetMode, Mode: 0o755})
	}
}
