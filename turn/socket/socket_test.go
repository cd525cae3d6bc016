package socket

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/approval"
)

// rig is a server over an engine whose guests obey the prompt: "text N SIZE",
// "ask COMMAND", "hang".
type rig struct {
	engine *turn.Engine
	gate   *approval.Gate
	path   string
	guests sync.WaitGroup
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "msbk-") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	audit, err := approval.OpenAudit(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := approval.OpenRules(filepath.Join(dir, "rules.json"))
	if err != nil {
		t.Fatal(err)
	}
	gate, err := approval.New(approval.Options{Audit: audit, Rules: rules, Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{gate: gate, path: filepath.Join(dir, "turn.sock")}
	r.engine = turn.NewEngine(turn.EngineOptions{
		Sandbox: "box", Store: turn.OpenStore(filepath.Join(dir, "sessions")), Gate: gate,
		Dial: func(_ context.Context, c turnrpc.GuestConfig) (io.ReadWriteCloser, error) {
			host, peer := net.Pipe()
			r.guests.Go(func() { serveGuest(peer, c) })
			return host, nil
		},
		Model: func(profile string) (turnrpc.GuestModel, error) {
			if profile == "panic" {
				panic("in the configuration")
			}
			return turnrpc.GuestModel{Name: "demo"}, nil
		},
		Models: func() []string { return []string{"demo"} },
	})
	l, err := Listen(r.path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(r.engine, nil)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.engine.Close()
		r.guests.Wait()
		audit.Close()
	})
	return r
}

func serveGuest(c net.Conn, config turnrpc.GuestConfig) {
	defer c.Close()
	say := func(id, method string, body any) {
		f, _ := turnrpc.Call(id, method, body)
		if method == "" {
			f, _ = turnrpc.Respond(id, body)
		}
		b, _ := turnrpc.Append(nil, f)
		c.Write(b)
	}
	say(turnrpc.HelloID, turnrpc.MethodHello, turnrpc.Hello{SessionID: config.SessionID, Capability: config.Capability, ImageID: "i", Protocol: 4, GuestReady: true})
	turnrpc.Read(c)
	for {
		f, err := turnrpc.Read(c)
		if err != nil {
			return
		}
		if f.Method == turnrpc.MethodUserTurn {
			var p turnrpc.UserTurn
			f.DecodeParams(&p)
			word, rest, _ := strings.Cut(p.Text, " ")
			switch word {
			case "text":
				var n, size int
				fmt.Sscan(rest, &n, &size)
				for range n {
					say(f.ID, turnrpc.MethodAgentEvent, turnrpc.AgentEvent{Kind: "text", Text: strings.Repeat("x", size)})
				}
			case "ask":
				say("g-1", turnrpc.MethodRequestApproval, turnrpc.ApprovalRequest{TurnID: f.ID, Command: rest})
				a, err := turnrpc.Read(c)
				if err != nil {
					return
				}
				say(f.ID, turnrpc.MethodAgentEvent, turnrpc.AgentEvent{Kind: "text", Text: string(a.Result)})
			case "hang":
				turnrpc.Read(c)
			}
		}
		say(f.ID, "", turnrpc.OK{OK: true})
		if f.Method == turnrpc.MethodShutdown {
			return
		}
	}
}

func (r *rig) dial(t *testing.T) *Client {
	t.Helper()
	c, err := Dial(t.Context(), r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// until reads events up to the end of a turn.
func until(t *testing.T, e *Events, name string) (list []turn.Event) {
	t.Helper()
	for {
		v, err := e.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, v)
		if v.Kind == turn.KindEnd && v.Turn == name {
			return list
		}
	}
}

func TestSessions(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	c := r.dial(t)
	if st, _ := os.Stat(r.path); st.Mode().Perm() != 0o600 {
		t.Error(st.Mode())
	}
	i, err := c.Open(ctx, OpenParams{Name: "work"})
	if err != nil || i.State != turn.StateIdle || i.Capabilities.Protocol != 4 {
		t.Fatalf("%+v %v", i, err)
	}
	s, err := c.StartTurn(ctx, TurnParams{Session: "work", Text: "text 2 3"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.Subscribe(ctx, "work", s.From)
	if err != nil {
		t.Fatal(err)
	}
	list := until(t, e, s.Turn)
	if len(list) != 4 || list[0].Kind != "user" || list[1].Text != "xxx" || list[3].Status != "ok" {
		t.Errorf("%+v", list)
	}
	// The past, from the transcript.
	past, err := c.Subscribe(ctx, "work", 0)
	if err != nil {
		t.Fatal(err)
	}
	if again := until(t, past, s.Turn); len(again) != 5 || again[0].Kind != turn.KindSession {
		t.Errorf("%+v", again)
	}
	past.Close()
	if _, err := past.Next(ctx); err != io.EOF {
		t.Errorf("after Close: %v", err)
	}
	if p, err := c.ExportPatch(ctx, "work"); err != nil || p.Patch != "" {
		t.Error(p, err)
	}
	if err := c.SetModel(ctx, "work", "demo"); err != nil {
		t.Error(err)
	}
	if err := c.Rename(ctx, "work", "play"); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, "play"); !errors.Is(err, turn.ErrSessionActive) {
		t.Errorf("%v", err)
	}
	if _, err := c.Show(ctx, "nothing"); !errors.Is(err, turn.ErrNoSession) {
		t.Errorf("%v", err)
	}
	if st, err := c.Status(ctx); err != nil || st.Sandbox != "box" || len(st.Sessions) != 1 || st.Models[0] != "demo" {
		t.Errorf("%+v %v", st, err)
	}
	if err := c.CloseSession(ctx, "play"); err != nil {
		t.Error(err)
	}
	if _, err := c.StartTurn(ctx, TurnParams{Session: "play", Text: "x"}); !errors.Is(err, turn.ErrSessionClosed) {
		t.Errorf("%v", err)
	}
	// The same subscription goes on after a resume, and ends with the session.
	if _, err := c.Open(ctx, OpenParams{Session: i.ID[:5]}); err != nil {
		t.Error(err)
	}
	for {
		v, err := e.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if v.Status == turn.StatusResumed {
			break
		}
	}
	c.CloseSession(ctx, "play")
	if err := c.Remove(ctx, "play"); err != nil {
		t.Error(err)
	}
	for {
		if _, err := e.Next(ctx); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Several front ends see the same request; the first valid answer counts.
func TestApprovals(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, b := r.dial(t), r.dial(t)
	a.Open(ctx, OpenParams{Name: "w"})
	watchA, err := a.Approvals(ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	watchB, err := b.Approvals(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*Approvals{watchA, watchB} {
		if list, err := w.Next(ctx); err != nil || len(list) != 0 {
			t.Fatal(list, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	if _, err := watchB.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	cancel()
	s, err := a.StartTurn(ctx, TurnParams{Session: "w", Text: "ask make"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := watchB.Next(ctx)
	if err != nil || len(list) != 1 || list[0].Command != "make" || list[0].Matches == "" {
		t.Fatalf("%+v %v", list, err)
	}
	id := list[0].ID
	if list, _ := watchA.Next(ctx); len(list) != 1 || list[0].ID != id {
		t.Errorf("%+v", list)
	}
	if err := b.Answer(ctx, id, approval.Answer{Allow: true, Scope: approval.ScopeWorkspace, By: "b\x1b"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Answer(ctx, id, approval.Answer{}); !errors.Is(err, approval.ErrAnswered) {
		t.Errorf("late answer: %v", err)
	}
	if err := a.Answer(ctx, "x", approval.Answer{Allow: true}); !errors.Is(err, approval.ErrUnknownRequest) {
		t.Errorf("%v", err)
	}
	e, _ := a.Subscribe(ctx, "w", s.From)
	events := until(t, e, s.Turn)
	if events[3].Text != `{"decision":"allow_once"}` || !strings.HasPrefix(events[2].Outcome.By, `"b\x1b" (uid `) {
		t.Errorf("%+v", events)
	}
	if list, _ := watchA.Next(ctx); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	rules, err := b.Rules(ctx)
	if err != nil || len(rules) != 1 {
		t.Fatal(rules, err)
	}
	if err := a.RemoveRule(ctx, rules[0].ID); err != nil {
		t.Error(err)
	}
	if err := a.RemoveRule(ctx, rules[0].ID); !errors.Is(err, approval.ErrNoRule) {
		t.Errorf("%v", err)
	}

	// The one who could answer goes away: denied.
	s, _ = b.StartTurn(ctx, TurnParams{Session: "w", Text: "ask make"})
	if list, _ := watchB.Next(ctx); len(list) == 0 { // the earlier change may come first
		watchB.Next(ctx)
	}
	a.Close()
	e, _ = b.Subscribe(ctx, "w", s.From)
	events = until(t, e, s.Turn)
	if out := events[2].Outcome; out == nil || out.Allowed || out.Cause != approval.CauseNoApprover {
		t.Errorf("%+v", events)
	}
	if list, err := b.Pending(ctx); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}

// A front end that quits stops its turn only when it asked for that.
func TestLease(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	watcher := r.dial(t)
	watcher.Open(ctx, OpenParams{Name: "w"})
	for _, lease := range []bool{true, false} {
		c := r.dial(t)
		s, err := c.StartTurn(ctx, TurnParams{Session: "w", Text: "hang", Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if !lease {
			if i, _ := watcher.Show(ctx, "w"); i.State != turn.StateTurn {
				t.Errorf("%+v", i)
			}
			watcher.CancelTurn(ctx, "w", s.Turn)
		}
		e, _ := watcher.Subscribe(ctx, "w", s.From)
		until(t, e, s.Turn)
		e.Close()
	}
}

// A client that does not read costs no memory and holds nobody up, and finds
// everything when it reads again.
func TestSlowSubscriber(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	c, slow := r.dial(t), r.dial(t)
	c.Open(ctx, OpenParams{Name: "w"})
	s1, err := slow.Subscribe(ctx, "w", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s1.Next(ctx); err != nil {
		t.Fatal(err)
	}
	const n, size = 60, 200_000 // 12 MB
	s, err := c.StartTurn(ctx, TurnParams{Session: "w", Text: fmt.Sprintf("text %d %d", n, size)})
	if err != nil {
		t.Fatal(err)
	}
	e, _ := c.Subscribe(ctx, "w", s.From)
	if list := until(t, e, s.Turn); len(list) != n+2 {
		t.Errorf("%d events", len(list))
	}
	if len(s1.have) > batchEvents {
		t.Errorf("%d events wait in the slow client", len(s1.have))
	}
	if list := until(t, s1, s.Turn); len(list) != n+2 || len(list[n].Text) != size {
		t.Errorf("%d events", len(list))
	}
}

func TestBadRequests(t *testing.T) {
	r := newRig(t)
	ask := func(c net.Conn, in *bufio.Reader, line string) response {
		io.WriteString(c, line+"\n")
		b, _ := in.ReadBytes('\n')
		var r response
		json.Unmarshal(b, &r)
		return r
	}
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for _, line := range []string{
		`{"id":1,"method":"nothing"}`,
		`{"id":1,"method":"session.show"}`,
		`{"id":1,"method":"session.show","params":{"session":3}}`,
		`{"id":1,"method":"turn.start","params":{"session":"w","text":"x","leese":true}}`,
		`{"id":1,"method":"approvals.answer","params":{"id":"x","allow":"yes"}}`,
		`{"id":1,"method":"approvals.answer","params":{"id":"x","allow":true,"always":true}}`,
		`{"id":1,"method":"next","params":{"sub":7}}`,
	} {
		if r := ask(c, in, line); r.ID != 1 || r.Error == nil || r.Error.Code != "bad_request" {
			t.Errorf("%s: %+v", line, r.Error)
		}
	}
	// A panic costs the request, not the connection.
	if r := ask(c, in, `{"id":2,"method":"session.open","params":{"model":"panic"}}`); r.Error == nil || r.Error.Code != "failed" {
		t.Errorf("%+v", r)
	}
	if r := ask(c, in, `{"id":3,"method":"status"}`); r.Error != nil {
		t.Errorf("%+v", r.Error)
	}
	if r := ask(c, in, `not JSON`); r.Error == nil || r.Error.Code != "bad_request" {
		t.Errorf("%+v", r)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("after a line that is no request: %v", err)
	}
	if _, err := Dial(t.Context(), r.path+"x"); err == nil {
		t.Error("connected to nothing")
	}
	if _, err := Listen(r.path); err == nil {
		t.Error("a socket that is served was taken over")
	}
}

func TestServerGone(t *testing.T) {
	host, peer := net.Pipe()
	c := NewClient(host)
	defer c.Close()
	go func() {
		bufio.NewReader(peer).ReadBytes('\n')
		peer.Close()
	}()
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("%v", err)
	}
	<-c.Done()
	if _, err := c.Status(t.Context()); err == nil || err != c.Err() {
		t.Errorf("%v", err)
	}
}
