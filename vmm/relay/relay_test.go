package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

func TestPrologueAndRanges(t *testing.T) {
	r := newRig(t, kind{generation: 7})
	a, b := r.dial(), r.dial()
	for _, want := range []struct {
		p          *peer
		start, end uint32
	}{{a, 1, 33554431}, {b, 33554432, 67108862}} {
		if want.p.start != want.start || want.p.end != want.end {
			t.Errorf("range [%d, %d), want [%d, %d)", want.p.start, want.p.end, want.start, want.end)
		}
	}
	r.alive(a, a.start)
	r.alive(b, b.end-1)
	// The lowest free range is the next one given out.
	a.conn.Close()
	r.guest.gone()
	for {
		c := r.dial()
		if c.start == 1 {
			break
		}
		// The relay may not have seen the guest read it yet; this client took the third range.
		c.conn.Close()
		r.guest.gone()
	}
}

func TestSocketIsForItsOwnerOnly(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	st, err := os.Stat(r.socket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestFullRelayClosesWithoutAByte(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	peers := make([]*peer, frame.MaxClients)
	for i := range peers {
		peers[i] = r.dial()
	}
	last := peers[len(peers)-1]
	if last.start != 127*frame.RangeStep+1 || last.end != 128*frame.RangeStep {
		t.Errorf("last range [%d, %d)", last.start, last.end)
	}
	extra := r.connect()
	if b, err := io.ReadAll(extra.conn); len(b) > 0 || err != nil {
		t.Errorf("got %x, %v", b, err)
	}
	r.alive(last, last.start)
}

// TestClientRules sends one thing and says what becomes of it: passed on to the guest as it is, answered by
// the relay, or the end of the connection. Another client never notices.
func TestClientRules(t *testing.T) {
	const id = 5
	env := func(v uint8, name string) []byte { return agent.AppendEnvelope(nil, v, name, []byte{0xa0}) }
	raw := func(length uint32, rest ...byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, length), rest...)
	}
	fr := func(id uint32, flags uint8, body []byte) []byte {
		b, err := frame.Append(nil, id, flags, body)
		if err != nil {
			panic(err)
		}
		return b
	}
	const (
		pass = "passed"
		drop = "dropped"
	)
	deep := append(unhex("a4 6176 09 6174 69"), "core.ping"...)
	deep = append(deep, unhex("6170 41a0 6178")...)
	deep = append(deep, bytes.Repeat([]byte{0x81}, 10000)...)
	deep = append(deep, 0)
	ping := env(9, "core.ping")
	tests := []struct {
		name    string
		gen     uint8
		open    bool // the guest needs no shield
		wire    []byte
		becomes string // pass, drop, or the kind of core.error
	}{
		{"length 0", 9, false, raw(0), drop},
		{"length 1", 9, false, raw(1, 0), drop},
		{"length 2", 9, false, raw(2, 0, 0), drop},
		{"length 3", 9, false, raw(3, 0, 0, 0), drop},
		{"length 4", 9, false, raw(4, 0, 0, 0, 5), drop},
		{"length 5, no body", 9, false, fr(id, 0, nil), drop},
		{"length 4194305", 9, false, raw(4194305), drop},
		{"length 4294967295", 9, false, raw(0xffffffff), drop},
		{"id 0", 9, false, fr(0, 0, ping), drop},
		{"id 0 with a session flag", 9, false, fr(0, 2, ping), drop},
		{"id 0xFFFFFFFF", 9, false, fr(0xffffffff, 0, ping), drop},
		{"id of another client", 9, false, fr(frame.RangeStep+1, 0, ping), drop},
		{"id of nobody", 9, false, fr(frame.RangeStep, 0, ping), drop},
		{"flags 0x09", 9, false, fr(id, 0x09, ping), drop},
		{"flags 0x0c", 9, false, fr(id, 0x0c, ping), drop},
		{"flags 0xff", 9, false, fr(id, 0xff, ping), drop},
		{"flags 0x10 are the guest's to refuse", 9, false, fr(id, 0x10, ping), pass},
		{"shutdown flag on a ping", 9, false, fr(id, 4, ping), pass},
		{"raw record for a guest that has none", 7, false, unhex("00000012 00000005 08 01 01 0000 0000000000000000 ff"), drop},
		{"raw record of an unknown operation", 9, false, unhex("00000012 00000005 08 01 01 0000 0000000000000000 ff"), drop},
		{"raw record without payload", 9, false, unhex("00000011 00000005 08 01 01 0000 0000000000000000"), drop},
		{"raw record with a bad kind", 9, false, unhex("00000012 00000005 08 03 01 0000 0000000000000000 ff"), drop},
		{"raw record with a bad flow", 9, false, unhex("00000012 00000005 08 01 03 0000 0000000000000000 ff"), drop},
		{"raw record with reserved bytes", 9, false, unhex("00000012 00000005 08 01 01 0001 0000000000000000 ff"), drop},
		{"raw record past 64 bits", 9, false, unhex("00000012 00000005 08 01 01 0000 ffffffffffffffff ff"), drop},
		{"plain ping", 9, false, fr(id, 0, ping), pass},
		{"plain ping to generation 6", 6, false, fr(id, 0, ping), pass},
		{"keys in another order", 9, false, fr(id, 0, append(append(unhex("a3 6170 41a0 6174 69"), "core.ping"...), unhex("6176 09")...)), pass},
		{"indefinite map", 9, false, fr(id, 0, append(append(unhex("bf 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 ff")...)), pass},
		{"16 bit map head", 9, false, fr(id, 0, append(append(unhex("b90003 6176 05 6174 69"), "core.ping"...), unhex("6170 d840 41a0")...)), pass},
		{"unknown key", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 6178 01")...)), pass},
		{"not CBOR", 9, false, fr(id, 0, []byte{0xff, 0xff}), drop},
		{"not a map", 9, false, fr(id, 0, []byte{0x80}), drop},
		{"no t", 9, false, fr(id, 0, unhex("a2 6176 09 6170 41a0")), drop},
		{"no v", 9, false, fr(id, 0, append(append(unhex("a2 6174 69"), "core.ping"...), unhex("6170 41a0")...)), drop},
		{"t is no text", 9, false, fr(id, 0, unhex("a3 6176 09 6174 01 6170 41a0")), drop},
		{"t is not UTF-8", 9, false, fr(id, 0, unhex("a3 6176 09 6174 62ffff 6170 41a0")), drop},
		{"t twice", 9, false, fr(id, 0, append(append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6174 69")...), append([]byte("core.ping"), unhex("6170 41a0")...)...)), drop},
		{"v twice", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0")...)), drop},
		{"bytes behind the envelope", 9, false, fr(id, 0, append(slices.Clone(ping), 0)), drop},
		{"depth 10000", 9, false, fr(id, 0, deep), drop},
		{"control protocol", 9, false, fr(id, 0, env(1, "control.hello")), drop},
		{"unknown core type, stock guest", 9, false, fr(id, 0, env(9, "core.nonsense")), agent.KindUnsupportedType},
		{"unknown msb type, stock guest", 9, false, fr(id, 2, env(9, "msb.fs.request")), agent.KindUnsupportedType},
		{"unknown type from a peer that knows no errors", 9, false, fr(id, 0, env(4, "core.nonsense")), drop},
		{"unknown type, own guest", 9, true, fr(id, 0, env(9, "core.nonsense")), pass},
		{"type newer than the guest", 5, false, fr(id, 0, ping), agent.KindUnsupportedType},
		{"file request to generation 1", 1, false, fr(id, 2, env(9, "core.fs.request")), agent.KindUnsupportedType},
		{"guest's type from a client", 9, false, fr(id, 1, env(9, "core.exec.exited")), pass},
		{"bootstrap", 9, true, fr(id, 0, env(9, "core.bootstrap")), agent.KindUnsupportedType},
		{"another client's end", 9, true, fr(id, 0, env(9, "core.relay.client.disconnected")), agent.KindUnsupportedType},
		{"clock", 9, true, fr(id, 0, env(9, "core.clock.sync")), agent.KindUnsupportedType},
		{"freeze", 9, true, fr(id, 0, env(9, "core.workload.freeze")), agent.KindUnsupportedType},
		{"lease record", 9, true, frame.AppendLease(nil, frame.Lease{Event: 1, Start: 1, End: 9, Incarnation: frame.Incarnation{1}}), drop},
		{"id 0 shutdown flag on another type", 9, false, fr(0, 4, ping), drop},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, kind{generation: tt.gen, opts: Options{Shield: !tt.open}})
			p := r.dial()
			other := r.dial()
			p.send(tt.wire)
			switch tt.becomes {
			case pass:
				r.guest.want(tt.wire)
			case drop:
				p.dropped()
				if killed, d := r.guest.gone(); len(killed) > 0 || d.IDStart != 1 || d.IDEndExclusive != frame.RangeStep {
					t.Errorf("killed %v, range %+v", killed, d)
				}
			default:
				var e agent.ErrorPayload
				f := p.message(agent.Error, &e)
				if e.Kind != tt.becomes || f.ID != id || e.OffendingType == nil {
					t.Errorf("got %+v for id %d", e, f.ID)
				}
				if v, err := agent.ParseEnvelope(f.Body); err != nil || v.V != 9 {
					t.Errorf("v %d, want the request's", v.V)
				}
			}
			if tt.gen >= 6 {
				r.alive(other, other.start)
			} else {
				touch := encode(t, other.start, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "x"})
				other.send(touch)
				r.guest.want(touch)
			}
		})
	}
}

func TestLargestFrame(t *testing.T) {
	r := newRig(t, kind{generation: 9, opts: Options{Shield: true}})
	p := r.dial()
	data := make([]byte, frame.MaxBody-64)
	wire, err := agent.AppendDataFrame(nil, p.start, agent.ExecStdin, 9, data)
	if err != nil {
		t.Fatal(err)
	}
	pad := frame.MaxWire - len(wire)
	if wire, err = agent.AppendDataFrame(nil, p.start, agent.ExecStdin, 9, make([]byte, len(data)+pad)); err != nil || len(wire) != frame.MaxWire {
		t.Fatalf("%d bytes, %v", len(wire), err)
	}
	go p.send(wire)
	r.guest.want(wire)
	go r.guest.send(wire)
	p.want(wire)
}

func TestShutdown(t *testing.T) {
	empty, _ := frame.Append(nil, 0, frame.FlagShutdown, nil)
	unit := encode(t, 0, agent.Shutdown, 9, nil)
	ts := encode(t, 0, agent.Shutdown, 5, agent.Empty{})
	for _, tt := range []struct {
		name       string
		sent, want []byte
	}{{"unit payload", unit, unit}, {"map payload", ts, ts}, {"no body", empty, unit}} {
		t.Run(tt.name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			r := newRig(t, kind{generation: 9, opts: Options{OnShutdown: func() { asked <- struct{}{} }}})
			p := r.dial()
			p.send(tt.sent)
			p.conn.Close() // as clients do at once
			r.guest.want(tt.want)
			select {
			case <-asked:
			case <-time.After(patience):
				t.Fatal("the runtime was not told")
			}
		})
	}
}

func TestSharedMemoryIsRefused(t *testing.T) {
	request, _ := hex.DecodeString("0000000b0000000000" + "4d5342530101")
	r := newRig(t, kind{generation: 9})
	p := r.dial()
	p.send(request)
	answer := make([]byte, 8)
	if err := p.frames.ReadFull(answer); err != nil || hex.EncodeToString(answer) != "4d53424101010000" {
		t.Fatalf("answer %x, %v", answer, err)
	}
	r.alive(p, p.start)
	p.send(request) // only the first frame may be one
	p.dropped()

	old := newRig(t, kind{generation: 7})
	q := old.dial()
	q.send(request)
	q.dropped()
}

func TestDisconnectKillsCommands(t *testing.T) {
	r := newRig(t, kind{generation: 7})
	p := r.dial()
	for _, id := range []uint32{3, 9, 4} {
		wire := encode(t, id, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "sleep"})
		p.send(wire)
		r.guest.want(wire)
	}
	// 4 has ended by itself.
	exited := encode(t, 4, agent.ExecExited, 7, agent.ExecExitedPayload{})
	r.guest.send(exited)
	p.want(exited)
	p.conn.Close()
	killed, d := r.guest.gone()
	if !slices.Equal(killed, []uint32{3, 9}) {
		t.Errorf("killed %v", killed)
	}
	if d.IDStart != 1 || d.IDEndExclusive != frame.RangeStep || d.Incarnation != nil {
		t.Errorf("range %+v", d)
	}
}

