package turnrpc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

type golden struct{ name, header, length, sum, body string }

func loadGolden(t testing.TB) []golden {
	t.Helper()
	b, err := os.ReadFile("testdata/frames.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var all []golden
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) == 5 && !strings.HasPrefix(line, "#") {
			all = append(all, golden{f[0], f[1], f[2], f[3], f[4]})
		}
	}
	if len(all) != 24 {
		t.Fatalf("%d frames", len(all))
	}
	return all
}

// newBody returns a pointer to the struct of the params or result of a golden
// frame.
func newBody(g golden, f *Frame) any {
	switch f.Method {
	case MethodHello:
		return new(Hello)
	case MethodUserTurn:
		return new(UserTurn)
	case MethodAgentEvent:
		return new(AgentEvent)
	case MethodCancelTurn:
		return new(CancelTurn)
	case MethodProviderOpen:
		return new(ProviderOpen)
	case MethodProviderSend:
		return new(ProviderSend)
	case MethodProviderEvent:
		return new(ProviderEvent)
	case MethodMCPList:
		return new(struct{})
	case MethodMCPCall:
		return new(MCPCall)
	case MethodRequestApproval:
		return new(ApprovalRequest)
	case MethodRunCommand:
		return new(RunCommand)
	}
	switch {
	case f.ID == HelloID:
		return new(HelloResult)
	case f.ID == "1":
		return new(OK)
	case f.ID == "g-1":
		return new(ProviderOpened)
	case f.ID == "g-4":
		return new(MCPResult)
	}
	return new(Approval)
}

func TestGoldenFrames(t *testing.T) {
	for _, g := range loadGolden(t) {
		t.Run(g.name, func(t *testing.T) {
			header, err := hex.DecodeString(g.header)
			if err != nil {
				t.Fatal(err)
			}
			wire := append(header, g.body...)
			if sum := sha256.Sum256(wire); hex.EncodeToString(sum[:8]) != g.sum {
				t.Fatalf("the vector itself is damaged")
			}
			f, err := Read(bytes.NewReader(wire))
			if err != nil {
				t.Fatal(err)
			}
			again := f
			if f.Error == nil {
				body := newBody(g, f)
				raw := f.Params
				if f.IsResponse() {
					raw = f.Result
				}
				dec := json.NewDecoder(bytes.NewReader(raw))
				dec.DisallowUnknownFields()
				if err := dec.Decode(body); err != nil {
					t.Fatal(err)
				}
				if f.IsResponse() {
					again, err = Respond(f.ID, body)
				} else {
					again, err = Call(f.ID, f.Method, body)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			got, err := Append(nil, again)
			if err != nil || !bytes.Equal(got, wire) {
				t.Errorf("%v\n got %s\nwant %s", err, got, wire)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, wire string
		want       error
	}{
		{"nothing", "", io.EOF},
		{"half a header", "\x00\x00", io.ErrUnexpectedEOF},
		{"length 0", "\x00\x00\x00\x00", ErrFrameSize},
		{"length above the cap", "\x00\x10\x00\x01", ErrFrameSize},
		{"all ones", "\xff\xff\xff\xff", ErrFrameSize},
		{"cut", "\x00\x00\x00\x09{\"v\"", io.ErrUnexpectedEOF},
		{"no body at all", "\x00\x00\x00\x09", io.ErrUnexpectedEOF},
		{"not JSON", "\x00\x00\x00\x01x", ErrFrame},
		{"an array", "\x00\x00\x00\x02[]", ErrFrame},
		{"id a number", "\x00\x00\x00\x08{\"id\":1}", ErrFrame},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if f, err := Read(strings.NewReader(tt.wire)); !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v", f, err)
			}
		})
	}
}

func TestAppendRefusesLargeFrames(t *testing.T) {
	f, err := Call("1", MethodUserTurn, UserTurn{Text: strings.Repeat("x", MaxFrame)})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Append([]byte("kept"), f); !errors.Is(err, ErrFrameSize) || string(b) != "kept" {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}

func TestDecodeParams(t *testing.T) {
	if err := (&Frame{Method: MethodUserTurn}).DecodeParams(new(UserTurn)); !errors.Is(err, ErrEmptyParams) {
		t.Errorf("missing params: %v", err)
	}
	if Normalize(0) != 1 || Normalize(4) != 4 {
		t.Error("a hello without a version counts as 1")
	}
	if v, ok := GuestCallVersion(MethodProviderOpen); !ok || v != 3 {
		t.Error("provider_open is of version 3")
	}
	if _, ok := GuestCallVersion(MethodUserTurn); ok {
		t.Error("user_turn is not for guests to call")
	}
}

func FuzzRead(f *testing.F) {
	for _, g := range loadGolden(f) {
		header, _ := hex.DecodeString(g.header)
		f.Add(append(header, g.body...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		var e AgentEvent
		_ = fr.DecodeParams(&e)
		if fr.V == 0 {
			return
		}
		if _, err := Append(nil, fr); err != nil && !errors.Is(err, ErrFrameSize) {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
