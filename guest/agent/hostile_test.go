package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// What a host sends may be as long as a frame, and it may not read before it has sent everything. The answers are
// short, and the agent goes on reading.
func TestLongTextsAreAnsweredShortly(t *testing.T) {
	const length = frame.MaxLength - 300
	long := strings.Repeat("x", length)
	encode := func(id uint32, typ agent.Type, p any) []byte {
		b, err := agent.AppendFrame(nil, id, typ, agent.Generation, p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	unknown, err := agent.AppendEncoded(nil, 1, 0, agent.Generation, long, []byte{0xa0})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		wire   []byte
		answer agent.Type // 0: none
	}{
		"name of a type":       {unknown, agent.Error},
		"mode of a thaw":       {encode(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "a", Mode: long}), agent.Error},
		"attempt of a freeze":  {encode(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: long, Mode: agent.ThawContinue}), agent.Error},
		"host of a connection": {encode(1, agent.TCPConnect, agent.TCPConnectPayload{Host: long, Port: 1}), agent.TCPFailed},
		"command":              {encode(1, agent.ExecRequest, agent.ExecRequestPayload{Cmd: long}), agent.ExecFailed},
		"message of a cancel":  {encode(1, agent.BulkCancel, agent.BulkCancelPayload{Kind: 1, Reason: 1, Message: long}), 0},
		"directory":            {encode(1, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpList{Path: long}}), agent.FSResponse},
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, Machine{})
			h.boot()
			const times = 4
			_ = h.conn.SetWriteDeadline(time.Now().Add(time.Minute))
			if _, err := h.conn.Write(bytes.Repeat(tc.wire, times)); err != nil {
				t.Fatalf("the agent does not read on: %v", err)
			}
			h.send(9, agent.Ping, agent.Empty{})
			answers := 0
			for pong := false; !pong || tc.answer != 0 && answers == 0; {
				id, typ, p := h.next()
				switch {
				case id == 9 && typ == agent.Pong:
					pong = true
				case typ == tc.answer && len(p) < 4096:
					answers++
				default:
					t.Fatalf("id %d: %s of %d bytes", id, typ, len(p))
				}
			}
		})
	}
}

// What a published agent dies of, or takes for something else, is answered, and the agent goes on.
func TestHostileInput(t *testing.T) {
	const id = 7
	raw := func(id uint32, flags uint8, body []byte) []byte {
		b, err := frame.Append(nil, id, flags, body)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	cbor := func(parts ...string) []byte { return []byte(strings.Join(parts, "")) }
	ping := agent.AppendEnvelope(nil, 9, "core.ping", []byte{0xa0})
	record := func(kind, flow byte, rest string) []byte { return append([]byte{kind, flow}, rest...) }
	const pong = "pong"
	for name, tc := range map[string]struct {
		wire []byte
		want string // kind of core.error, pong, or nothing
	}{
		"length 5":                    {raw(id, 0, nil), agent.KindMalformedMessage},
		"length 4194304":              {raw(id, 0, make([]byte, frame.MaxLength-frame.HeaderSize)), agent.KindMalformedMessage},
		"flags 0x09":                  {raw(id, 0x09, ping), agent.KindMalformedMessage},
		"flags 0x10":                  {raw(id, 0x10, ping), agent.KindInvalidFlags},
		"flags 0xff":                  {raw(id, 0xff, ping), agent.KindMalformedMessage},
		"bytes behind the message":    {raw(id, 0, append(bytes.Clone(ping), "more"...)), pong},
		"a key twice":                 {raw(id, 0, cbor("\xa4\x61v\x09\x61v\x09\x61t\x69core.ping\x61p\x41\xa0")), agent.KindMalformedMessage},
		"indefinite map":              {raw(id, 0, cbor("\xbf\x61v\x09\x61t\x69core.ping\x61p\x41\xa0\xff")), pong},
		"another order of keys":       {raw(id, 0, cbor("\xa3\x61p\x41\xa0\x61t\x69core.ping\x61v\x09")), pong},
		"depth 10000":                 {raw(id, 0, cbor("\xa4\x61v\x09\x61t\x69core.ping\x61p\x41\xa0\x61x", strings.Repeat("\x81", 10000), "\x00")), agent.KindMalformedMessage},
		"depth 10000 in a payload":    {raw(id, 0, agent.AppendEnvelope(nil, 9, "core.ping", cbor("\xa1\x61x", strings.Repeat("\x81", 10000), "\x00"))), agent.KindInvalidPayload},
		"text that is not UTF-8":      {raw(id, 0, cbor("\xa3\x61v\x09\x61t\x62\xff\xff\x61p\x41\xa0")), agent.KindMalformedMessage},
		"payload text not UTF-8":      {raw(id, 2, agent.AppendEnvelope(nil, 9, "core.exec.request", cbor("\xa1\x63cmd\x62\xff\xff"))), agent.KindInvalidPayload},
		"no payload":                  {raw(id, 0, cbor("\xa2\x61v\x09\x61t\x69core.ping")), agent.KindMalformedMessage},
		"record past 64 bits":         {raw(id, 8, record(1, 1, "\x00\x00"+strings.Repeat("\xff", 8)+"xy")), agent.KindMalformedMessage},
		"record without payload":      {raw(id, 8, record(1, 1, strings.Repeat("\x00", 10))), agent.KindMalformedMessage},
		"record of kind 3":            {raw(id, 8, record(3, 1, strings.Repeat("\x00", 11))), agent.KindMalformedMessage},
		"record of our flow":          {raw(id, 8, record(1, 2, strings.Repeat("\x00", 11))), agent.KindMalformedMessage},
		"lease that is none":          {raw(0, 0, []byte("MSBL\x01\x09\x00\x00"+strings.Repeat("x", 24))), agent.KindMalformedMessage},
		"ping on the private channel": {raw(frame.IDLifecycle, 0, ping), agent.KindInvalidSession},
		"ping with id 0":              {raw(0, 0, ping), pong},
		"watch of a client":           {raw(id, 0, agent.AppendEnvelope(nil, 9, "msb.input.watch", []byte{0xa0})), agent.KindInvalidSession},
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, Machine{})
			h.boot()
			if _, err := h.conn.Write(tc.wire); err != nil {
				t.Fatal(err)
			}
			h.send(99, agent.Ping, agent.Empty{})
			got := ""
			for {
				id, typ, p := h.next()
				if id == 99 {
					break
				}
				switch typ {
				case agent.Pong:
					got = pong
				case agent.Error:
					got = payload[agent.ErrorPayload](t, p).Kind
				}
			}
			if got == "" { // errors do not pass a pong, but a pong passes errors
				_, typ, p := h.next()
				if typ == agent.Error {
					got = payload[agent.ErrorPayload](t, p).Kind
				}
			}
			if got != tc.want {
				t.Errorf("answered with %q, want %q", got, tc.want)
			}
		})
	}
}

// A byte stream whose frames cannot be told apart any more ends the agent, with a reason.
func TestBrokenStream(t *testing.T) {
	for _, length := range []uint32{0, 1, 2, 3, 4, frame.MaxLength + 1, 1<<32 - 1} {
		h := serve(t, Machine{})
		h.boot()
		if _, err := h.conn.Write(append(binary.BigEndian.AppendUint32(nil, length), make([]byte, min(length, 4))...)); err != nil {
			t.Fatal(err)
		}
		err := <-h.end
		h.end <- err
		if !errors.Is(err, frame.ErrTooShort) && !errors.Is(err, frame.ErrTooLarge) {
			t.Errorf("length %d: ended with %v", length, err)
		}
	}
}