func TestLeasesAndQuarantine(t *testing.T) {
	r := newRig(t, kind{generation: 9, leases: true})
	p := r.dial()
	first := r.guest.lease()
	if first.Event != frame.LeaseConnected || first.Start != 1 || first.End != frame.RangeStep || first.Incarnation == (frame.Incarnation{}) {
		t.Fatalf("lease %+v", first)
	}
	r.alive(p, 1)
	p.conn.Close()
	_, d := r.guest.gone()
	if !bytes.Equal(d.Incarnation, first.Incarnation[:]) {
		t.Errorf("incarnation %x, want %x", d.Incarnation, first.Incarnation)
	}
	// Until the guest confirms, the range rests. A late frame of the old client goes nowhere.
	q := r.dial()
	second := r.guest.lease()
	if q.start != frame.RangeStep+1 || second.Start != q.start || second.Incarnation == first.Incarnation {
		t.Fatalf("second client at %d, lease %+v", q.start, second)
	}
	r.guest.send(encode(t, 1, agent.Pong, 9, agent.Empty{}))
	wrong := first
	wrong.Event, wrong.Incarnation[3] = frame.LeaseDisconnected, 99
	r.guest.send(frame.AppendLease(nil, wrong))
	first.Event = frame.LeaseDisconnected
	r.guest.send(frame.AppendLease(nil, first))
	r.alive(q, q.start) // the guest's frames before it have been handled
	if third := r.dial(); third.start != 1 {
		t.Errorf("third client at %d", third.start)
	}
	if l := r.guest.lease(); l.Start != 1 || l.Incarnation == first.Incarnation {
		t.Errorf("lease %+v", l)
	}
}

