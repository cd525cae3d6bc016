package controlclient

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"msb/protocol/control"
	"msb/protocol/frame"
)

type vector struct {
	Name  string
	ID    uint32
	Frame string `json:"frame_hex"`
	raw   []byte
}

func vectors(t testing.TB) map[string]vector {
	t.Helper()
	b, err := os.ReadFile("../protocol/control/testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Cases []vector }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	all := map[string]vector{}
	for _, v := range doc.Cases {
		if v.raw, err = hex.DecodeString(v.Frame); err != nil {
			t.Fatal(err)
		}
		all[v.Name] = v
	}
	return all
}

// withID is a frame under another correlation id.
func withID(raw []byte, id []byte) []byte {
	b := bytes.Clone(raw)
	copy(b[4:8], id)
	return b
}

func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	raw := append(head, make([]byte, int(head[1])<<16|int(head[2])<<8|int(head[3]))...)
	_, err := io.ReadFull(r, raw[4:])
	return raw, err
}

// runtime is a scripted runtime: serve gets each connection, counted from 0.
type runtime struct {
	path  string
	l     net.Listener
	conns atomic.Int32
	work  sync.WaitGroup
}

func listen(t testing.TB, serve func(n int, c net.Conn)) *runtime {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "msbc-")
	if err != nil {
		t.Fatal(err)
	}
	r := &runtime{path: filepath.Join(dir, "control.sock")}
	r.start(t, serve)
	t.Cleanup(func() {
		r.stop()
		os.RemoveAll(dir)
	})
	return r
}

func (r *runtime) start(t testing.TB, serve func(n int, c net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.l = l
	r.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := int(r.conns.Add(1)) - 1
			r.work.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Minute))
				serve(n, c)
			})
		}
	})
}

func (r *runtime) stop() {
	r.l.Close()
	r.work.Wait()
}

// framed answers every request by what reply returns for it; nil hangs up.
func framed(all map[string]vector, reply func(raw []byte) []byte) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		if _, err := readFrame(c); err != nil {
			return
		}
		c.Write(all["welcome"].raw)
		for {
			raw, err := readFrame(c)
			if err != nil {
				return
			}
			answer := reply(raw)
			if answer == nil {
				return
			}
			c.Write(withID(answer, raw[4:8]))
		}
	}
}

