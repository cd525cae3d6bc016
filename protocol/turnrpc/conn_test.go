package turnrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// pair is a Conn and the raw other end.
func pair(t testing.TB, handle func(*Frame)) (*Conn, net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	if handle == nil {
		handle = func(*Frame) {}
	}
	c := NewConn(a, handle)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Serve()
	}()
	t.Cleanup(func() {
		c.Close()
		b.Close()
		<-done
	})
	return c, b
}

func send(t testing.TB, w io.Writer, f *Frame) {
	b, err := Append(nil, f)
	if err != nil {
		t.Error(err)
	}
	w.Write(b)
}

// Every golden frame goes through a connection unchanged, in both directions.
func TestConnGolden(t *testing.T) {
	got := make(chan *Frame, 1)
	c, peer := pair(t, func(f *Frame) { got <- f })
	for _, g := range loadGolden(t) {
		f, err := Parse([]byte(g.body))
		if err != nil {
			t.Fatal(err)
		}
		go c.Send(t.Context(), f)
		b := make([]byte, 4+len(g.body))
		if _, err := io.ReadFull(peer, b); err != nil || string(b[4:]) != g.body {
			t.Errorf("%s: sent %s", g.name, b[4:])
		}
		go peer.Write(b)
		if f := <-got; f.ID == "" {
			t.Errorf("%s: %+v", g.name, f)
		}
	}
}