func TestIDsAreNotReusedWhileActive(t *testing.T) {
	request := encode(t, 6, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "x"})
	for _, tt := range []struct {
		name string
		k    kind
		end  bool // the first operation has ended
		drop bool
	}{
		{"active", kind{generation: 9}, false, true},
		{"ended", kind{generation: 9}, true, false},
		{"ended, two ports", kind{generation: 9, dual: true}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.k)
			p := r.dial()
			if tt.k.dual {
				r.guest.lease()
			}
			p.send(request)
			r.guest.want(request)
			if tt.end {
				exited := encode(t, 6, agent.ExecExited, 9, agent.ExecExitedPayload{})
				r.guest.send(exited)
				p.want(exited)
			}
			p.send(request)
			if tt.drop {
				p.dropped()
			} else {
				r.guest.want(request)
			}
		})
	}
}

func offer(kind uint8) agent.BulkOffer {
	return agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20, GuestToHostCreditLimit: 8 << 20}
}

func readRequest(t testing.TB, id uint32) []byte {
	o := offer(frame.BulkFilesystem)
	return encode(t, id, agent.FSRequest, 9, agent.FSRequestPayload{Op: agent.OpRead{Handle: 1}, Bulk: &o})
}

func writeRequest(t testing.TB, id uint32) []byte {
	o := agent.BulkOffer{Format: 1, MaxRecordPayload: 3 << 20}
	return encode(t, id, agent.FSRequest, 9, agent.FSRequestPayload{Op: agent.OpWrite{Handle: 1}, Bulk: &o})
}