// TestVectors: the client's requests are the published ones, and it understands
// the published replies.
func TestVectors(t *testing.T) {
	all := vectors(t)
	value := "fixture-only"
	changes := []control.Change{
		{Change: control.ChangeRotate, Name: "TEST_KEY", Value: &value},
		{Change: control.ChangeRemove, Name: "OLD_KEY"},
		{Change: control.ChangeSetAllowedHosts, Name: "TEST_KEY", Hosts: []string{"example.test"}},
	}
	state := control.MemoryState{BootMiB: 512, TargetMiB: 2048, CurrentMiB: 1024, MaxMiB: 4096}
	memory := func(ctx context.Context, c *Client) (any, error) { return c.MemoryState(ctx) }
	secrets := func(ctx context.Context, c *Client) (any, error) { return c.UpdateSecrets(ctx, changes) }
	for _, tt := range []struct {
		request, reply string
		do             func(context.Context, *Client) (any, error)
		want           any    // equal
		code, effect   string // of the error
	}{
		{"capabilities", "capabilities_result", func(ctx context.Context, c *Client) (any, error) { return c.Capabilities(ctx) },
			control.Capabilities{CPUResize: true, MemoryResize: true}, "", ""},
		{"memory_query", "memory_state", memory, state, "", ""},
		{"memory_query", "memory_state_future_payload_field", memory, state, "", ""},
		{"memory_query", "memory_state_future_envelope_field", memory, state, "", ""},
		{"memory_target", "memory_state", func(ctx context.Context, c *Client) (any, error) { return c.SetMemoryTarget(ctx, 2048) }, state, "", ""},
		{"memory_target_u64", "memory_state_u64", func(ctx context.Context, c *Client) (any, error) { return c.SetMemoryTarget(ctx, math.MaxUint64) },
			control.MemoryState{BootMiB: 1, TargetMiB: 1<<53 + 1, MaxMiB: math.MaxUint64}, "", ""},
		{"cpu_query", "cpu_state", func(ctx context.Context, c *Client) (any, error) { return c.CPUState(ctx) },
			control.CPUState{Possible: 4, RequestedOnline: 2, ActualOnline: 1, Enforced: 2}, "", ""},
		{"cpu_target", "cpu_state", func(ctx context.Context, c *Client) (any, error) { return c.SetCPUTarget(ctx, 2) },
			control.CPUState{Possible: 4, RequestedOnline: 2, ActualOnline: 1, Enforced: 2}, "", ""},
		{"secrets_update", "secrets_complete", secrets, control.SecretsResult{Outcome: "complete", AppliedCount: 3}, "", ""},
		{"secrets_update", "secrets_failed", secrets, nil, "", ""},
		{"memory_query", "invalid_request", memory, nil, control.CodeInvalidRequest, control.EffectNone},
		{"memory_query", "unsupported_operation", memory, nil, control.CodeUnsupportedOperation, control.EffectNone},
		{"memory_query", "busy", memory, nil, control.CodeBusy, control.EffectNone},
		{"memory_query", "unknown_secret", memory, nil, control.CodeUnknownSecret, control.EffectNone},
		{"memory_query", "invalid_secret_hosts", memory, nil, control.CodeInvalidSecretHosts, control.EffectNone},
		{"memory_query", "internal", memory, nil, control.CodeInternal, control.EffectNone},
		{"memory_query", "unknown_error_effect", memory, nil, "future_error", control.EffectUnknown},
	} {
		t.Run(tt.request+" "+tt.reply, func(t *testing.T) {
			var sent []byte
			r := listen(t, framed(all, func(raw []byte) []byte { sent = raw; return all[tt.reply].raw }))
			c, err := Dial(t.Context(), r.path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got, err := tt.do(t.Context(), c)
			if !bytes.Equal(withID(sent, []byte{0, 0, 0, 17}), all[tt.request].raw) {
				t.Errorf("\nsent %x\nwant %x", sent, all[tt.request].raw)
			}
			var refused *control.Error
			switch {
			case tt.code != "":
				if !errors.As(err, &refused) || refused.Code != tt.code || refused.Effect != tt.effect {
					t.Errorf("got %v", err)
				}
			case tt.reply == "secrets_failed":
				if r := got.(control.SecretsResult); err != nil || r.AppliedCount != 1 || *r.FailedIndex != 1 || r.Error.Code != control.CodeUnknownSecret {
					t.Errorf("got %+v, %v", got, err)
				}
			case err != nil || got != tt.want:
				t.Errorf("got %+v, %v", got, err)
			}
			// Raw hands the reply on as it is.
			f, _ := frame.Parse(all[tt.request].raw)
			e, _ := control.ParseEnvelope(f.Body)
			raw, err := c.Raw(t.Context(), e.T, e.P)
			if err != nil || !bytes.Equal(withID(raw, []byte{0, 0, 0, 17}), all[tt.reply].raw) {
				t.Errorf("raw %x, %v", raw, err)
			}
		})
	}
}

func TestHandshake(t *testing.T) {
	all := vectors(t)
	welcome := func(change func(*control.Welcome)) []byte {
		w := control.Welcome{Protocol: control.ProtocolName, Generation: 1, MaxFrameSize: 4 << 20, MaxInFlight: 64}
		change(&w)
		b, err := control.AppendFrame(nil, 0, 1, 1, control.TypeWelcome, w)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name   string
		answer []byte
		ok     bool
	}{
		{"welcome", all["welcome"].raw, true},
		{"smaller", welcome(func(w *control.Welcome) { w.MaxFrameSize, w.MaxInFlight = 4096, 1 }), true},
		{"invalid_handshake", all["invalid_handshake"].raw, false},
		{"unsupported_generation", all["unsupported_generation"].raw, false},
		{"newer generation", welcome(func(w *control.Welcome) { w.Generation = 2 }), false},
		{"larger frames", welcome(func(w *control.Welcome) { w.MaxFrameSize = 8 << 20 }), false},
		{"more in flight", welcome(func(w *control.Welcome) { w.MaxInFlight = 65 }), false},
		{"other protocol", welcome(func(w *control.Welcome) { w.Protocol = "x" }), false},
		{"an id", withID(all["welcome"].raw, []byte{0, 0, 0, 1}), false},
		{"a reply", all["memory_state"].raw, false},
		{"JSON", []byte(`{"ok":true}` + "\n"), false},
		{"nothing", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var hello []byte
			r := listen(t, func(_ int, c net.Conn) { hello, _ = readFrame(c); c.Write(tt.answer) })
			c, err := Dial(t.Context(), r.path)
			if (err == nil) != tt.ok {
				t.Fatalf("got %v", err)
			}
			if c != nil {
				c.Close()
			}
			var handshake *HandshakeError
			if !tt.ok && !errors.As(err, &handshake) {
				t.Errorf("got %T", err)
			}
			r.stop()
			if !bytes.Equal(hello, all["hello"].raw) {
				t.Errorf("hello %x", hello)
			}
		})
	}
}

