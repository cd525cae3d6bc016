package relay

import (
	"bytes"
	"context"
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
	r := newRig(t, kind{generation: 9, opts: Options{Stall: 2 * time.Second}})
	p, other := r.dial(), r.dial()
	p.send(readRequest(t, 1))
	r.guest.want(readRequest(t, 1))
	// A file of 1 GiB, of which the client reads 20 MiB.
	payload := make([]byte, 1<<20)
	most := int64(0)
	read := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, p.conn, 20<<20)
		read <- err
	}()
	told := make(chan struct{})
	go func() {
		defer close(told)
		r.guest.gone()
	}()
	sent := uint64(0)
	for ended := false; !ended && sent < 1024; sent++ { // the guest is never blocked for good
		r.guest.send(encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowGuestToHost, sent<<20, payload))
		most = max(most, r.relay.Stats().Waiting)
		select {
		case <-told: // and stops when it hears that its client is gone
			ended = true
		default:
		}
	}
	<-told
	if err := <-read; err != nil || sent < 20 {
		t.Errorf("after %d records: %v", sent, err)
	}
	if most > outboxBytes {
		t.Errorf("%d bytes waited for it", most)
	}
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
