package turn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// house is an engine whose guests are scripted: they obey the prompt.
type house struct {
	*Engine
	store   *Store
	gate    *approval.Gate
	version int
	guests  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	cfg   turnrpc.GuestConfig
}

func newHouse(t *testing.T, change func(o *EngineOptions)) *house {
	t.Helper()
	h := &house{store: OpenStore(filepath.Join(t.TempDir(), "sessions")), gate: newGate(t, approval.Options{}), version: 4}
	o := EngineOptions{
		Sandbox: "box", Store: h.store, Gate: h.gate,
		Dial: func(_ context.Context, c turnrpc.GuestConfig) (io.ReadWriteCloser, error) {
			host, peer := net.Pipe()
			h.mu.Lock()
			h.conns, h.cfg = append(h.conns, peer), c
			h.mu.Unlock()
			h.guests.Go(func() { h.guest(&guest{t: t, c: peer}, c) })
			return host, nil
		},
		Model: func(profile string) (turnrpc.GuestModel, error) {
			if profile == "none" {
				return turnrpc.GuestModel{}, errors.New("no such model profile")
			}
			if profile == "" {
				profile = "demo"
			}
			return turnrpc.GuestModel{Name: profile, Provider: "demo", Model: "scripted"}, nil
		},
	}
	if change != nil {
		change(&o)
	}
	h.Engine = NewEngine(o)
	t.Cleanup(func() {
		h.Close()
		h.kill()
		h.guests.Wait()
	})
	return h
}

func (h *house) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.Close()
	}
}

// guest does what the prompt says: "text N", "ask COMMAND", "hang", "die".
func (h *house) guest(g *guest, c turnrpc.GuestConfig) {
	defer g.c.Close()
	g.say(strings.NewReplacer(testID, c.SessionID, testCap, c.Capability).Replace(hello(h.version, ours)))
	g.read()
	for {
		f, err := turnrpc.Read(g.c)
		if err != nil {
			return
		}
		switch f.Method {
		case turnrpc.MethodUserTurn:
			var p turnrpc.UserTurn
			f.DecodeParams(&p)
			word, rest, _ := strings.Cut(p.Text, " ")
			switch word {
			case "text":
				var n int
				fmt.Sscan(rest, &n)
				for i := range n {
					g.sayf(`{"v":4,"id":%q,"method":"agent_event","params":{"kind":"text","text":"%d"}}`, f.ID, i)
				}
			case "ask":
				g.sayf(`{"v":4,"id":"g-1","method":"request_run_command_approval","params":{"turn_id":%q,"command":%q}}`, f.ID, rest)
				answer, err := turnrpc.Read(g.c)
				if err != nil {
					return
				}
				if answer.ID != "g-1" { // cancelled meanwhile
					g.sayf(`{"v":4,"id":%q,"error":{"code":"canceled","message":"context canceled"}}`, f.ID)
					continue
				}
				g.sayf(`{"v":4,"id":%q,"method":"agent_event","params":{"kind":"text","text":%q}}`, f.ID, answer.Result)
			case "hang":
				turnrpc.Read(g.c) // the cancel
				g.sayf(`{"v":4,"id":%q,"error":{"code":"canceled","message":"context canceled"}}`, f.ID)
				continue
			case "die":
				return
			}
			g.sayf(`{"v":4,"id":%q,"method":"agent_event","params":{"kind":"done"}}`, f.ID)
			g.sayf(`{"v":4,"id":%q,"result":{"ok":true}}`, f.ID)
		case turnrpc.MethodShutdown:
			g.sayf(`{"v":4,"id":%q,"result":{"ok":true}}`, f.ID)
			return
		default:
			g.sayf(`{"v":4,"id":%q,"result":{}}`, f.ID)
		}
	}
}

// turn runs a turn to its end and returns its events as words.
func (h *house) turn(t *testing.T, ref, prompt string, o TurnOptions) (string, Event) {
	t.Helper()
	name, from, err := h.StartTurn(ref, prompt, o)
	if err != nil {
		t.Fatal(err)
	}
	return h.follow(t, ref, name, from)
}

func (h *house) follow(t *testing.T, ref, name string, from uint64) (string, Event) {
	t.Helper()
	r, done, err := h.Events(ref, from)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	var e events
	for {
		v, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v.Turn != name {
			continue
		}
		e.emit(v)
		if v.Kind == KindEnd {
			return e.String(), v
		}
	}
}

