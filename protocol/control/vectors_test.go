package control

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"msb/protocol/frame"
	"msb/protocol/record"
)

type vector struct {
	Name       string
	ID         uint32
	Flags      uint8
	Generation uint8
	Type       string
	Frame      string `json:"frame_hex"`
	Envelope   string `json:"envelope_hex"`
	Payload    string `json:"payload_hex"`
}

func loadVectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Cases []vector }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Cases) != 26 {
		t.Fatalf("%d cases", len(doc.Cases))
	}
	return doc.Cases
}

// newPayload returns a pointer to the payload struct of a message.
func newPayload(name string, flags uint8) any {
	reply := flags&frame.FlagTerminal != 0
	switch name {
	case TypeHello:
		return new(Hello)
	case TypeWelcome:
		return new(Welcome)
	case TypeError:
		return new(Error)
	case TypeCapabilitiesResult:
		return new(Capabilities)
	case TypeMemoryTarget:
		return new(MemoryTarget)
	case TypeCPUTarget:
		return new(CPUTarget)
	case TypeSecretsUpdate:
		return new(SecretsUpdate)
	case TypeSecretsResult:
		return new(SecretsResult)
	case TypeMemoryState:
		if reply {
			return new(MemoryState)
		}
	case TypeCPUState:
		if reply {
			return new(CPUState)
		}
	}
	return new(Empty)
}

// TestVectors decodes each published frame and encodes it again, byte for
// byte. The two that hold fields of the future decode all the same.
func TestVectors(t *testing.T) {
	for _, v := range loadVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			raw, err := hex.DecodeString(v.Frame)
			if err != nil {
				t.Fatal(err)
			}
			f, err := frame.Parse(raw)
			if err != nil || f.ID != v.ID || f.Flags != v.Flags || hex.EncodeToString(f.Body) != v.Envelope {
				t.Fatalf("frame %+v, %v", f, err)
			}
			e, err := ParseEnvelope(f.Body)
			if err != nil || e.V != v.Generation || e.T != v.Type || hex.EncodeToString(e.P) != v.Payload {
				t.Fatalf("envelope %+v, %v", e, err)
			}
			payload := newPayload(e.T, f.Flags)
			if err := record.DecodeStrict(e.P, payload); err != nil {
				t.Fatal(err)
			}
			again, err := AppendFrame(nil, f.ID, f.Flags, e.V, e.T, payload)
			if err != nil {
				t.Fatal(err)
			}
			hasFuture := strings.Contains(v.Frame, hex.EncodeToString([]byte("future"))) && e.T != TypeError
			if bytes.Equal(again, raw) == hasFuture {
				t.Errorf("\n got %x\nwant %x", again, raw)
			}
		})
	}
}

