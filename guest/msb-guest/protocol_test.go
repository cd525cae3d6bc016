package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// failure is a core.error in short.
func failure(t testing.TB, m message) string {
	t.Helper()
	if m.t != agent.Error {
		t.Fatalf("%v is no core.error", m)
	}
	p := decode[agent.ErrorPayload](t, m)
	offending := ""
	if p.OffendingType != nil {
		offending = *p.OffendingType
	}
	return p.Kind + " " + offending
}

func rawFrame(t testing.TB, id uint32, flags uint8, body []byte) []byte {
	t.Helper()
	b, err := frame.Append(nil, id, flags, body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encoded(t testing.TB, id uint32, flags, v uint8, name string, p []byte) []byte {
	t.Helper()
	b, err := agent.AppendEncoded(nil, id, flags, v, name, p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a published agent dies of is answered, and the guest goes on.
func TestBadInputIsAnswered(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	empty := []byte{0xa0}
	tests := []struct {
		name string
		raw  func(id uint32) []byte
		want string // "" = no answer
	}{
		{"garbage body", func(id uint32) []byte { return rawFrame(t, id, 0, []byte("garbage")) }, "malformed_message "},
		{"empty body", func(id uint32) []byte { return rawFrame(t, id, 0, nil) }, "malformed_message "},
		{"deep nesting", func(id uint32) []byte { return rawFrame(t, id, 0, []byte(strings.Repeat("\x81", 10000))) }, "malformed_message "},
		{"unknown type", func(id uint32) []byte { return encoded(t, id, 0, 9, "core.nonsense", empty) }, "unsupported_message_type core.nonsense"},
		{"unknown type of an old peer", func(id uint32) []byte { return encoded(t, id, 0, 4, "core.nonsense", empty) }, ""},
		{"wrong flags", func(id uint32) []byte { return encoded(t, id, 0x12, 9, "core.ping", empty) }, "invalid_flags core.ping"},
		{"all flags", func(id uint32) []byte { return encoded(t, id, 0xf7, 9, "core.ping", empty) }, "invalid_flags core.ping"},
		{"bulk and another flag", func(id uint32) []byte { return encoded(t, id, 0x09, 9, "core.ping", empty) }, "malformed_message "},
		{"null for an empty map", func(id uint32) []byte { return encoded(t, id, 0, 9, "core.ping", []byte{0xf6}) }, "invalid_payload core.ping"},
		{"empty payload", func(id uint32) []byte { return encoded(t, id, 0, 9, "core.touch", nil) }, "invalid_payload core.touch"},
		{"missing field", func(id uint32) []byte { return encoded(t, id, 2, 9, "core.exec.request", empty) }, "invalid_payload core.exec.request"},
		{"acceptance from the host", func(id uint32) []byte {
			b, _ := agent.AppendFrame(nil, id, agent.BulkAccepted, 9, agent.BulkAcceptedPayload{Kind: 1})
			return b
		}, "unsupported_message_type core.bulk.accepted"},
		{"a message that only guests send", func(id uint32) []byte {
			b, _ := agent.AppendFrame(nil, id, agent.ExecExited, 9, agent.ExecExitedPayload{})
			return b
		}, ""},
		{"record of an unknown kind", func(id uint32) []byte {
			return rawFrame(t, id, 8, append([]byte{7, 1, 0, 0}, make([]byte, 9)...))
		}, "malformed_message "},
		{"record without payload", func(id uint32) []byte { return rawFrame(t, id, 8, append([]byte{1, 1, 0, 0}, make([]byte, 8)...)) }, "malformed_message "},
		{"record of the guest's flow", func(id uint32) []byte { return rawFrame(t, id, 8, append([]byte{1, 2, 0, 0}, make([]byte, 9)...)) }, "malformed_message "},
		{"record past 64 bits", func(id uint32) []byte {
			return rawFrame(t, id, 8, append([]byte{1, 1, 0, 0}, strings.Repeat("\xff", 9)...))
		}, "malformed_message "},
		{"freeze on a client's id", func(id uint32) []byte {
			b, _ := agent.AppendFrame(nil, id, agent.WorkloadFreeze, 9, agent.FreezePayload{AttemptID: "a"})
			return b
		}, "invalid_session "},
		{"bytes after envelope and payload", func(id uint32) []byte {
			b, _ := agent.AppendFrame(nil, id, agent.Ping, 9, agent.Empty{})
			return rawFrame(t, id, 0, append(b[frame.Overhead:], "more"...))
		}, "pong"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := uint32(100 + 2*i)
			s.write(tt.raw(id))
			s.send(id+1, agent.Ping, agent.Empty{})
			s.awaitType(id+1, agent.Pong)
			// A stray record may also be answered on its id by the service; the first answer counts.
			got := s.all(id)
			switch {
			case tt.want == "":
				if len(got) != 0 {
					t.Errorf("answered with %v", got)
				}
			case tt.want == "pong":
				s.awaitType(id, agent.Pong)
			default:
				m := s.awaitType(id, agent.Error)
				if f := failure(t, m); f != tt.want {
					t.Errorf("%s, want %s", f, tt.want)
				}
			}
		})
	}
	s.shutdown()
}

// A stream whose frames cannot be told apart any more ends the guest, in order and with a reason.
func TestBrokenFramingEndsTheGuest(t *testing.T) {
	for _, length := range []uint32{0, 4, frame.MaxLength + 1, 1 << 31} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			s := up(t, agent.BootstrapPayload{})
			s.write(binary.BigEndian.AppendUint32(nil, length))
			select {
			case <-s.exited:
			case <-time.After(time.Minute):
				t.Fatal("the guest goes on")
			}
			if !strings.Contains(s.console.String(), "cannot be followed any more") {
				t.Errorf("console: %s", s.console.String())
			}
		})
	}
}