// TestLostReplies: once a request is sent, every way not to get its reply is an
// unknown outcome.
func TestLostReplies(t *testing.T) {
	all := vectors(t)
	for _, tt := range []struct {
		name  string
		reply []byte
	}{
		{"hangs up", nil},
		{"reply of another", all["cpu_state"].raw},
		{"not terminal", func() []byte { b := bytes.Clone(all["memory_state"].raw); b[8] = 0; return b }()},
		{"other generation", bytes.Replace(all["memory_state"].raw, []byte{0x61, 'v', 1}, []byte{0x61, 'v', 2}, 1)},
		{"no CBOR", []byte{0, 0, 0, 6, 0, 0, 0, 17, 1, 0xff}},
		{"contradiction", func() []byte {
			b, _ := control.AppendFrame(nil, 17, 1, 1, control.TypeError, control.Error{Code: "x", Effect: "maybe"})
			return b
		}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			requests := 0
			r := listen(t, framed(all, func([]byte) []byte { requests++; return tt.reply }))
			c, err := Dial(t.Context(), r.path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.SetMemoryTarget(t.Context(), 1)
			var unknown *OutcomeUnknownError
			if !errors.As(err, &unknown) {
				t.Errorf("got %v", err)
			}
			c.Close()
			r.stop()
			if requests != 1 {
				t.Errorf("%d requests", requests)
			}
		})
	}
}

func TestTimeoutKeepsThePlaceInFlight(t *testing.T) {
	all := vectors(t)
	release := make(chan struct{})
	r := listen(t, func(_ int, c net.Conn) {
		readFrame(c)
		w, _ := control.AppendFrame(nil, 0, 1, 1, control.TypeWelcome, control.Welcome{Protocol: control.ProtocolName, Generation: 1, MaxFrameSize: 4096, MaxInFlight: 1})
		c.Write(w)
		for {
			raw, err := readFrame(c)
			if err != nil {
				return
			}
			<-release
			c.Write(withID(all["memory_state"].raw, raw[4:8]))
		}
	})
	c, err := Dial(t.Context(), r.path, WithRequestTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var unknown *OutcomeUnknownError
	if _, err := c.SetMemoryTarget(t.Context(), 1); !errors.As(err, &unknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := c.MemoryState(t.Context()); err == nil || errors.As(err, &unknown) {
		t.Errorf("got %v: nothing should have been sent", err)
	}
	close(release)
	for end := time.Now().Add(time.Minute); ; {
		if _, err := c.MemoryState(t.Context()); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if _, err := c.UpdateSecrets(t.Context(), []control.Change{{Change: control.ChangeRotate, Name: strings.Repeat("x", 5000)}}); !errors.Is(err, frame.ErrTooLarge) {
		t.Errorf("larger than agreed: %v", err)
	}
}

func TestManyCallers(t *testing.T) {
	all := vectors(t)
	r := listen(t, framed(all, func([]byte) []byte { return all["memory_state"].raw }))
	c, err := Dial(t.Context(), r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var work sync.WaitGroup
	for range 100 {
		work.Go(func() {
			for range 20 {
				if _, err := c.MemoryState(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
}