func TestStrictDecoding(t *testing.T) {
	for _, tt := range []struct {
		name, hex string
		into      any
		ok        bool
	}{
		{"target", "a1 69746f74616c5f6d6962 190800", new(MemoryTarget), true},
		{"other order", "a2 66656666656374 01 69746f74616c5f6d6962 01", new(MemoryTarget), true},
		{"indefinite", "bf 69746f74616c5f6d6962 01 ff", new(MemoryTarget), true},
		{"twice", "a2 69746f74616c5f6d6962 01 69746f74616c5f6d6962 02", new(MemoryTarget), false},
		{"unknown twice", "a3 6161 01 6161 02 69746f74616c5f6d6962 02", new(MemoryTarget), false},
		{"missing", "a0", new(MemoryTarget), false},
		{"null", "a1 69746f74616c5f6d6962 f6", new(MemoryTarget), false},
		{"float", "a1 69746f74616c5f6d6962 f94000", new(MemoryTarget), false},
		{"negative", "a1 69746f74616c5f6d6962 20", new(MemoryTarget), false},
		{"text", "a1 69746f74616c5f6d6962 6131", new(MemoryTarget), false},
		{"tagged", "a1 69746f74616c5f6d6962 c101", new(MemoryTarget), false},
		{"bignum", "a1 69746f74616c5f6d6962 c24101", new(MemoryTarget), false},
		{"trailing", "a1 69746f74616c5f6d6962 01 00", new(MemoryTarget), false},
		{"integer key", "a2 01 01 69746f74616c5f6d6962 01", new(MemoryTarget), false},
		{"u32 too large", "a1 666f6e6c696e65 1b0000000100000000", new(CPUTarget), false},
		{"an array", "81 01", new(MemoryTarget), false},
		{"rotate without value", "a1 676368616e676573 81 a2 666368616e6765 66726f74617465 646e616d65 6141", new(SecretsUpdate), false},
		{"remove with value", "a1 676368616e676573 81 a3 666368616e6765 6672656d6f7665 646e616d65 6141 6576616c7565 6142", new(SecretsUpdate), false},
		{"rotate value null", "a1 676368616e676573 81 a3 666368616e6765 66726f74617465 646e616d65 6141 6576616c7565 f6", new(SecretsUpdate), false},
		{"unknown change", "a1 676368616e676573 81 a2 666368616e6765 6161 646e616d65 6141", new(SecretsUpdate), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := hex.DecodeString(strings.ReplaceAll(tt.hex, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			if err := record.DecodeStrict(p, tt.into); (err == nil) != tt.ok {
				t.Errorf("got %+v, %v", tt.into, err)
			}
		})
	}
}

func TestStrictEnvelope(t *testing.T) {
	for _, tt := range []struct {
		name, hex string
		ok        bool
	}{
		{"good", "a3 6176 01 6174 6161 6170 41a0", true},
		{"extra key", "a4 6176 01 6174 6161 6170 41a0 6178 00", true},
		{"p an array", "a3 6176 01 6174 6161 6170 8118a0", false},
		{"p tagged", "a3 6176 01 6174 6161 6170 d84041a0", false},
		{"p twice", "a4 6176 01 6174 6161 6170 41a0 6170 41a0", false},
		{"trailing", "a3 6176 01 6174 6161 6170 41a0 00", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, _ := hex.DecodeString(strings.ReplaceAll(tt.hex, " ", ""))
			if e, err := ParseEnvelope(b); (err == nil) != tt.ok {
				t.Errorf("got %+v, %v", e, err)
			}
		})
	}
}

func FuzzStrict(f *testing.F) {
	for _, v := range loadVectors(f) {
		b, _ := hex.DecodeString(v.Envelope)
		f.Add(b, v.Flags)
	}
	f.Fuzz(func(t *testing.T, body []byte, flags uint8) {
		e, err := ParseEnvelope(body)
		if err != nil {
			return
		}
		payload := newPayload(e.T, flags)
		if record.DecodeStrict(e.P, payload) != nil {
			return
		}
		b, err := AppendFrame(nil, 1, flags, e.V, e.T, payload)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseEnvelope(b[frame.Overhead:])
		if err != nil || again.T != e.T {
			t.Fatalf("our own encoding does not decode: %v", err)
		}
	})
}

// A value in a place where it does not belong is not quoted by the error.
func TestStrictErrorsDoNotQuoteSecrets(t *testing.T) {
	const value = "hunter2-hunter2-hunter2"
	type m = map[string]any
	for name, payload := range map[string]any{
		"value of the wrong type": m{"changes": []m{{"change": "rotate", "name": "A", "value": []string{value}}}},
		"kind":                    m{"changes": []m{{"change": value, "name": "A"}}},
		"with remove":             m{"changes": []m{{"change": "remove", "name": "A", "value": value}}},
		"as hosts":                m{"changes": []m{{"change": "set_allowed_hosts", "name": "A", "hosts": value}}},
		"as the change":           m{"changes": []any{value}},
		"as changes":              m{"changes": value},
		"without a name":          m{"changes": []m{{"change": "rotate", "value": value}}},
		"as a number":             m{"total_mib": value},
		"as everything":           value,
	} {
		b, err := cbor.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{b, append(bytes.Clone(b), value...), b[:len(b)-1]} {
			for _, into := range []any{new(SecretsUpdate), new(MemoryTarget)} {
				if err := record.DecodeStrict(b, into); err != nil && strings.Contains(err.Error(), value[:7]) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}