func TestRefusedBootstraps(t *testing.T) {
	tests := []struct {
		name string
		v    uint8
		boot agent.BootstrapPayload
		want string
	}{
		{"generation 6", 6, agent.BootstrapPayload{}, "generation 6"},
		{"no such disk", 9, agent.BootstrapPayload{BlockRoot: &agent.BlockRoot{Kind: "floppy"}}, "floppy"},
		{"no root disk", 9, agent.BootstrapPayload{}, "root disk"},
		{"share", 9, agent.BootstrapPayload{BlockRoot: &agent.BlockRoot{Kind: agent.RootDiskImage, Device: "x", FSType: "ext4"},
			DirMounts: []agent.DirMount{{Tag: "t", GuestPath: "/t"}}}, "no shares"},
		{"unknown user", 9, agent.BootstrapPayload{BlockRoot: &agent.BlockRoot{Kind: agent.RootDiskImage, Device: "x", FSType: "ext4"}, User: "nobody-here"}, "nobody-here"},
		{"security profile", 9, agent.BootstrapPayload{SecurityProfile: "lax"}, "lax"},
		{"init program", 9, agent.BootstrapPayload{HandoffInit: &agent.HandoffInit{Cmd: "/sbin/init"}}, "/sbin/init"},
	}
	image := busyboxImage(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, image, false)
			if tt.boot.SecurityProfile == "" {
				tt.boot.SecurityProfile = agent.SecurityDefault
			}
			raw, err := agent.AppendFrame(nil, 0, agent.Bootstrap, tt.v, tt.boot)
			if err != nil {
				t.Fatal(err)
			}
			s.write(raw)
			s.send(0, agent.InitAck, agent.Empty{})
			m := s.awaitType(0, agent.Error)
			if text := decode[agent.ErrorPayload](t, m).Message; !strings.Contains(text, tt.want) {
				t.Errorf("the host is told %q", text)
			}
			select {
			case <-s.exited:
			case <-time.After(time.Minute):
				t.Fatal("the guest hangs")
			}
			if !strings.Contains(s.console.String(), tt.want) {
				t.Errorf("console: %q", s.console.String())
			}
		})
	}
}

