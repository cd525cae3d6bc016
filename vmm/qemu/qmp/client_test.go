package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

const greeting = `{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": ["oob"]}}` + "\n"

// peer plays QEMU at the other end of a pipe: it answers each command with what reply gives, as many lines as it likes.
func peer(t *testing.T, hello string, reply func(name string, id uint64) string) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	var ended sync.WaitGroup
	ended.Go(func() {
		defer theirs.Close()
		if _, err := theirs.Write([]byte(hello)); err != nil {
			return
		}
		for lines := bufio.NewScanner(theirs); lines.Scan(); {
			var c struct {
				Execute string `json:"execute"`
				ID      uint64 `json:"id"`
			}
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				t.Errorf("sent what is no command: %q", lines.Text())
				return
			}
			text := fmt.Sprintf(`{"return": {}, "id": %d}`+"\n", c.ID)
			if c.Execute != "qmp_capabilities" {
				text = reply(c.Execute, c.ID)
			}
			if text == "" {
				return
			}
			if _, err := theirs.Write([]byte(text)); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() { ours.Close(); ended.Wait() })
	return ours
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func TestCommandsAndEvents(t *testing.T) {
	events := make(chan Event, 4)
	c, err := New(ctx(t), peer(t, greeting, func(name string, id uint64) string {
		switch name {
		case "query-status":
			return `{"event": "STOP", "data": {"a": 1}, "timestamp": {}}` + "\n" +
				`{"return": {}, "id": 99}` + "\n" + // nobody asked
				fmt.Sprintf(`{"id": %d, "return": {"status": "running"}}`+"\n", id)
		default:
			return fmt.Sprintf(`{"id": %d, "error": {"class": "CommandNotFound", "desc": "no such thing"}}`+"\n", id)
		}
	}), func(e Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var status struct{ Status string }
	if err := c.Do(ctx(t), "query-status", nil, &status); err != nil || status.Status != "running" {
		t.Errorf("status %q, %v", status.Status, err)
	}
	if e := <-events; e.Name != "STOP" || string(e.Data) != `{"a": 1}` {
		t.Errorf("event %v", e)
	}
	var refused *Error
	if err := c.Do(ctx(t), "nonsense", map[string]any{"x": 1}, nil); !errors.As(err, &refused) || refused.Class != "CommandNotFound" {
		t.Errorf("nonsense: %v", err)
	}
	c.Close()
	if err := c.Do(ctx(t), "query-status", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// A QEMU that says what it likes gets the connection closed and nothing worse.
func TestHostilePeer(t *testing.T) {
	for name, c := range map[string]struct {
		hello string
		reply string
		want  string
	}{
		"no greeting":        {hello: `{"return": {}}` + "\n", want: "no greeting"},
		"no JSON":            {hello: "hello\n", want: "no QMP"},
		"ended at once":      {hello: "\n", reply: "", want: "closed"},
		"endless greeting":   {hello: strings.Repeat("x", MaxMessage+2), want: "too long"},
		"deep greeting":      {hello: strings.Repeat("[", 100000) + "\n", want: "no QMP"},
		"endless answer":     {hello: greeting, reply: strings.Repeat("[", MaxMessage+2), want: "too long"},
		"id of another kind": {hello: greeting, reply: `{"return": {}, "id": "a"}` + "\n", want: "no QMP"},
		"negative id":        {hello: greeting, reply: `{"return": {}, "id": -1}` + "\n", want: "no QMP"},
		"answer of a kind":   {hello: greeting, reply: `{"return": [1], "id": 2}` + "\n", want: "QEMU's answer"},
		"error without id":   {hello: greeting, reply: `{"error": {"class": "x", "desc": "parse"}}` + "\n", want: "did not understand"},
		"gone":               {hello: greeting, reply: "", want: "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := peer(t, c.hello, func(string, uint64) string { return c.reply })
			if name == "ended at once" {
				conn.Close()
			}
			client, err := New(ctx(t), conn, func(Event) {})
			if err == nil {
				defer client.Close()
				var out struct{ Status string }
				err = client.Do(ctx(t), "query-status", nil, &out)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("hung until the deadline: %v", err)
			}
		})
	}
}

func TestSilentPeer(t *testing.T) {
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	if _, err := New(short, ours, func(Event) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no greeting: %v", err)
	}
	c, err := New(ctx(t), peer(t, greeting, func(string, uint64) string { return "\n" }), func(Event) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	short, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Do(short, "stop", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	if len(c.pending) != 0 {
		t.Errorf("%d commands are still waited for", len(c.pending))
	}
}

func FuzzReader(f *testing.F) {
	f.Add(greeting + `{"return": {}, "id": 1}` + "\n" + `{"event": "STOP", "data": null}` + "\n")
	f.Add(greeting + `{"error": {}, "id": 1}` + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		ours, theirs := net.Pipe()
		var ended sync.WaitGroup
		ended.Go(func() { theirs.Write([]byte(text)); theirs.Close() })
		ended.Go(func() { bufio.NewReader(theirs).WriteTo(discard{}) })
		c, err := New(t.Context(), ours, func(Event) {})
		if err == nil {
			c.Close()
		}
		ended.Wait()
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
