package relay

import (
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// meter is a guest that counts what it gets, as one of generation 9 does.
type meter struct {
	*guest
	got   agent.Position // everything
	limit agent.Position
	exact bool // it says whose input it has consumed
}

func newMeter(g *guest) *meter { return &meter{guest: g, limit: agent.InitialGrants} }

// take reads a frame, counts it, and fails the test when the host went past a grant.
func (m *meter) take() frame.Frame {
	m.t.Helper()
	f := m.next()
	n := uint64(len(f.Raw))
	isData := f.Flags == frame.FlagBulk
	if e, err := agent.ParseEnvelope(f.Body); err == nil {
		if t, ok := e.Type(); ok && t.IsDataClass() {
			isData = true
		}
	}
	if isData {
		m.got.BulkBytes += n
		m.got.BulkFrames++
	} else {
		m.got.ControlBytes += n
		m.got.ControlFrames++
	}
	if m.got.ControlBytes > m.limit.ControlBytes || m.got.ControlFrames > m.limit.ControlFrames ||
		m.got.BulkBytes > m.limit.BulkBytes || m.got.BulkFrames > m.limit.BulkFrames {
		m.t.Fatalf("the host exceeded its credit: %+v of %+v", m.got, m.limit)
	}
	return f
}

// consume grants again what was consumed.
func (m *meter) consume(p agent.Position) {
	m.t.Helper()
	m.limit.ControlBytes += p.ControlBytes
	m.limit.ControlFrames += p.ControlFrames
	m.limit.BulkBytes += p.BulkBytes
	m.limit.BulkFrames += p.BulkFrames
	m.send(encode(m.t, frame.IDLifecycle, agent.TransportCredit, 9, m.limit))
}

// consumes grants again what a frame of data took.
func (m *meter) consumes(f frame.Frame) {
	m.t.Helper()
	n := agent.ConsumedInput{ID: f.ID, Bytes: uint64(len(f.Raw)), Frames: 1}
	if m.exact {
		m.send(encode(m.t, frame.IDLifecycle, agent.InputConsumed, 9, agent.InputConsumedPayload{Operations: []agent.ConsumedInput{n}}))
	}
	m.consume(agent.Position{BulkBytes: n.Bytes, BulkFrames: 1})
}

// quiet checks that nothing more comes for a moment.
func (m *meter) quiet() {
	m.t.Helper()
	m.control.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if f, err := m.frames.Next(); err == nil {
		m.t.Fatalf("the host sent %s without credit", name(f))
	}
	m.frames = frame.NewReader(m.control)
}

func stdinFrame(t testing.TB, id uint32, n int) []byte {
	b, err := agent.AppendDataFrame(nil, id, agent.ExecStdin, 9, make([]byte, n))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestControlCreditIsNeverExceeded(t *testing.T) {
	r := newRig(t, kind{generation: 9, leases: true, barrier: true})
	m := newMeter(r.guest)
	p := r.dial()
	ping := encode(t, 1, agent.Ping, 9, agent.Empty{})
	go func() {
		for range 600 {
			p.conn.Write(ping)
		}
	}()
	for range 256 { // the lease record is one of them
		m.take()
	}
	m.quiet()
	m.consume(agent.Position{ControlBytes: m.got.ControlBytes, ControlFrames: 100})
	for range 100 {
		m.take()
	}
	m.quiet()
	m.consume(agent.Position{ControlBytes: 1 << 20, ControlFrames: 300})
	for range 600 - 355 {
		m.take()
	}
}

func TestCreditNeverGoesBack(t *testing.T) {
	r := newRig(t, kind{generation: 9, barrier: true})
	m := newMeter(r.guest)
	p := r.dial()
	r.guest.send(encode(t, frame.IDLifecycle, agent.TransportCredit, 9, agent.Position{}))
	r.alive(p, 1)
	m.got.ControlFrames++
	ping := encode(t, 1, agent.Ping, 9, agent.Empty{})
	for range 255 {
		p.send(ping)
		m.take()
	}
}

// A guest before generation 9 grants nothing and wants everything.
func TestNoCreditBeforeGeneration9(t *testing.T) {
	r := newRig(t, kind{generation: 8})
	p := r.dial()
	ping := encode(t, 1, agent.Ping, 8, agent.Empty{})
	for range 1000 {
		p.send(ping)
		r.guest.want(ping)
	}
}

// A command that never reads its input has a quarter of the credit, and hardly more: others go on at once, by commands
// and by data, and the end of its client frees the rest.
func TestUnreadInputDoesNotStarveOthers(t *testing.T) {
	for guest, k := range map[string]kind{
		"guest that says whose input it consumes": {generation: 9, barrier: true, exact: true},
		"stock guest": {generation: 9, barrier: true, opts: Options{Shield: true}},
	} {
		t.Run(guest, func(t *testing.T) {
			r := newRig(t, k)
			m := newMeter(r.guest)
			m.exact = k.exact
			stuck := r.dial()
			stuck.send(encode(t, 1, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "sleep"}))
			m.take()
			go func() {
				for range 2000 {
					if _, err := stuck.conn.Write(stdinFrame(t, 1, 64<<10)); err != nil {
						return
					}
				}
			}()
			const share = 64
			unread := 0
			for ; unread < share; unread++ {
				m.take()
			}
			// Many megabytes of a client whose input is read.
			busy := r.dial()
			id := busy.start
			go func() {
				busy.conn.Write(encode(t, id, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "cat"}))
				for range 600 {
					if _, err := busy.conn.Write(stdinFrame(t, id, 64<<10)); err != nil {
						return
					}
				}
			}()
			for got := 0; got < 600; {
				f := m.take()
				switch {
				case f.ID == 1:
					unread++
				case name(f) == agent.ExecStdin.String():
					got++
					m.consumes(f)
				}
			}
			t.Logf("%d frames of the stuck client are unread", unread)
			if limit := share + 64; unread > limit || k.exact && unread > share {
				t.Errorf("the stuck client got %d frames through", unread)
			}
			// Its end does not wait for credit of data.
			stuck.conn.Close()
			m.gone()
			r.alive(busy, id+1)
		})
	}
}