// A newer generation's bootstrap is taken.
func TestNewerBootstrap(t *testing.T) {
	s := start(t, busyboxImage(t), false)
	b := agent.BootstrapPayload{SecurityProfile: agent.SecurityRestricted, BlockRoot: &agent.BlockRoot{Kind: agent.RootDiskImage, Device: "x", FSType: "ext4"}}
	raw, err := agent.AppendFrame(nil, 0, agent.Bootstrap, 42, b)
	if err != nil {
		t.Fatal(err)
	}
	s.write(raw)
	s.awaitType(0, agent.InitResolved)
	s.send(0, agent.InitAck, agent.Empty{})
	s.awaitType(0, agent.Ready)
	if out, _ := s.run(1, sh("grep NoNewPrivs /proc/self/status")); !strings.Contains(out, "1") {
		t.Errorf("restricted: %s", out)
	}
	s.shutdown()
}

func lease(event uint8, slot int, fill byte) []byte {
	start, end := frame.Range(slot)
	l := frame.Lease{Event: event, Start: start, End: end}
	for i := range l.Incarnation {
		l.Incarnation[i] = fill
	}
	return frame.AppendLease(nil, l)
}

func TestLeasedClientLeaves(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	begin, end := frame.Range(1)
	other, _ := frame.Range(2)
	s.write(lease(frame.LeaseConnected, 1, 7))
	s.write(lease(frame.LeaseConnected, 2, 8))
	s.send(begin, agent.ExecRequest, sh("trap '' TERM HUP; echo up; sleep 100"))
	s.send(other, agent.ExecRequest, sh("echo up; read x; echo $x"))
	s.await(0, "output", func(m message) bool { return m.id == begin && m.t == agent.ExecStdout })
	s.await(0, "output", func(m message) bool { return m.id == other && m.t == agent.ExecStdout })

	incarnation := make(agent.Octets, 16)
	for i := range incarnation {
		incarnation[i] = 7
	}
	s.send(0, agent.ClientDisconnected, agent.ClientDisconnectedPayload{IDStart: begin, IDEndExclusive: end, Incarnation: incarnation})
	m, _ := s.await(0, "lease acknowledgement", func(m message) bool { return m.lease != nil })
	if m.lease.Event != frame.LeaseDisconnected || m.lease.Start != begin || m.lease.Incarnation[0] != 7 {
		t.Errorf("acknowledged %+v", m.lease)
	}
	if out, _ := s.run(other+1, sh("ps | grep -c 'sleep 10[0]'")); strings.TrimSpace(out) != "0" {
		t.Errorf("the client's command still runs: %s", out)
	}
	for _, m := range s.all(begin) {
		if m.flags == frame.FlagTerminal {
			t.Errorf("%v for a client that is gone", m)
		}
	}
	// The range is used again by the next client.
	s.write(lease(frame.LeaseConnected, 1, 9))
	if out, _ := s.run(begin+1, sh("echo new")); out != "new\n" {
		t.Errorf("the next client gets %q", out)
	}
	s.send(other, agent.ExecStdin, agent.Data{Data: []byte("still here\n")})
	s.terminal(other)
	if out := s.output(other); out != "up\nstill here\n" {
		t.Errorf("the other client got %q", out)
	}
	s.shutdown()
}