func tcpRequest(t testing.TB, id uint32) []byte {
	o := offer(frame.BulkTCP)
	return encode(t, id, agent.TCPConnect, 9, agent.TCPConnectPayload{Host: "localhost", Port: 80, Bulk: &o})
}

func TestBulkOperationCap(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	p := r.dial()
	for id := uint32(1); id <= maxBulk; id++ {
		p.send(readRequest(t, id))
		r.guest.want(readRequest(t, id))
	}
	p.send(readRequest(t, 100))
	var answer agent.FSResponsePayload
	if f := p.message(agent.FSResponse, &answer); f.ID != 100 || answer.OK || answer.Error == nil {
		t.Errorf("answer %+v", answer)
	}
	p.send(tcpRequest(t, 101))
	var failed agent.TCPFailedPayload
	if f := p.message(agent.TCPFailed, &failed); f.ID != 101 || failed.Error == "" {
		t.Errorf("answer %+v", failed)
	}
	// Without an offer it is no bulk operation, and an ended one makes room.
	plain := encode(t, 102, agent.FSRequest, 9, agent.FSRequestPayload{Op: agent.OpRead{Handle: 1}})
	p.send(plain)
	r.guest.want(plain)
	done := encode(t, 1, agent.FSResponse, 9, agent.FSResponsePayload{OK: true})
	r.guest.send(done)
	p.want(done)
	p.send(readRequest(t, 103))
	r.guest.want(readRequest(t, 103))
}

