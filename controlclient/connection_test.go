package controlclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/control"
)

const (
	legacy   = `{"ok":true,"capabilities":{"cpu_resize":true,"memory_resize":true,"secrets_update":true}}`
	withCBOR = `{"ok":true,"capabilities":{"cpu_resize":true,"memory_resize":true,"secrets_update":true},"control_protocols":["json","cbor"]}`
)

func self(t testing.TB) Identity {
	t.Helper()
	start, err := startOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return Identity{os.Getpid(), start}
}

// lines answers JSON by operation and records what was asked.
type lines struct {
	mu      sync.Mutex
	asked   []string
	answers map[string]string
}

func (l *lines) serve(_ int, c net.Conn) {
	s, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	var r struct{ Op string }
	json.Unmarshal([]byte(s), &r)
	l.mu.Lock()
	l.asked = append(l.asked, strings.TrimSpace(s))
	answer := l.answers[r.Op]
	l.mu.Unlock()
	fmt.Fprint(c, answer)
}

func (l *lines) ops() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.asked, " ")
}

func TestDiscovery(t *testing.T) {
	for _, tt := range []struct {
		name, reply string
		mode        Mode // ModeUnknown = an error
	}{
		{"legacy", legacy + "\n", ModeJSON},
		{"legacy without a newline", legacy, ModeJSON},
		{"json only", strings.Replace(withCBOR, `,"cbor"`, "", 1) + "\n", ModeJSON},
		{"unknown fields", strings.Replace(legacy, `"ok":true`, `"ok":true,"future":{"x":[1]}`, 1) + "\n", ModeJSON},
		{"negative", `{"ok":false,"error":"unknown operation"}` + "\n", ModeUnknown},
		{"negative with the advertisement", strings.Replace(withCBOR, "true", "false", 1) + "\n", ModeUnknown},
		{"without capabilities", `{"ok":true}` + "\n", ModeUnknown},
		{"without one of them", `{"ok":true,"capabilities":{"cpu_resize":true,"memory_resize":true}}` + "\n", ModeUnknown},
		{"advertisement of the wrong type", strings.Replace(withCBOR, `["json","cbor"]`, `"cbor"`, 1) + "\n", ModeUnknown},
		{"no JSON", "hello\n", ModeUnknown},
		{"nothing", "", ModeUnknown},
		{"blank", "\n", ModeUnknown},
		{"too long", `{"ok":true,"x":"` + strings.Repeat("x", control.MaxDiscoveryReply) + `"}` + "\n", ModeUnknown},
		{"cut", legacy[:30], ModeUnknown},
		{"other case", strings.Replace(legacy, `"capabilities"`, `"Capabilities"`, 1) + "\n", ModeUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lines{answers: map[string]string{"capabilities": tt.reply}}
			r := listen(t, l.serve)
			c := Connect(r.path)
			defer c.Close()
			mode, err := c.Mode(t.Context())
			if mode != tt.mode || (err == nil) != (tt.mode != ModeUnknown) {
				t.Errorf("got %s, %v", mode, err)
			}
			var discovery *DiscoveryError
			if tt.mode == ModeUnknown && !errors.As(err, &discovery) {
				t.Errorf("got %T", err)
			}
			if l.ops() != `{"op":"capabilities"}` {
				t.Errorf("asked %s", l.ops())
			}
		})
	}
}

// TestRefusedHandshakeIsNoFallback: who advertises the framed form is not spoken
// to in JSON when it then refuses it.
func TestRefusedHandshakeIsNoFallback(t *testing.T) {
	all := vectors(t)
	l := &lines{answers: map[string]string{"capabilities": withCBOR + "\n", "memory_state": legacy}}
	r := listen(t, func(n int, c net.Conn) {
		if n == 0 {
			l.serve(n, c)
			return
		}
		readFrame(c)
		c.Write(all["unsupported_generation"].raw)
	})
	c := Connect(r.path)
	defer c.Close()
	_, err := c.MemoryState(t.Context())
	var refused *control.Error
	if !errors.As(err, &refused) || refused.Code != control.CodeUnsupportedGeneration {
		t.Errorf("got %v", err)
	}
	if r.conns.Load() != 2 || strings.Contains(l.ops(), "memory") {
		t.Errorf("%d connections, asked %s", r.conns.Load(), l.ops())
	}
}