func TestFreezeAndThaw(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	ready := decode[agent.ReadyPayload](t, s.awaitType(0, agent.Ready))
	if ready.BarrierVersion == nil {
		t.Skip("no cgroup v2 freezer here")
	}
	if *ready.BarrierVersion != 2 {
		t.Fatalf("barrier version %d", *ready.BarrierVersion)
	}
	request, err := agent.AppendFrame(nil, 1, agent.ExecRequest, 9, sh("i=0; while true; do echo $i; i=$((i+1)); done"))
	if err != nil {
		t.Fatal(err)
	}
	s.write(request)
	s.await(0, "output", func(m message) bool { return m.t == agent.ExecStdout })
	position := agent.Position{ControlBytes: uint64(len(request)), ControlFrames: 1}

	private := frame.IDLifecycle
	answer := func(from int) (message, int) {
		return s.await(from, "answer", func(m message) bool { return m.id == private && m.t != agent.TransportCredit })
	}
	s.send(private, agent.WorkloadFreeze, agent.FreezePayload{AttemptID: "wrong", ExternalMountTags: []string{}})
	m, at := answer(0)
	if p := decode[agent.ErrorPayload](t, m); m.t != agent.Error || p.Kind != agent.KindInvalidSession || p.WorkloadFailure == nil || p.WorkloadFailure.AttemptID != "wrong" {
		t.Fatalf("a wrong position is answered with %v", m)
	}
	freeze := agent.FreezePayload{AttemptID: "a1", ExternalMountTags: []string{}, HostInput: position}
	s.send(private, agent.WorkloadFreeze, freeze)
	m, at = answer(at)
	frozen := decode[agent.FrozenPayload](t, m)
	if m.t != agent.WorkloadFrozen || frozen.AttemptID != "a1" || frozen.GuestBulkBytesTarget != 0 || !frozen.ExternalMountsSynced {
		t.Fatalf("frozen: %v", m)
	}
	if frozen.InputCredit.ControlFrames != agent.InitialGrants.ControlFrames+1 {
		t.Errorf("input credit %+v", frozen.InputCredit)
	}
	s.mu.Lock()
	still := len(s.got)
	s.mu.Unlock()
	s.send(private, agent.WorkloadFreeze, freeze) // again
	m, at = answer(at)
	if m.t != agent.WorkloadFrozen {
		t.Errorf("the same attempt again: %v", m)
	}
	other := freeze
	other.AttemptID = "a2"
	s.send(private, agent.WorkloadFreeze, other)
	if m, at = answer(at); m.t != agent.Error {
		t.Errorf("another attempt: %v", m)
	}
	s.send(private, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "a2", Mode: agent.ThawContinue})
	if m, at = answer(at); m.t != agent.Error {
		t.Errorf("a thaw of another attempt: %v", m)
	}
	s.send(2, agent.Ping, agent.Empty{})
	s.awaitType(2, agent.Pong) // the agent itself is not frozen
	s.mu.Lock()
	for _, m := range s.got[still:] {
		if m.t == agent.ExecStdout {
			t.Error("workload output while frozen")
		}
	}
	s.mu.Unlock()
	s.send(private, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "a1", Mode: agent.ThawContinue})
	m, end := answer(at)
	if m.t != agent.WorkloadThawed {
		t.Fatalf("thaw: %v", m)
	}
	s.mu.Lock()
	if before := s.got[end-2]; before.t != agent.TransportCredit {
		t.Errorf("before thawed comes %v", before)
	}
	s.mu.Unlock()
	s.await(end, "output after the thaw", func(m message) bool { return m.t == agent.ExecStdout })
	s.send(private, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "a1", Mode: agent.ThawContinue})
	if m, _ = answer(end); m.t != agent.WorkloadThawed {
		t.Errorf("the same thaw again: %v", m)
	}
	s.shutdown()
}

// A command that does not read its input holds its client's grant, and going past it costs that command only.
func TestInputPastTheGrant(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	s.send(1, agent.ExecRequest, sh("sleep 100"))
	s.awaitType(1, agent.ExecStarted)
	chunk := agent.Data{Data: make([]byte, 1<<20)}
	for range 40 {
		s.send(1, agent.ExecStdin, chunk)
	}
	if f := failure(t, s.awaitType(1, agent.Error)); f != "invalid_session " {
		t.Errorf("answered with %s", f)
	}
	// The grants come back with the end of the command, and everybody else goes on.
	s.await(0, "credit", func(m message) bool {
		return m.t == agent.TransportCredit && decode[agent.Position](t, m).BulkBytes > agent.InitialGrants.BulkBytes+32<<20
	})
	if out, code := s.run(2, sh("echo fine")); out != "fine\n" || code != 0 {
		t.Errorf("%q %d", out, code)
	}
	s.shutdown()
}