func TestRawRecords(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	p := r.dial()
	p.send(writeRequest(t, 1))
	r.guest.want(writeRequest(t, 1))
	record := encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowHostToGuest, 0, []byte("hello"))
	p.send(record)
	r.guest.want(record)
	back := encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowGuestToHost, 0, []byte("world"))
	r.guest.send(back)
	p.want(back)
	// The guest ends it while records are on their way: those are dropped, the client stays.
	failed := "disk full"
	end := encode(t, 1, agent.FSResponse, 9, agent.FSResponsePayload{Error: &failed})
	r.guest.send(end)
	p.want(end)
	p.send(record)
	r.alive(p, 2)
	// A record that flows the wrong way is no accident.
	p.send(writeRequest(t, 3))
	r.guest.want(writeRequest(t, 3))
	p.send(encodeBulk(t, 3, frame.BulkFilesystem, frame.FlowGuestToHost, 0, []byte("x")))
	p.dropped()
}

func TestPausedRelayAnswersNewSessions(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	p := r.dial()
	r.relay.Pause("the sandbox is paused; `msb resume box` wakes it")
	p.send(encode(t, 1, agent.ExecRequest, 7, agent.ExecRequestPayload{Cmd: "x"}))
	var e agent.ErrorPayload
	f := p.message(agent.Error, &e)
	if v, _ := agent.ParseEnvelope(f.Body); e.Kind != agent.KindInvalidSession || v.V != 7 {
		t.Errorf("%+v v %d", e, v.V)
	}
	r.alive(p, 2)
	r.relay.Resume()
	request := encode(t, 3, agent.ExecRequest, 7, agent.ExecRequestPayload{Cmd: "x"})
	p.send(request)
	r.guest.want(request)
}

func TestClientThatStopsReading(t *testing.T) {
	r := newRig(t, kind{generation: 9, opts: Options{Stall: 100 * time.Millisecond}})
	p, other := r.dial(), r.dial()
	p.send(readRequest(t, 1))
	r.guest.want(readRequest(t, 1))
	// Much more than the relay keeps for it.
	payload := make([]byte, 1<<20)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range 64 {
			r.guest.send(encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowGuestToHost, uint64(i)<<20, payload))
		}
	}()
	<-sent // the guest is never blocked for good
	r.guest.gone()
	r.alive(other, other.start)
	if w := r.relay.Stats().Waiting; w != 0 {
		t.Errorf("%d bytes still wait", w)
	}
}

func TestHostFrames(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	at := time.Unix(1700000000, 42)
	if err := r.relay.SyncClock(at); err != nil {
		t.Fatal(err)
	}
	r.guest.want(encode(t, 0, agent.ClockSync, 9, agent.ClockSyncPayload{UnixTimeNanos: 1700000000000000042}))
	if err := r.relay.Shutdown(); err != nil {
		t.Fatal(err)
	}
	r.guest.want(encode(t, 0, agent.Shutdown, 9, nil))
}

func TestPrivateFramesNeverReachClients(t *testing.T) {
	r := newRig(t, kind{generation: 9, leases: true})
	p := r.dial()
	r.guest.lease()
	r.guest.send(
		encode(t, frame.IDLifecycle, agent.TransportCredit, 9, agent.InitialGrants),
		encode(t, frame.IDLifecycle, agent.WorkloadThawed, 9, agent.ThawedPayload{AttemptID: "x"}),
		encode(t, 0, agent.Error, 9, agent.ErrorPayload{Kind: "invalid_flags", Message: "\x1b[31m"}),
		encode(t, frame.RangeStep, agent.Pong, 9, agent.Empty{}),
		encode(t, 5*frame.RangeStep+1, agent.Pong, 9, agent.Empty{}),
	)
	r.alive(p, 1)
}