func TestConnCalls(t *testing.T) {
	other := make(chan string, 10)
	c, peer := pair(t, func(f *Frame) { other <- f.ID + f.Method })
	go func() {
		a, _ := Read(peer)
		b, _ := Read(peer)
		// Answers in any order, and one that nobody waits for.
		send(t, peer, &Frame{ID: "99", Result: json.RawMessage(`{}`)})
		send(t, peer, Fail(b.ID, CodeGuest, "no"))
		send(t, peer, &Frame{ID: a.ID, Result: json.RawMessage(`{"paths":["x"]}`)})
		send(t, peer, &Frame{ID: a.ID, Result: json.RawMessage(`{"paths":["twice"]}`)})
		send(t, peer, &Frame{ID: "g-1", Method: MethodMCPList})
	}()
	ctx := t.Context()
	first, err := c.Start(ctx, "1", MethodListFiles, ListFiles{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(ctx, "1", MethodListFiles, ListFiles{}); err == nil {
		t.Error("an id twice")
	}
	var failed *Error
	if err := c.Call(ctx, "2", MethodReadFile, ReadFile{}, nil); !errors.As(err, &failed) || failed.Code != CodeGuest {
		t.Errorf("%v", err)
	}
	var r ListFilesResult
	if err := first.Wait(ctx, &r); err != nil || r.Paths[0] != "x" {
		t.Errorf("%v %v", r, err)
	}
	for _, want := range []string{"99", "1", "g-1mcp_list"} {
		if got := <-other; got != want {
			t.Errorf("the handler got %q, not %q", got, want)
		}
	}
	short, cancel := context.WithCancel(ctx)
	p, err := func() (*Pending, error) { go Read(peer); return c.Start(ctx, "3", MethodQuiesce, OK{}) }()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := p.Wait(short, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	go send(t, peer, &Frame{ID: "3", Result: json.RawMessage(`{}`)})
	if got := <-other; got != "3" {
		t.Errorf("late answer: %q", got)
	}
}

// What ends a connection is told to everybody, once.
func TestConnLost(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(c *Conn, peer net.Conn)
		want error
	}{
		{"end", func(_ *Conn, p net.Conn) { p.Close() }, io.EOF},
		{"end in a frame", func(_ *Conn, p net.Conn) { p.Write([]byte{0, 0, 0, 9, '{'}); p.Close() }, io.ErrUnexpectedEOF},
		{"no bytes", func(_ *Conn, p net.Conn) { p.Write([]byte{0, 0, 0, 0}) }, ErrFrameSize},
		{"too many bytes", func(_ *Conn, p net.Conn) { p.Write([]byte{0xff, 0xff, 0xff, 0xff}) }, ErrFrameSize},
		{"not JSON", func(_ *Conn, p net.Conn) { p.Write([]byte{0, 0, 0, 2, 'h', 'i'}) }, ErrFrame},
		{"closed", func(c *Conn, _ net.Conn) { c.Close() }, ErrClosed},
	} {
		conn, peer := pair(t, nil)
		p, err := func() (*Pending, error) { go Read(peer); return conn.Start(t.Context(), "1", "x", OK{}) }()
		if err != nil {
			t.Fatal(err)
		}
		c.do(conn, peer)
		err = p.Wait(t.Context(), nil)
		var lost *LostError
		if !errors.As(err, &lost) || !errors.Is(err, c.want) {
			t.Errorf("%s: pending call: %v", c.name, err)
		}
		<-conn.Done()
		if err := conn.Call(t.Context(), "2", "x", OK{}, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: later call: %v", c.name, err)
		}
	}
}

func TestConnWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t, nil)
		begun := time.Now()
		err := c.Notify(t.Context(), "h-1", MethodProviderEvent, ProviderEvent{})
		if !errors.Is(err, ErrWriteTimeout) || time.Since(begun) != WriteTimeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

// One who waits for the writer before him can give up; the connection lives.
func TestConnWriteQueue(t *testing.T) {
	c, peer := pair(t, nil)
	first := make(chan error, 1)
	go func() { first <- c.Send(context.Background(), &Frame{ID: "1", Method: "x"}) }()
	head := make([]byte, 2)
	io.ReadFull(peer, head) // it is being written
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Send(ctx, &Frame{ID: "2", Method: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	go io.Copy(io.Discard, peer)
	if err := <-first; err != nil || c.Err() != nil {
		t.Errorf("%v %v", err, c.Err())
	}
}

// Nothing that is too large ends the connection.
func TestConnOversize(t *testing.T) {
	c, peer := pair(t, nil)
	ctx := t.Context()
	if err := c.Send(ctx, &Frame{ID: strings.Repeat("x", MaxFrame)}); !errors.Is(err, ErrFrameSize) {
		t.Errorf("%v", err)
	}
	big := strings.Repeat("\x01", 250_000)
	for _, r := range []any{
		RunCommandResult{Stdout: big, Stderr: big, ExitCode: 3}, &RunCommandResult{Stdout: big, Stderr: "e"}, RunCommandResult{Stderr: strings.Repeat("<&", 100_000), Stdout: "o"},
		ReadFileResult{Content: big}, MCPResult{Text: big}, ApplyPatchResult{Output: big},
		PatchResult{Patch: big}, ListFilesResult{Paths: strings.Split(strings.Repeat("some/path/", 100_000), "/")},
		SearchResult{Matches: []string{big, big}}, map[string]string{"x": big}, func() {},
		Context{History: []AgentEvent{{Text: big}, {Text: "new"}}},
		MCPTools{Tools: manyTools(251, 8<<10)}, MCPTools{Tools: manyTools(5000, 300)},
	} {
		go c.Respond(ctx, "g-1", CodeHost, r)
		f, err := Read(peer)
		if err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		switch r := r.(type) {
		case map[string]string, func():
			if f.Error == nil || f.Error.Code != CodeHost {
				t.Errorf("%T: %.100s", r, f.Result)
			}
			continue
		case RunCommandResult:
			var got RunCommandResult
			if err := json.Unmarshal(f.Result, &got); err != nil || !got.Truncated || !strings.Contains(got.Stdout+got.Stderr, "bytes cut] …") || got.ExitCode != r.ExitCode {
				t.Errorf("%v %+.200v", err, got)
			}
			if len(f.Result) < MaxFrame*8/10 {
				t.Errorf("only %d bytes of a large output were kept", len(f.Result))
			}
		case MCPTools:
			var got MCPTools
			if err := json.Unmarshal(f.Result, &got); err != nil || len(r.Tools) == 251 && len(got.Tools) != 251 {
				t.Errorf("%v, %d tools", err, len(got.Tools))
			}
		case Context:
			if string(f.Result) != `{"history":[{"kind":"","text":"new"}]}` {
				t.Errorf("%.200s", f.Result)
			}
		}
		if f.Error != nil {
			t.Errorf("%T: %v", r, f.Error)
		}
	}
	if c.Err() != nil {
		t.Error(c.Err())
	}
}

func manyTools(n, schema int) []MCPTool {
	list := make([]MCPTool, n)
	for i := range list {
		list[i] = MCPTool{Server: "s", Name: fmt.Sprint(i), Prefixed: fmt.Sprint("s__", i),
			Parameters: json.RawMessage(`{"type":"object","description":"` + strings.Repeat("x", schema) + `"}`)}
	}
	return list
}

// Long text arrives whole, in several events; a tool call that is too large
// ends the stream.
func TestConnSplit(t *testing.T) {
	c, peer := pair(t, nil)
	long := strings.Repeat("wörld\x02<>", 60_000)
	go func() {
		c.Notify(t.Context(), "1", MethodAgentEvent, AgentEvent{Kind: EventOutput, Text: long, Stream: "stderr"})
		c.Notify(t.Context(), "h-1", MethodProviderEvent, ProviderEvent{StreamID: "s1", Type: ProviderText, Text: long})
		c.Notify(t.Context(), "h-2", MethodProviderEvent, ProviderEvent{StreamID: "s1", Type: ProviderTool, ToolArgs: long})
		c.Notify(t.Context(), "1", MethodAgentEvent, AgentEvent{Kind: EventTool, Tool: "x", ToolArgs: long, Text: long, Err: long})
		peer.Close()
	}()
	var output, text string
	for {
		f, err := Read(peer)
		if err != nil {
			break
		}
		var e ProviderEvent
		var a AgentEvent
		f.DecodeParams(&e)
		f.DecodeParams(&a)
		if len(f.Params) > MaxProviderEvent {
			t.Errorf("an event of %d bytes", len(f.Params))
		}
		switch {
		case a.Kind == EventOutput && a.Stream == "stderr":
			output += a.Text
		case a.Kind == EventTool:
			if !json.Valid([]byte(a.ToolArgs)) || !strings.Contains(a.Text, "bytes cut]") {
				t.Errorf("%.100s", f.Params)
			}
		case e.Type == ProviderText:
			text += e.Text
		case e.Type != ProviderError || f.ID != "h-2":
			t.Errorf("%.100s", f.Params)
		}
	}
	if output != long || text != long {
		t.Errorf("%d and %d bytes of %d", len(output), len(text), len(long))
	}
}

func TestSlots(t *testing.T) {
	s := NewSlots()
	var all []func()
	for range 7 {
		release, ok := s.Take(MethodMCPCall)
		if !ok {
			t.Fatal("no slot")
		}
		all = append(all, release)
	}
	if _, ok := s.Take(MethodMCPList); ok {
		t.Error("an eighth slot for any call")
	}
	cancel, ok := s.Take(MethodMCPCancel)
	if !ok {
		t.Error("no slot for a cancel")
	}
	if _, ok := s.Take(MethodProviderCancel); ok {
		t.Error("a ninth slot")
	}
	cancel()
	all[0]()
	for _, method := range []string{MethodProviderCancel, MethodProviderCancel} {
		if _, ok := s.Take(method); !ok {
			t.Error("a cancel may use any slot")
		}
	}
}

// Whatever bytes come, a connection takes them for frames or ends.
func FuzzConn(f *testing.F) {
	for _, g := range loadGolden(f) {
		fr, _ := Parse([]byte(g.body))
		b, _ := Append(nil, fr)
		f.Add(b)
	}
	f.Add([]byte{0, 0, 0, 4, 'n', 'u', 'l', 'l'})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, peer := net.Pipe()
		c := NewConn(a, func(f *Frame) {
			var h Hello
			var e AgentEvent
			f.DecodeParams(&h)
			if f.DecodeParams(&e) == nil {
				for _, part := range FitEvent(e) {
					if p, err := json.Marshal(part); err != nil || len(p) > maxEvent {
						t.Errorf("%d bytes, %v", len(p), err)
					}
				}
			}
		})
		go func() { peer.Write(b); peer.Close() }()
		var lost *LostError
		if err := c.Serve(); !errors.As(err, &lost) {
			t.Errorf("%v", err)
		}
	})
}

func FuzzFit(f *testing.F) {
	f.Add("abc", "déf\x00<>", 2000)
	f.Add("\u2028\xff\xfe", "x", 5000)
	f.Fuzz(func(t *testing.T, a, b string, limit int) {
		limit = 2000 + (limit&0xffff+0xffff)%0xffff
		a, b = strings.Repeat(a, 500), strings.Repeat(b, 500)
		for _, r := range []any{RunCommandResult{Stdout: a, Stderr: b}, ReadFileResult{Content: a}, MCPResult{Text: b}, ListFilesResult{Paths: []string{a, b, a}}} {
			out, err := FitResult(r, limit)
			if err != nil || len(out) > limit || !json.Valid(out) {
				t.Fatalf("%T: %d of %d bytes: %v", r, len(out), limit, err)
			}
		}
		joined := ""
		for _, part := range split(a, 100) {
			joined += part
		}
		if joined != a {
			t.Fatal("parts do not join to the whole")
		}
		if s := cutMiddle(strings.ToValidUTF8(a, ""), 300); !utf8.ValidString(s) {
			t.Fatalf("cut in a rune: %q", s)
		}
	})
}
