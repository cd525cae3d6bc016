package control

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"

	"msb/protocol/control"
	"msb/protocol/frame"
)

// TestVectors sends every published request and compares every published reply
// that a server gives, byte for byte.
func TestVectors(t *testing.T) {
	all := vectors(t)
	at := uint32(1)
	failed := control.SecretsResult{Outcome: control.OutcomeFailed, AppliedCount: 1, FailedIndex: &at,
		Error: &control.Error{Code: control.CodeUnknownSecret, Message: "unknown secret", Effect: control.EffectNone}}
	rejected := func(code string) func(*backend) {
		return func(b *backend) {
			b.err = &control.Error{Code: code, Message: "operation rejected", Effect: control.EffectNone}
		}
	}
	for _, tt := range []struct {
		request, reply string
		set            func(*backend)
		got            func(*backend) bool
	}{
		{"capabilities", "capabilities_result", nil, nil},
		{"memory_query", "memory_state", nil, nil},
		{"cpu_query", "cpu_state", nil, nil},
		{"memory_target", "memory_state", nil, func(b *backend) bool { return b.targets[0] == 2048 }},
		{"memory_target_u64", "memory_state_u64", func(b *backend) {
			b.memory = control.MemoryState{BootMiB: 1, TargetMiB: 1<<53 + 1, MaxMiB: math.MaxUint64}
		}, func(b *backend) bool { return b.targets[0] == math.MaxUint64 }},
		{"cpu_target", "cpu_state", nil, func(b *backend) bool { return b.targets[0] == 2 }},
		{"secrets_update", "secrets_complete", nil, func(b *backend) bool {
			return len(b.changes) == 3 && *b.changes[0].Value == "fixture-only" && b.changes[1].Name == "OLD_KEY" && b.changes[2].Hosts[0] == "example.test"
		}},
		{"secrets_update", "secrets_failed", func(b *backend) { b.secrets = failed }, nil},
		{"memory_query", "invalid_request", rejected(control.CodeInvalidRequest), nil},
		{"memory_query", "unsupported_operation", rejected(control.CodeUnsupportedOperation), nil},
		{"memory_query", "busy", rejected(control.CodeBusy), nil},
		{"memory_query", "unknown_secret", rejected(control.CodeUnknownSecret), nil},
		{"memory_query", "invalid_secret_hosts", rejected(control.CodeInvalidSecretHosts), nil},
		{"memory_query", "internal", rejected(control.CodeInternal), nil},
		{"memory_query", "unknown_error_effect", func(b *backend) {
			b.err = &control.Error{Code: "future_error", Message: "result unavailable", Effect: control.EffectUnknown}
		}, nil},
	} {
		t.Run(tt.request+" "+tt.reply, func(t *testing.T) {
			b := &backend{
				caps:    control.Capabilities{CPUResize: true, MemoryResize: true},
				memory:  control.MemoryState{BootMiB: 512, TargetMiB: 2048, CurrentMiB: 1024, MaxMiB: 4096},
				cpu:     control.CPUState{Possible: 4, RequestedOnline: 2, ActualOnline: 1, Enforced: 2},
				secrets: control.SecretsResult{Outcome: control.OutcomeComplete, AppliedCount: 3},
			}
			if tt.set != nil {
				tt.set(b)
			}
			p := dial(t, serve(t, b, Options{}))
			p.send(all["hello"].raw)
			if got := p.frame(); !bytes.Equal(got, all["welcome"].raw) {
				t.Fatalf("welcome %x", got)
			}
			p.send(all[tt.request].raw)
			if got := p.frame(); !bytes.Equal(got, all[tt.reply].raw) {
				t.Errorf("\n got %x\nwant %x", got, all[tt.reply].raw)
			}
			if tt.got != nil && !tt.got(b) {
				t.Errorf("the request became %v, %v", b.targets, b.changes)
			}
		})
	}
}