func TestEngine(t *testing.T) {
	h := newHouse(t, nil)
	if _, err := h.Open(t.Context(), "", "none"); err == nil {
		t.Error("a session with a model that does not exist")
	}
	i, err := h.Open(t.Context(), "work", "")
	if err != nil {
		t.Fatal(err)
	}
	if i.State != StateIdle || i.Protocol != 4 || i.ImageID != "img" || i.Model != "demo" || !i.Capabilities.Output {
		t.Errorf("%+v", i)
	}
	if got, end := h.turn(t, "work", "text 3", TurnOptions{}); got != "user:text 3 text:0 text:1 text:2 done: end:ok" || end.Turn != "1" {
		t.Errorf("%s %+v", got, end)
	}
	if _, _, err := h.StartTurn("work", "  ", TurnOptions{}); err == nil {
		t.Error("an empty prompt")
	}
	if _, _, err := h.StartTurn("work", "x", TurnOptions{Policy: &approval.Policy{Rules: []approval.PolicyRule{{Allow: true}}}}); err == nil {
		t.Error("a policy that is none")
	}

	// Approvals: a policy, then a person, then a rule.
	if got, _ := h.turn(t, "work", "ask make", TurnOptions{Policy: approval.DenyAll()}); !strings.Contains(got, `approval:denied text:{"decision":"deny","cause":"no_approver"`) {
		t.Error(got)
	}
	release := h.gate.Attach()
	name, from, err := h.StartTurn("work", "ask make", TurnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.StartTurn("work", "text 1", TurnOptions{}); !errors.Is(err, ErrTurnActive) {
		t.Errorf("two turns at once: %v", err)
	}
	for {
		list, changed := h.gate.Watch()
		if len(list) == 1 {
			if list[0].Turn != name || list[0].Session != i.ID {
				t.Errorf("%+v", list[0])
			}
			h.gate.Answer(list[0].ID, approval.Answer{Allow: true, Scope: approval.ScopeSession, By: "me"})
			break
		}
		<-changed
	}
	if got, _ := h.follow(t, "work", name, from); got != `user:ask make approval:pending approval:allowed text:{"decision":"allow_once"} done: end:ok` {
		t.Error(got)
	}
	release()
	if got, _ := h.turn(t, "work", "ask make", TurnOptions{}); !strings.Contains(got, "approval:allowed") || strings.Contains(got, "pending") {
		t.Error(got)
	}

	// Cancel.
	name, from, _ = h.StartTurn("work", "hang", TurnOptions{})
	if s, _ := h.Show("work"); s.State != StateTurn || s.Turn != name {
		t.Errorf("%+v", s)
	}
	h.Cancel("work", "another")
	h.Cancel("work", name)
	if _, end := h.follow(t, "work", name, from); end.Status != StatusCanceled || end.Code != turnrpc.CodeCanceled {
		t.Errorf("%+v", end)
	}
	if _, err := h.SetModel(t.Context(), "work", "other"); err != nil {
		t.Error(err)
	}
	if _, err := h.Rename("work", "play"); err != nil {
		t.Error(err)
	}
	if err := h.Remove("play"); !errors.Is(err, ErrSessionActive) {
		t.Errorf("%v", err)
	}
	if again, err := h.Resume(t.Context(), "play", ""); err != nil || again.ID != i.ID {
		t.Errorf("resume of an open session: %v", err)
	}

	// The guest dies; the session is resumed, its readers see all of it.
	r, done, err := h.Events("play", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if _, end := h.turn(t, "play", "die", TurnOptions{}); end.Code != CodeLost || end.Status != StatusLost {
		t.Errorf("%+v", end)
	}
	var e events
	for {
		v, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v.Kind == KindSession {
			e.emit(v)
		}
		if v.Status == StatusLost && v.Kind == KindSession {
			break
		}
	}
	first := h.cfg.Capability
	for {
		if i, err = h.Resume(t.Context(), i.ID[:6], ""); err == nil && i.State == StateIdle {
			break
		}
		if err != nil && !errors.Is(err, ErrSessionActive) {
			t.Fatal(err)
		}
	}
	if h.cfg.Capability == first || len(first) != 64 || i.Model != "other" || i.Name != "play" {
		t.Errorf("%+v", i)
	}
	h.turn(t, "play", "text 1", TurnOptions{})
	if err := h.CloseSession("play"); err != nil {
		t.Error(err)
	}
	for len(e.list) < 4 {
		v, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v.Kind == KindSession {
			e.emit(v)
		}
	}
	if e.String() != "session:demoopened session:lost session:otherresumed session:closed" {
		t.Error(e.String())
	}
	if _, _, err := h.StartTurn("play", "x", TurnOptions{}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("%v", err)
	}
	if err := h.Remove("play"); err != nil {
		t.Error(err)
	}
	for {
		if _, err := r.Next(t.Context()); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if list, _ := h.List(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// A session recorded with an old guest is refused before anything is started.
func TestEngineResumeOld(t *testing.T) {
	h := newHouse(t, nil)
	r, err := h.store.Create("old", "demo")
	if err != nil {
		t.Fatal(err)
	}
	r.Protocol = 3
	h.store.Save(r)
	_, err = h.Resume(t.Context(), "old", "")
	if !errors.Is(err, ErrGuestTooOld) || !strings.Contains(err.Error(), "make image-update") {
		t.Errorf("%v", err)
	}
	if len(h.conns) != 0 {
		t.Error("a guest was started")
	}
	h.version = 3
	if _, err := h.Open(t.Context(), "new", ""); !errors.Is(err, ErrGuestTooOld) {
		t.Errorf("%v", err)
	}
	if _, err := h.Show("new"); !errors.Is(err, ErrNoSession) {
		t.Errorf("a session that never was: %v", err)
	}
}

// A turn that a killed process left open is ended when the session is resumed.
func TestEngineHeals(t *testing.T) {
	h := newHouse(t, nil)
	r, _ := h.store.Create("", "demo")
	os.WriteFile(h.store.TranscriptPath(r.ID), []byte(`{"schema":1,"seq":1,"turn":"1","kind":"user","text":"x"}`+"\n"+`{"sch`), 0o600)
	if _, err := h.Resume(t.Context(), r.ID, ""); err != nil {
		t.Fatal(err)
	}
	if got, end := h.follow(t, r.ID, "1", 0); got != "user:x end:lost" || end.Code != CodeLost {
		t.Errorf("%s %+v", got, end)
	}
	other := NewEngine(EngineOptions{Store: h.store, Gate: h.gate, Model: h.o.Model, Dial: h.o.Dial})
	defer other.Close()
	if _, err := other.Resume(t.Context(), r.ID, ""); !errors.Is(err, ErrSessionActive) {
		t.Errorf("resumed twice: %v", err)
	}
}

func TestEngineBeforeTurn(t *testing.T) {
	fail, title := true, ""
	h := newHouse(t, func(o *EngineOptions) {
		o.BeforeTurn = func(_ context.Context, i Info) error {
			title = i.Title
			if fail {
				return errors.New("workspace cannot be read")
			}
			panic("in the hook")
		}
	})
	h.Open(t.Context(), "w", "")
	if _, end := h.turn(t, "w", "text 1", TurnOptions{}); end.Code != turnrpc.CodeHost || end.Err != "workspace cannot be read" {
		t.Errorf("%+v", end)
	}
	fail = false
	if _, end := h.turn(t, "w", "text 2", TurnOptions{}); end.Err != "internal error" || title != "text 2" {
		t.Errorf("%+v, title %q", end, title)
	}
	if i, _ := h.Show("w"); i.State != StateIdle || i.Turns != 2 || i.Title != "text 1" {
		t.Errorf("%+v", i)
	}
}

func TestEngineClose(t *testing.T) {
	h := newHouse(t, nil)
	h.Open(t.Context(), "w", "")
	name, from, _ := h.StartTurn("w", "hang", TurnOptions{})
	r, done, _ := h.Events("w", from)
	defer done()
	h.Close()
	var e events
	for {
		v, ok, err := r.TryNext()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		e.emit(v)
	}
	if e.String() != "user:hang end:canceled session:closed" || name != "1" {
		t.Error(e.String())
	}
	if _, err := h.Open(t.Context(), "", ""); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("%v", err)
	}
}
