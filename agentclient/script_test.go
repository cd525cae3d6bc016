package agentclient

import (
	"context"
	"net"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// scripted is a guest whose every word the test says.
type scripted struct {
	t      testing.TB
	conn   net.Conn
	frames chan frame.Frame
	v      uint8
}

// newScript connects a client to a scripted guest. What the client sends is
// always taken and waits for expect.
func newScript(t testing.TB, gen uint8, opts ...Option) (*Client, *scripted) {
	t.Helper()
	return newScriptOf(t, gen, func(*peer) {}, opts...)
}

// newScriptOf is newScript for a guest whose ready frame is changed.
func newScriptOf(t testing.TB, gen uint8, change func(*peer), opts ...Option) (*Client, *scripted) {
	t.Helper()
	a, b := socketPair(t)
	p := &peer{t: t, gen: gen, start: 1, end: frame.RangeStep}
	change(p)
	if _, err := b.Write(p.prologue()); err != nil {
		t.Fatal(err)
	}
	c, err := New(context.Background(), a, opts...)
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{t: t, conn: b, frames: make(chan frame.Frame, 1<<12), v: gen}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.frames)
		r := frame.NewReader(b)
		for {
			f, err := r.Next()
			if err != nil {
				return
			}
			raw := append([]byte(nil), f.Raw...)
			f, _ = frame.Parse(raw)
			s.frames <- f
		}
	}()
	t.Cleanup(func() {
		c.Close()
		b.Close()
		<-done
	})
	return c, s
}

// next returns the next frame of the client.
func (s *scripted) next() frame.Frame {
	s.t.Helper()
	select {
	case f, ok := <-s.frames:
		if !ok {
			s.t.Fatal("the client is gone")
		}
		return f
	case <-time.After(time.Minute):
		s.t.Fatal("the client is silent")
	}
	panic("unreachable")
}

// expect returns the next frame, which has to be of type t.
func (s *scripted) expect(t agent.Type) frame.Frame {
	s.t.Helper()
	f := s.next()
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil || e.T != t.String() {
		s.t.Fatalf("the client sent %q (flags %d), want %s", e.T, f.Flags, t)
	}
	return f
}

// decode opens a frame's payload.
func (s *scripted) decode(f frame.Frame, v any) {
	s.t.Helper()
	e, err := agent.ParseEnvelope(f.Body)
	if err == nil {
		err = agent.DecodePayload(e.P, v)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scripted) send(id uint32, t agent.Type, payload any) {
	b, err := agent.AppendFrame(nil, id, t, s.v, payload)
	if err != nil {
		s.t.Fatal(err)
	}
	s.conn.Write(b)
}

func (s *scripted) raw(id uint32, flags uint8, name string, payload []byte) {
	b, err := agent.AppendEncoded(nil, id, flags, s.v, name, payload)
	if err != nil {
		s.t.Fatal(err)
	}
	s.conn.Write(b)
}

func (s *scripted) frame(id uint32, flags uint8, body []byte) {
	b, err := frame.Append(nil, id, flags, body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.conn.Write(b)
}

// bulk sends a raw record, also one that no guest may send.
func (s *scripted) bulk(id uint32, kind, flow uint8, offset uint64, data []byte) {
	b := make([]byte, frame.BulkOverhead, frame.BulkOverhead+len(data))
	frame.PutBulkHeader(b, id, kind, flow, offset, len(data))
	s.conn.Write(append(b, data...))
}

func (s *scripted) fsOK(id uint32) {
	s.send(id, agent.FSResponse, agent.FSResponsePayload{OK: true})
}

// sync returns when the client has seen everything that was sent before.
func (s *scripted) sync(c *Client) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Ping(context.Background())
		done <- err
	}()
	s.send(s.expect(agent.Ping).ID, agent.Pong, agent.Empty{})
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// drain answers pings and drops everything else from now on.
func (s *scripted) drain() {
	go func() {
		for f := range s.frames {
			if e, err := agent.ParseEnvelope(f.Body); err == nil && e.T == agent.Ping.String() {
				s.send(f.ID, agent.Pong, agent.Empty{})
			}
		}
	}()
}
