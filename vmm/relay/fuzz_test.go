package relay

import (
	"bytes"
	"io"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// obliging is a guest that answers pings and confirms what has left.
func (g *guest) obliging() {
	for {
		f, err := g.frames.Next()
		if err != nil {
			return
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			continue
		}
		var answer []byte
		switch t, _ := e.Type(); t {
		case agent.Ping:
			answer, _ = agent.AppendFrame(nil, f.ID, agent.Pong, g.v, agent.Empty{})
		case agent.ClientDisconnected:
			var d agent.ClientDisconnectedPayload
			if agent.DecodePayload(e.P, &d) != nil || len(d.Incarnation) != frame.IncarnationSize {
				continue
			}
			answer = frame.AppendLease(nil, frame.Lease{Event: frame.LeaseDisconnected, Start: d.IDStart, End: d.IDEndExclusive, Incarnation: frame.Incarnation(d.Incarnation)})
		}
		if g.answers != nil {
			g.answers(answer)
		} else if _, err := g.control.Write(answer); err != nil {
			return
		}
	}
}

// pinged checks that a client is served.
func (p *peer) pinged(id uint32) {
	p.t.Helper()
	p.conn.SetDeadline(time.Now().Add(patience))
	p.send(encode(p.t, id, agent.Ping, 9, agent.Empty{}))
	p.want(encode(p.t, id, agent.Pong, 9, agent.Empty{}))
}

// seeds are frames to begin with, one of each kind a client or a guest sends.
func seeds(f *testing.F) (all [][]byte) {
	for _, vector := range []string{
		"00000012 01020304 08 01 01 0000 0102030405060708 ff",
		"0000000b 00000000 00 4d5342530101",
		"00000025 00000000 00 4d53424c 02 01 0000 00000001 01ffffff 0102030405060708090a0b0c0d0e0f10",
	} {
		all = append(all, unhex(vector))
	}
	add := func(id uint32, t agent.Type, payload any) { all = append(all, encode(f, id, t, 9, payload)) }
	add(1, agent.Ping, agent.Empty{})
	add(2, agent.ExecRequest, agent.ExecRequestPayload{Cmd: "x"})
	add(2, agent.ExecStdin, agent.Data{Data: []byte("in")})
	add(2, agent.ExecSignal, agent.ExecSignalPayload{Signal: 2})
	all = append(all, readRequest(f, 3), writeRequest(f, 4), tcpRequest(f, 5))
	all = append(all, encodeBulk(f, 4, frame.BulkFilesystem, frame.FlowHostToGuest, 0, []byte("x")))
	add(4, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 1, FinalOffset: 1})
	add(5, agent.TCPClose, agent.Empty{})
	return append(all, bytes.Join(all, nil))
}

// FuzzClient lets one client send anything: another one is served all the time.
func FuzzClient(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, stream []byte, dual bool) {
		r := newRig(t, kind{generation: 9, leases: true, barrier: !dual, dual: dual, opts: Options{Shield: true, Stall: time.Second}})
		go r.guest.obliging()
		if dual {
			go io.Copy(io.Discard, r.guest.bulk)
		}
		villain, victim := r.dial(), r.dial() // ids from 1 are the villain's
		go io.Copy(io.Discard, villain.conn)
		victim.pinged(victim.start)
		// The frames are made for the first range; move them to the villain's.
		villain.conn.Write(stream)
		villain.conn.Close()
		if asksForShutdown(stream) {
			return
		}
		victim.pinged(victim.start + 1)
	})
}

// FuzzGuest lets the guest send anything: the relay ends or goes on, and never hangs.
func FuzzGuest(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s, s)
	}
	f.Add(append(append(accepted(f, 3), finish(f, 3, 5)...), ended(f, 3)...), []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, control, bulk []byte) {
		r := newRig(t, kind{generation: 9, dual: true, opts: Options{Stall: time.Second}})
		p := r.dial()
		inc := r.guest.lease().Incarnation
		p.send(readRequest(t, 3), writeRequest(t, 4), tcpRequest(t, 5))
		go io.Copy(io.Discard, p.conn)
		go io.Copy(io.Discard, r.guest.control)
		r.guest.bulk.Write(append(inc[:], bulk...))
		r.guest.control.Write(control)
		r.guest.control.Close()
		select {
		case <-r.relay.Done():
		case <-time.After(patience):
			t.Fatal("the relay did not notice that the guest is gone")
		}
	})
}

func asksForShutdown(stream []byte) bool {
	frames := frame.NewReader(bytes.NewReader(stream))
	for {
		f, err := frames.Next()
		if err != nil {
			return false
		}
		if f.Flags&frame.FlagShutdown != 0 {
			return true
		}
	}
}
