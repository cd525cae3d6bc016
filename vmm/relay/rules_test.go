package relay

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

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
		{"unknown key with values in it", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 6178 84 20 f6 fb3ff0000000000000 bf 6161 4161 ff")...)), pass},
		{"payload in chunks", 9, false, fr(id, 0, append(append(unhex("a3 6176 09 6174 69"), "core.ping"...), unhex("6170 5f 41a0 ff")...)), pass},
		// Not every agent reads these, and a stock one exits on what it cannot read.
		{"payload of 2^64-1 bytes in chunks", 9, false, fr(id, 0, append(append(unhex("a3 6176 09 6174 69"), "core.ping"...), unhex("6170 5b ffffffffffffffff 41a0 ff")...)), drop},
		{"map of 2^64-1 pairs with an end", 9, false, fr(id, 0, append(append(unhex("bb ffffffffffffffff 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 ff")...)), drop},
		{"key that is a number", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 05 01")...)), drop},
		{"key that is a number, own guest", 9, true, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 05 01")...)), pass},
		{"key in chunks", 9, false, fr(id, 0, append(append(unhex("a3 7f 6176 ff 09 6174 69"), "core.ping"...), unhex("6170 41a0")...)), drop},
		{"name in chunks", 9, false, fr(id, 0, append(append(unhex("a3 6176 09 6174 7f 69"), "core.ping"...), unhex("ff 6170 41a0")...)), drop},
		{"name in chunks, own guest", 9, true, fr(id, 0, append(append(unhex("a3 6176 09 6174 7f 69"), "core.ping"...), unhex("ff 6170 41a0")...)), pass},
		{"unknown key of 2 KiB", 9, false, fr(id, 0, append(append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 790800")...), append(bytes.Repeat([]byte("k"), 2048), 1)...)), drop},
		{"unknown key with a tag", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 6178 c2 41 01")...)), drop},
		{"unknown key with a simple value", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 6178 e0")...)), drop},
		{"unknown key with text not UTF-8", 9, false, fr(id, 0, append(append(unhex("a4 6176 09 6174 69"), "core.ping"...), unhex("6170 41a0 6178 81 61ff")...)), drop},
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
		{"watch over input", 9, true, fr(id, 0, env(9, "msb.input.watch")), agent.KindUnsupportedType},
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

// TestRecordRules is the same for raw records of a write that is open.
func TestRecordRules(t *testing.T) {
	const id = 5
	good := encodeBulk(t, id, frame.BulkFilesystem, frame.FlowHostToGuest, 0, []byte("xy"))
	with := func(at int, b ...byte) []byte {
		wire := bytes.Clone(good)
		copy(wire[at:], b)
		return wire
	}
	for name, tt := range map[string]struct {
		wire []byte
		pass bool
	}{
		"good":                           {good, true},
		"offset that is not the next":    {with(13, 0, 0, 0, 0, 0, 0, 1), true}, // the guest's to refuse
		"offset and length past 64 bits": {with(13, 255, 255, 255, 255, 255, 255, 255, 255), false},
		"flags 0x09":                     {with(8, 0x09), false},
		"flags 0x18":                     {with(8, 0x18), false},
		"flags 0xff":                     {with(8, 0xff), false},
		"another kind":                   {with(9, frame.BulkTCP), false},
		"kind 0":                         {with(9, 0), false},
		"the guest's flow":               {with(10, frame.FlowGuestToHost), false},
		"reserved bytes":                 {with(11, 1), false},
		"no payload":                     {unhex("00000011 00000005 08 01 01 0000 0000000000000000"), false},
		"an id that is not open":         {with(4, 0, 0, 0, 6), false},
		"an id of another client":        {with(4, 0x02, 0, 0, 0), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, kind{generation: 9})
			p, other := r.dial(), r.dial()
			p.send(writeRequest(t, id))
			r.guest.want(writeRequest(t, id))
			p.send(tt.wire)
			if tt.pass {
				r.guest.want(tt.wire)
			} else {
				p.dropped()
				r.guest.gone()
			}
			r.alive(other, other.start)
		})
	}
}
