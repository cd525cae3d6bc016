package fusefs_test

import (
	"net"
	"os"
	"sync"

	"msb/guest/files"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// peer is a sandbox that can be told to lie. It speaks the client side of the
// agent protocol on a socket and hands file operations to the guest's own file
// service, unless script answers in its place.
type peer struct {
	script func(op agent.FSOp) (agent.FSResponsePayload, bool)
	nodes  *liar // nil: without msb.fs
}

const peerGeneration = 9

// serve takes connections until l is closed.
func (p *peer) serve(l net.Listener) {
	for slot := 0; ; slot = (slot + 1) % frame.MaxClients {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go p.serveConn(conn, slot)
	}
}

func (p *peer) serveConn(conn net.Conn, slot int) {
	defer conn.Close()
	out := &peerOut{conn: conn}
	start, end := frame.Range(slot)
	head := []byte{byte(start >> 24), byte(start >> 16), byte(start >> 8), byte(start), byte(end >> 24), byte(end >> 16), byte(end >> 8), byte(end)}
	var ready agent.ReadyPayload
	if p.nodes != nil {
		ready.Extensions = agent.Extensions{agent.ExtFS: 1}
	}
	head, err := agent.AppendFrame(head, 0, agent.Ready, peerGeneration, ready)
	if err != nil {
		panic(err)
	}
	if _, err := conn.Write(head); err != nil {
		return
	}
	service := files.New(out)
	defer service.Close()
	owner := uint32(slot)
	defer service.CloseOwner(owner)
	in := frame.NewReader(conn)
	for {
		f, err := in.Next()
		if err != nil {
			return
		}
		if f.Flags == frame.FlagBulk {
			rec, err := frame.ParseBulk(f)
			if err != nil {
				return
			}
			var wg sync.WaitGroup
			wg.Add(1)
			service.Bulk(rec, wg.Done)
			wg.Wait()
			continue
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			return
		}
		t, _ := e.Type()
		switch t {
		case agent.FSRequest:
			var req agent.FSRequestPayload
			if p.script != nil && agent.DecodePayload(e.P, &req) == nil {
				if res, ok := p.script(req.Op); ok {
					out.Send(f.ID, agent.FSResponse, res)
					continue
				}
			}
			service.Request(owner, f.ID, e.V, e.P, func() {})
		case agent.NodeRequest:
			var req agent.NodeRequestPayload
			if p.nodes != nil && agent.DecodePayload(e.P, &req) == nil {
				out.Send(f.ID, agent.NodeResponse, p.nodes.answer(req))
			}
		case agent.FSData:
			var d agent.Data
			if agent.DecodePayload(e.P, &d) == nil {
				var wg sync.WaitGroup
				wg.Add(1)
				service.Data(port.Input{ID: f.ID, Data: d.Data, Release: wg.Done})
				wg.Wait()
			}
		case agent.BulkCredit:
			var m agent.BulkCreditPayload
			if agent.DecodePayload(e.P, &m) == nil {
				service.Credit(f.ID, m)
			}
		case agent.BulkFinish:
			var m agent.BulkFinishPayload
			if agent.DecodePayload(e.P, &m) == nil {
				service.Finish(f.ID, m)
			}
		case agent.BulkCancel:
			var m agent.BulkCancelPayload
			if agent.DecodePayload(e.P, &m) == nil {
				service.Cancel(f.ID, m)
			}
		case agent.Ping:
			out.Send(f.ID, agent.Pong, agent.Empty{})
		}
	}
}

// peerOut writes frames to the connection.
type peerOut struct {
	mu   sync.Mutex
	conn net.Conn
}

func (o *peerOut) Send(id uint32, t agent.Type, payload any) error {
	b, err := agent.AppendFrame(nil, id, t, peerGeneration, payload)
	if err != nil {
		return err
	}
	return o.write(b)
}

func (o *peerOut) SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error {
	b, err := frame.AppendBulk(nil, frame.Bulk{ID: id, Kind: kind, Flow: flow, Offset: offset, Payload: payload})
	if err != nil {
		return err
	}
	return o.write(b)
}

func (o *peerOut) write(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, err := o.conn.Write(b); err != nil {
		return port.ErrClosed
	}
	return nil
}

func listen(path string) (net.Listener, error) {
	os.Remove(path)
	return net.Listen("unix", path)
}