// Records take the bulk port, with the client's incarnation in front, and everything else the control port.
func TestDualPort(t *testing.T) {
	s := start(t, busyboxImage(t), true)
	s.handshake(agent.BootstrapPayload{})
	ready := decode[agent.ReadyPayload](t, s.awaitType(0, agent.Ready))
	if ready.Bulk == nil || ready.Bulk.Profile != agent.DualPortProfile || ready.Bulk.Port != agent.BulkPortName || len(ready.Bulk.ConnectionID) != 16 {
		t.Fatalf("ready: %+v", ready.Bulk)
	}
	s.write(lease(frame.LeaseConnected, 0, 5))
	s.send(1, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpOpenFile{Path: "/root/f", Options: agent.OpenOptions{Read: true, Write: true, Create: true}}})
	s.terminal(1)
	s.send(2, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpWrite{Handle: 1}, Bulk: &agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20}})
	s.awaitType(2, agent.BulkAccepted)
	content := []byte(strings.Repeat("0123456789abcdef", 4096))
	prefix := func(fill byte) []byte {
		b := make([]byte, 16)
		for i := range b {
			b[i] = fill
		}
		return b
	}
	record := func(fill byte, r frame.Bulk) {
		raw, err := frame.AppendBulk(prefix(fill), r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.bulk.Write(raw); err != nil {
			t.Fatal(err)
		}
	}
	// The finish may overtake the records; a record of a client that is gone is dropped.
	s.send(2, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 1, FinalOffset: uint64(len(content))})
	record(6, frame.Bulk{ID: 2, Kind: 1, Flow: 1, Payload: []byte("stale")})
	record(5, frame.Bulk{ID: 2, Kind: 1, Flow: 1, Payload: content})
	if p := decode[agent.FSResponsePayload](t, s.terminal(2)); !p.OK {
		t.Fatalf("write: %v", *p.Error)
	}
	s.send(3, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpRead{Handle: 1}, Bulk: &agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20, GuestToHostCreditLimit: 8 << 20}})
	r := frame.NewReader(s.bulk)
	var got []byte
	for len(got) < len(content) {
		var incarnation [16]byte
		if err := r.ReadFull(incarnation[:]); err != nil {
			t.Fatal(err)
		}
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		rec, err := frame.ParseBulk(f)
		if err != nil || incarnation[0] != 5 || rec.ID != 3 || rec.Offset != uint64(len(got)) {
			t.Fatalf("record %+v %v of %x", rec.ID, err, incarnation)
		}
		got = append(got, rec.Payload...)
	}
	if string(got) != string(content) {
		t.Error("what was read is not what was written")
	}
	finish := decode[agent.BulkFinishPayload](t, s.awaitType(3, agent.BulkFinish))
	if finish.FinalOffset != uint64(len(content)) {
		t.Errorf("finish %+v", finish)
	}
	s.shutdown()
}

// A client that reads slowly slows its own commands down; nothing is lost, and small answers pass.
func TestOutputIsNeverLost(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	s.send(1, agent.ExecRequest, sh("seq 1 200000"))
	s.send(2, agent.ExecRequest, sh("seq 1 200000 1>&2"))
	for id := uint32(10); id < 60; id++ {
		s.send(id, agent.Ping, agent.Empty{})
		s.awaitType(id, agent.Pong)
	}
	s.terminal(1)
	s.terminal(2)
	out := s.output(1)
	if lines := strings.Count(out, "\n"); lines != 200000 || !strings.HasSuffix(out, "\n200000\n") {
		t.Errorf("%d lines", lines)
	}
	s.shutdown()
}

func TestDaemonsAreReaped(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	s.run(1, sh("for i in 1 2 3 4 5; do setsid sh -c 'sleep 0.05' >/dev/null 2>&1 </dev/null & done"))
	out, _ := s.run(2, sh("sleep 0.3; ps -o stat | grep -c Z"))
	if strings.TrimSpace(out) != "0" {
		t.Errorf("%s zombies", out)
	}
	s.shutdown()
}
