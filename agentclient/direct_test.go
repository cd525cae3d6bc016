package agentclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// straight is a guest's end of direct connections. What a connection is asked
// after its join goes to answer, which returns bytes to write; nil ends it.
type straight struct {
	t      *testing.T
	l      net.Listener
	answer func(id uint32, ops []agent.NodeOp) []byte
	ended  chan error // of each connection
}

func newStraight(t *testing.T, answer func(id uint32, ops []agent.NodeOp) []byte) *straight {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &straight{t: t, l: l, answer: answer, ended: make(chan error, 64)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { s.ended <- s.serve(conn) }()
		}
	}()
	return s
}

func (s *straight) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", s.l.Addr().String())
}

func (s *straight) serve(conn net.Conn) error {
	defer conn.Close()
	r := frame.NewReader(conn)
	for first := true; ; first = false {
		f, err := r.Next()
		if err != nil {
			return err
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			return err
		}
		var req agent.NodeRequestPayload
		if err := agent.DecodePayload(e.P, &req); err != nil {
			return err
		}
		if first {
			if _, ok := req.Ops[0].(*agent.NodeJoin); !ok {
				return errors.New("the first operation is no join")
			}
			_, err = conn.Write(response(f.ID, agent.NodeResponsePayload{Results: []agent.NodeResult{&agent.NodeNoResult{}}}))
		} else if b := s.answer(f.ID, req.Ops); b != nil {
			_, err = conn.Write(b)
		} else {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func response(id uint32, p agent.NodeResponsePayload) []byte {
	var g agent.Gathered
	if err := g.Response(id, &p); err != nil {
		panic(err)
	}
	return bytes.Join(g.Parts(), nil)
}

// node returns a client of nodes that has direct connections to s.
func (s *straight) nodes() (*Nodes, *scripted) {
	s.t.Helper()
	c, relay := newScriptOf(s.t, 9, offering)
	n, err := c.Nodes()
	if err != nil {
		s.t.Fatal(err)
	}
	n.UseDirect(make([]byte, 16), s.dial)
	return n, relay
}

// Requests and data of any size go straight, and the relay hears that the sandbox is in use.
func TestDirect(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcde\n"), agent.MaxNodeInline/16)
	s := newStraight(t, func(id uint32, ops []agent.NodeOp) []byte {
		switch op := ops[0].(type) {
		case *agent.NodeRead:
			rest := data[min(op.Offset, uint64(len(data))):]
			return response(id, agent.NodeResponsePayload{Results: []agent.NodeResult{&agent.NodeBytesResult{Data: rest[:min(len(rest), int(op.Len))]}}})
		case *agent.NodeWrite:
			if !bytes.Equal(op.Data, data[:len(op.Data)]) {
				return nil
			}
			return response(id, agent.NodeResponsePayload{Results: []agent.NodeResult{&agent.NodeNumberResult{N: uint64(len(op.Data))}}})
		}
		return response(id, agent.NodeResponsePayload{Errno: uint32(syscall.EXDEV), Message: "no"})
	})
	n, relay := s.nodes()
	for _, size := range []int{1, 4096, directAhead - 100, directAhead, 100 << 10, len(data)} {
		for _, off := range []int{0, 7, len(data) - 5000} {
			p := make([]byte, size)
			want := data[off:min(off+size, len(data))]
			m, err := n.ReadAt(within(t), 1<<41, p, int64(off))
			if m != len(want) || !bytes.Equal(p[:m], want) || (err == io.EOF) != (m < size) || err != nil && err != io.EOF {
				t.Errorf("read %d at %d: %d, %v", size, off, m, err)
			}
		}
		if m, err := n.WriteAt(within(t), 1<<41, data[:size], 0, 0); m != size || err != nil {
			t.Errorf("write %d: %d, %v", size, m, err)
		}
	}
	var refused *NodeError
	if _, err := n.Lookup(within(t), 1<<41, []byte("x")); !errors.As(err, &refused) || refused.Errno != syscall.EXDEV || refused.Op != "lookup" {
		t.Errorf("%v", err)
	}
	relay.expect(agent.Touch)
}

// What cannot go straight goes through the relay: streams, waits, and all of it when there is no connection to be had.
func TestDirectFallsBack(t *testing.T) {
	s := newStraight(t, func(uint32, []agent.NodeOp) []byte { return nil })
	n, relay := s.nodes()
	for _, op := range []agent.NodeOp{&agent.NodeLock{Wait: true}, &agent.NodeSync{}} {
		go n.Do(within(t), op)
		relay.expect(agent.NodeRequest)
	}
	s.l.Close()
	for range 2 { // the second one does not even try
		go n.Lookup(within(t), 1<<41, []byte("x"))
		relay.expect(agent.NodeRequest)
	}
}

// An answer that is none ends the connection: a read is tried through the relay, nobody knows of the rest.
func TestDirectBreaks(t *testing.T) {
	whole := response(2, agent.NodeResponsePayload{Results: []agent.NodeResult{&agent.NodeBytesResult{Data: make([]byte, 100)}}})
	for name, answer := range map[string][]byte{
		"the end":           nil,
		"noise":             bytes.Repeat([]byte{0xff}, 200),
		"another's answer":  append([]byte{whole[0], whole[1], whole[2], whole[3], 9, 9, 9, 9}, whole[8:]...),
		"more than asked":   whole,
		"a wrong tail":      append(bytes.Clone(whole[:len(whole)-1]), 1),
		"not the last word": append(append(bytes.Clone(whole[:8]), 0), whole[9:]...),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStraight(t, func(uint32, []agent.NodeOp) []byte { return answer })
			n, relay := s.nodes()
			ended := make(chan error, 1)
			go func() {
				_, err := n.ReadAt(within(t), 1<<41, make([]byte, 50), 0)
				ended <- err
			}()
			relay.expect(agent.Touch)
			f := relay.expect(agent.NodeRequest)
			relay.send(f.ID, agent.NodeResponse, agent.NodeResponsePayload{Errno: uint32(syscall.EIO)})
			if err := <-ended; !errors.Is(err, syscall.EIO) {
				t.Errorf("read: %v", err)
			}
			<-s.ended
			if answer == nil {
				if _, err := n.Lookup(within(t), 1<<41, []byte("x")); !errors.Is(err, syscall.ENOTCONN) {
					t.Errorf("lookup: %v", err)
				}
			}
		})
	}
}

// Who does not wait any longer leaves at once, and the guest sees it.
func TestDirectLeaves(t *testing.T) {
	asked, hold := make(chan struct{}), make(chan struct{})
	s := newStraight(t, func(uint32, []agent.NodeOp) []byte {
		close(asked)
		<-hold
		return []byte("late")
	})
	n, _ := s.nodes()
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error, 1)
	go func() {
		_, err := n.Lookup(ctx, 1<<41, []byte("x"))
		ended <- err
	}()
	<-asked
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("waits on")
	}
	close(hold)
	if err := <-s.ended; err == nil {
		t.Error("the guest sees no end")
	}
	if err := n.Client().Close(); err != nil {
		t.Error(err)
	}
}