// Two clients whose data is read share the port, whatever each has queued.
func TestDataOfClientsTakesTurns(t *testing.T) {
	r := newRig(t, kind{generation: 9, barrier: true})
	m := newMeter(r.guest)
	const frames = 400
	ids := map[uint32]int{}
	peers := []*peer{r.dial(), r.dial()}
	for _, p := range peers {
		ids[p.start] = 0
		p.send(encode(t, p.start, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "cat"}))
		m.take()
	}
	for _, p := range peers {
		id := p.start
		go func() {
			for range frames {
				if _, err := p.conn.Write(stdinFrame(t, id, 32<<10)); err != nil {
					return
				}
			}
		}()
	}
	for range 2 * frames {
		f := m.take()
		ids[f.ID]++
		m.consumes(f)
	}
	for id, n := range ids {
		if n != frames {
			t.Errorf("client at %d: %d frames", id, n)
		}
	}
}

// Per id, order is kept: a command does not overtake data of the same operation, but for signals and sizes
// of terminals, which have nothing to do with it.
func TestOrderWithinAnOperation(t *testing.T) {
	r := newRig(t, kind{generation: 9, barrier: true, exact: true})
	m := newMeter(r.guest)
	m.exact = true
	p := r.dial()
	const id = 1
	p.send(encode(t, id, agent.TCPConnect, 9, agent.TCPConnectPayload{Host: "h", Port: 1}))
	m.take()
	data, err := agent.AppendDataFrame(nil, id, agent.TCPData, 9, make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	var sent frame.Frame
	for range 64 { // its share
		p.send(data)
		sent = m.take()
	}
	// No more data credit for this client: data waits, and what belongs behind it too.
	last := encode(t, id, agent.TCPClose, 9, agent.Empty{})
	signal := encode(t, id, agent.ExecSignal, 9, agent.ExecSignalPayload{Signal: 2})
	p.send(data, last, signal)
	m.want(signal)
	r.alive(p, 2)
	m.quiet()
	m.consumes(sent)
	m.want(data)
	m.want(last)
}

func TestOneClientCanUseAllOfItsShareAndGoOn(t *testing.T) {
	r := newRig(t, kind{generation: 9, barrier: true})
	m := newMeter(r.guest)
	p := r.dial()
	p.send(writeRequest(t, 1))
	m.take()
	const size = 1 << 20
	payload := make([]byte, size)
	go func() {
		for i := range 64 {
			rec, err := frame.AppendBulk(nil, frame.Bulk{ID: 1, Kind: 1, Flow: 1, Offset: uint64(i) * size, Payload: payload})
			if err != nil {
				return
			}
			p.conn.Write(rec)
		}
	}()
	for range 64 {
		f := m.take()
		m.consumes(f)
	}
}