func TestGuestThatBreaksTheStreamEndsTheRelay(t *testing.T) {
	for _, tt := range []struct {
		name string
		wire []byte
		want error
	}{
		{"too short", []byte{0, 0, 0, 4, 0, 0, 0, 0}, frame.ErrTooShort},
		{"too large", []byte{0xff, 0xff, 0xff, 0xff}, frame.ErrTooLarge},
		{"closed", nil, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, kind{generation: 9})
			p := r.dial()
			if tt.wire != nil {
				r.guest.send(tt.wire)
			} else {
				r.guest.control.Close()
			}
			p.dropped()
			<-r.relay.Done()
			if err := r.relay.Err(); !errors.Is(err, tt.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestFreezeAndThaw(t *testing.T) {
	r := newRig(t, kind{generation: 9, barrier: true})
	p := r.dial()
	request := encode(t, 1, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "cat"})
	stdin, err := agent.AppendDataFrame(nil, 1, agent.ExecStdin, 9, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	p.send(request, stdin)
	r.guest.want(request)
	r.guest.want(stdin)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	frozen := make(chan error, 1)
	go func() {
		_, err := r.relay.Freeze(ctx, "try-1")
		frozen <- err
	}()
	f := r.guest.next()
	e, _ := agent.ParseEnvelope(f.Body)
	var freeze agent.FreezePayload
	if err := agent.DecodePayload(e.P, &freeze); err != nil || f.ID != frame.IDLifecycle || freeze.AttemptID != "try-1" {
		t.Fatalf("%+v, %v", freeze, err)
	}
	want := agent.Position{ControlBytes: uint64(len(request)), ControlFrames: 1, BulkBytes: uint64(len(stdin)), BulkFrames: 1}
	if freeze.HostInput != want {
		t.Errorf("position %+v, want %+v", freeze.HostInput, want)
	}
	r.guest.send(encode(t, f.ID, agent.WorkloadFrozen, 9, agent.FrozenPayload{AttemptID: "try-1", InputCredit: agent.InitialGrants}))
	if err := <-frozen; err != nil {
		t.Fatal(err)
	}
	// Input waits until the guest has thawed.
	p.send(stdin)
	thawed := make(chan error, 1)
	go func() { thawed <- r.relay.Thaw(ctx, "try-1", agent.ThawContinue) }()
	r.guest.want(encode(t, frame.IDLifecycle, agent.WorkloadThaw, 9, agent.ThawPayload{AttemptID: "try-1", Mode: "continue"}))
	r.guest.send(encode(t, frame.IDLifecycle, agent.WorkloadThawed, 9, agent.ThawedPayload{AttemptID: "try-1"}))
	if err := <-thawed; err != nil {
		t.Fatal(err)
	}
	r.guest.want(stdin)

	// A refusal lets input flow again.
	go func() {
		_, err := r.relay.Freeze(ctx, "try-2")
		frozen <- err
	}()
	r.guest.next()
	r.guest.send(encode(t, frame.IDLifecycle, agent.Error, 9, agent.ErrorPayload{Kind: agent.KindInvalidSession, Message: "no"}))
	if err := <-frozen; err == nil {
		t.Error("a refused freeze succeeded")
	}
	r.alive(p, 2)
}

func TestFreezeIsRefusedBeforeAnythingChanges(t *testing.T) {
	for _, k := range []kind{{generation: 8, barrier: true}, {generation: 9}} {
		r := newRig(t, k)
		p := r.dial()
		if _, err := r.relay.Freeze(context.Background(), "x"); !errors.Is(err, ErrNoFreeze) {
			t.Errorf("generation %d: %v", k.generation, err)
		}
		r.alive(p, 1)
	}
}

func TestBootErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer [][]byte
		want   string
	}{
		{"wrong message", [][]byte{encode(t, 0, agent.Pong, 9, agent.Empty{})}, "core.pong"},
		{"error", [][]byte{encode(t, 0, agent.Error, 9, agent.ErrorPayload{Kind: "invalid_payload", Message: "no root"})}, "no root"},
		{"garbage", [][]byte{{0, 0, 0, 1}}, "too short"},
		{"end", nil, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, control := pair(t)
			go func() {
				frame.NewReader(control).Next()
				for _, a := range tt.answer {
					control.Write(a)
				}
				control.Close()
			}()
			_, err := Boot(context.Background(), host, nil, agent.BootstrapPayload{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	t.Run("silence", func(t *testing.T) {
		host, _ := pair(t)
		bulk, _ := pair(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("enough"))
		if _, err := Boot(ctx, host, bulk, agent.BootstrapPayload{}); err == nil || !strings.Contains(err.Error(), "enough") {
			t.Errorf("error %v", err)
		}
	})
}