func TestJSONMode(t *testing.T) {
	memory := `{"ok":true,"memory":{"boot_mib":1,"target_mib":9007199254740993,"current_mib":0,"max_mib":18446744073709551615},"future":1.0}`
	l := &lines{answers: map[string]string{
		"capabilities": legacy + "\n", "memory_state": memory + "\n", "memory_target": `{"ok":false,"error":"no hotplug memory","error_code":"x"}` + "\n",
		"cpu_state": `{"ok":true}` + "\n", "cpu_target": "", "secrets_update": `{"ok":true}`, "pause_state": `{"ok":true}` + "\n",
	}}
	r := listen(t, l.serve)
	c := Connect(r.path)
	defer c.Close()
	m, err := c.MemoryState(t.Context())
	if err != nil || m.TargetMiB != 1<<53+1 || m.MaxMiB != 1<<64-1 {
		t.Errorf("got %+v, %v", m, err)
	}
	var negative *ReplyError
	if _, err := c.SetMemoryTarget(t.Context(), 1<<64-1); !errors.As(err, &negative) || negative.Message != "no hotplug memory" || !strings.Contains(string(negative.Raw), `"error_code":"x"`) {
		t.Errorf("got %v", err)
	}
	var unknown *OutcomeUnknownError
	if _, err := c.CPUState(t.Context()); !errors.As(err, &unknown) {
		t.Errorf("a reply without the state: %v", err)
	}
	if _, err := c.SetCPUTarget(t.Context(), 2); !errors.As(err, &unknown) {
		t.Errorf("no reply: %v", err)
	}
	if res, err := c.UpdateSecrets(t.Context(), nil); err != nil || res.Check() != nil {
		t.Errorf("got %+v, %v", res, err)
	}
	if paused, err := c.Paused(t.Context()); paused || err != nil {
		t.Errorf("got %v, %v", paused, err)
	}
	raw, err := c.Line(t.Context(), control.Request{Op: "memory_state"})
	if err != nil || string(raw.Raw) != memory+"\n" {
		t.Errorf("got %s, %v", raw.Raw, err)
	}
	// Discovered once: this process is the runtime all along.
	want := `{"op":"capabilities"} {"op":"memory_state"} {"op":"memory_target","total_mib":18446744073709551615} {"op":"cpu_state"} {"op":"cpu_target","online":2} {"op":"secrets_update","changes":[]} {"op":"pause_state"} {"op":"memory_state"}`
	if l.ops() != want {
		t.Errorf("asked\n%s\nwant\n%s", l.ops(), want)
	}
}

func TestOnlyTheRuntimeIsAsked(t *testing.T) {
	l := &lines{answers: map[string]string{"capabilities": legacy}}
	r := listen(t, l.serve)
	me := self(t)
	for _, who := range []Identity{{me.PID, me.Start + 1}, {me.PID + 1, me.Start}, {}} {
		c := Connect(r.path, WithRuntime(func(context.Context) (Identity, error) { return who, nil }))
		if _, err := c.Capabilities(t.Context()); !errors.Is(err, ErrRuntimeChanged) {
			t.Errorf("got %v", err)
		}
		if err := c.Pause(t.Context()); !errors.Is(err, ErrRuntimeChanged) {
			t.Errorf("got %v", err)
		}
		c.Close()
	}
	if l.ops() != "" {
		t.Errorf("asked %s", l.ops())
	}
	c := Connect(r.path, WithRuntime(func(context.Context) (Identity, error) { return me, nil }))
	defer c.Close()
	if mode, err := c.Mode(t.Context()); mode != ModeJSON || err != nil {
		t.Errorf("got %s, %v", mode, err)
	}
}

// TestOneSession: callers that come at the same time share one discovery and one
// framed connection; when it breaks, what was sent is not sent again.
func TestOneSession(t *testing.T) {
	all := vectors(t)
	var mu sync.Mutex
	targets, discoveries := 0, 0
	dies := true
	r := listen(t, func(_ int, c net.Conn) {
		b := bufio.NewReader(c)
		if first, _ := b.Peek(1); len(first) == 0 || first[0] != 0 {
			mu.Lock()
			discoveries++
			mu.Unlock()
			b.ReadString('\n')
			fmt.Fprintln(c, withCBOR)
			return
		}
		readFrame(b)
		c.Write(all["welcome"].raw)
		for {
			raw, err := readFrame(b)
			if err != nil {
				return
			}
			if strings.Contains(string(raw), control.TypeMemoryTarget) {
				mu.Lock()
				targets++
				die := dies
				dies = false
				mu.Unlock()
				if die {
					return // the runtime dies between request and reply
				}
			}
			c.Write(withID(all["memory_state"].raw, raw[4:8]))
		}
	})
	c := Connect(r.path)
	defer c.Close()
	var work sync.WaitGroup
	for range 50 {
		work.Go(func() {
			if _, err := c.MemoryState(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if discoveries != 1 || r.conns.Load() != 2 {
		t.Errorf("%d discoveries, %d connections", discoveries, r.conns.Load())
	}
	var unknown *OutcomeUnknownError
	if _, err := c.SetMemoryTarget(t.Context(), 1); !errors.As(err, &unknown) {
		t.Errorf("got %v", err)
	}
	if _, err := c.MemoryState(t.Context()); err != nil {
		t.Errorf("a later caller: %v", err)
	}
	if targets != 1 || discoveries != 2 {
		t.Errorf("the target was sent %d times, %d discoveries", targets, discoveries)
	}
}

func TestClose(t *testing.T) {
	hung := make(chan struct{})
	r := listen(t, func(int, net.Conn) { <-hung })
	c := Connect(r.path)
	result := make(chan error, 1)
	go func() { _, err := c.MemoryState(context.Background()); result <- err }()
	for end := time.Now().Add(time.Minute); r.conns.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	c.Close()
	if err := <-result; err == nil {
		t.Error("a request of a closed connection succeeds")
	}
	if _, err := c.MemoryState(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := c.Pause(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	close(hung)
}