// TestHandshakeErrors has the published errors, byte for byte, and the reasons
// in the log.
func TestHandshakeErrors(t *testing.T) {
	var log lockedBuffer
	path := serve(t, &backend{}, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	all := vectors(t)
	hello := func(change func(*control.Hello)) []byte {
		h := control.DefaultHello()
		change(&h)
		return request(t, 0, control.TypeHello, h)
	}
	withHead := func(id uint32, flags, v uint8) []byte {
		b, err := control.AppendFrame(nil, id, flags, v, control.TypeHello, control.DefaultHello())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name  string
		wire  []byte
		error string
		log   string
	}{
		{"other protocol", hello(func(h *control.Hello) { h.Protocol = "msb.agent" }), "invalid_handshake", "msb.agent"},
		{"generation 0", hello(func(h *control.Hello) { h.MinGeneration = 0 }), "invalid_handshake", "generations 0 to 1"},
		{"upside down", hello(func(h *control.Hello) { h.MinGeneration, h.MaxGeneration = 2, 1 }), "invalid_handshake", "generations 2 to 1"},
		{"newer only", hello(func(h *control.Hello) { h.MinGeneration, h.MaxGeneration = 2, 3 }), "unsupported_generation", "offered were 2 to 3"},
		{"small frames", hello(func(h *control.Hello) { h.MaxFrameSize = 4095 }), "invalid_handshake", "4095 bytes"},
		{"large frames", hello(func(h *control.Hello) { h.MaxFrameSize = 4<<20 + 1 }), "invalid_handshake", "4194305 bytes"},
		{"none in flight", hello(func(h *control.Hello) { h.MaxInFlight = 0 }), "invalid_handshake", "no request in flight"},
		{"an id", withHead(1, 0, 1), "invalid_handshake", "id 1, flags 0x00"},
		{"flags", withHead(0, 1, 1), "invalid_handshake", "flags 0x01"},
		{"other envelope generation", withHead(0, 0, 2), "invalid_handshake", "generation 2"},
		{"a request first", request(t, 0, control.TypeCapabilities, control.Empty{}), "invalid_handshake", "control.capabilities"},
		{"too long", []byte{0, 0, 0x10, 1}, "invalid_handshake", "4097 bytes"},
		{"too short", []byte{0, 0, 0, 4}, "invalid_handshake", "of 4 bytes"},
		{"no CBOR", []byte{0, 0, 0, 6, 0, 0, 0, 0, 0, 0xff}, "invalid_handshake", "malformed"},
		{"JSON behind a zero", append([]byte{0, 0, 0, 0x20}, `{"op":"capabilities"}           `...), "invalid_handshake", "invalid_handshake"},
		{"newer too", hello(func(h *control.Hello) { h.MaxGeneration = 9 }), "", ""},
		{"fewer in flight", hello(func(h *control.Hello) { h.MaxInFlight = 3; h.MaxFrameSize = 8192 }), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dial(t, path)
			p.send(tt.wire)
			if tt.error == "" {
				f, _ := frame.Parse(p.frame())
				e, err := control.ParseEnvelope(f.Body)
				if err != nil || e.T != control.TypeWelcome {
					t.Fatalf("got %+v, %v", e, err)
				}
				return
			}
			if got := p.frame(); !bytes.Equal(got, all[tt.error].raw) {
				t.Errorf("\n got %x\nwant %x", got, all[tt.error].raw)
			}
			p.closed()
			waitFor(t, func() bool { return strings.Contains(log.String(), tt.log) })
		})
	}
}

// TestPublishedClient plays the published client's side of recorded
// conversations. The server of the second half did not know the framed form, and
// ours says that it does; nothing else may differ.
func TestPublishedClient(t *testing.T) {
	raw, err := os.ReadFile("../../protocol/control/testdata/client.json")
	if err != nil {
		t.Fatal(err)
	}
	type message struct{ Dir, JSON, Hex string }
	var doc struct {
		Framed   [][]message `json:"framed_server"`
		JSONOnly [][]message `json:"json_only_server"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	b := &backend{
		caps:   control.Capabilities{CPUResize: true, MemoryResize: true, SecretsUpdate: true},
		memory: control.MemoryState{BootMiB: 512, TargetMiB: 1024, CurrentMiB: 1024, MaxMiB: 4096},
		cpu:    control.CPUState{Possible: 4, RequestedOnline: 2, ActualOnline: 2, Enforced: 2},
	}
	path := serve(t, b, Options{})
	for i, conversation := range append(doc.Framed, doc.JSONOnly...) {
		p := dial(t, path)
		for _, m := range conversation {
			want := []byte(m.JSON)
			if m.Hex != "" {
				if want, err = hex.DecodeString(m.Hex); err != nil {
					t.Fatal(err)
				}
			}
			switch {
			case m.Dir == "c2s":
				p.send(want)
			case m.Hex != "":
				if got := p.frame(); !bytes.Equal(got, want) {
					t.Errorf("conversation %d:\n got %x\nwant %x", i, got, want)
				}
			default:
				got, err := p.r.ReadString('\n')
				if i >= len(doc.Framed) {
					got = strings.Replace(got, `,"control_protocols":["json","cbor"]`, "", 1)
				}
				if err != nil || got != m.JSON {
					t.Errorf("conversation %d: got %s want %s (%v)", i, got, m.JSON, err)
				}
				p.closed()
			}
		}
	}
}
