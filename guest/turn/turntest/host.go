// Package turntest is a scripted host for tests of the turn agent: of any protocol version, over any byte stream.
package turntest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"msb/protocol/turnrpc"
)

// Patience is how long a test waits for what must come.
const Patience = time.Minute

// Script says how the host behaves. The zero value accepts, at protocol 4, without extensions.
type Script struct {
	Hello func(h turnrpc.Hello) turnrpc.HelloResult // nil: accept
	// Model answers a request with events; a nil slice leaves it without an end. The stream id is filled in.
	Model func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent
	Open  func(o turnrpc.ProviderOpen) error
	// Window is what provider_open says of the model's window, in tokens.
	Window int
	Tools  []turnrpc.MCPTool
	// ListError fails mcp_list.
	ListError string
	Call      func(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error)
	// Approve answers approvals; nil denies. A decision of "" leaves it without an answer.
	Approve func(r turnrpc.ApprovalRequest) turnrpc.Approval
}

// Host is a scripted host.
type Host struct {
	t      testing.TB
	script Script
	Conn   *turnrpc.Conn
	Hello  chan turnrpc.Hello
	// Calls has the guest's calls in order, Requests the assembled provider requests.
	Calls    chan *turnrpc.Frame
	Requests chan turnrpc.ProviderRequest

	ids     atomic.Uint64
	greeted chan struct{} // closed when hello was answered
	ctx     context.Context
	mu      sync.Mutex
	streams map[string][]byte
	models  int
	events  map[string][]turnrpc.AgentEvent
	onEvent chan turnrpc.AgentEvent
	work    sync.WaitGroup
}

// New starts a host on rwc. It ends with the test.
func New(t testing.TB, rwc io.ReadWriteCloser, s Script) *Host {
	h := &Host{
		t: t, script: s,
		Hello:    make(chan turnrpc.Hello, 1),
		Calls:    make(chan *turnrpc.Frame, 1000),
		Requests: make(chan turnrpc.ProviderRequest, 1000),
		greeted:  make(chan struct{}),
		streams:  make(map[string][]byte),
		events:   make(map[string][]turnrpc.AgentEvent),
		onEvent:  make(chan turnrpc.AgentEvent, 10000),
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.ctx = ctx
	h.Conn = turnrpc.NewConn(rwc, h.handle)
	h.work.Go(func() { _ = h.Conn.Serve() })
	t.Cleanup(func() {
		cancel()
		h.Conn.Close()
		h.work.Wait()
	})
	return h
}

func (h *Host) handle(f *turnrpc.Frame) {
	switch {
	case f.Method == turnrpc.MethodHello:
		var hello turnrpc.Hello
		_ = f.DecodeParams(&hello)
		r := turnrpc.HelloResult{Accepted: true, Protocol: turnrpc.Version}
		if h.script.Hello != nil {
			r = h.script.Hello(hello)
		}
		select {
		case h.Hello <- hello:
		default:
		}
		_ = h.Conn.Respond(h.ctx, f.ID, turnrpc.CodeHost, r)
		close(h.greeted)
	case f.Method == turnrpc.MethodAgentEvent:
		var e turnrpc.AgentEvent
		_ = f.DecodeParams(&e)
		h.mu.Lock()
		h.events[f.ID] = append(h.events[f.ID], e)
		h.mu.Unlock()
		select {
		case h.onEvent <- e:
		default:
		}
	case turnrpc.IsGuestCall(f.ID) && f.Method != "":
		select {
		case h.Calls <- f:
		default:
		}
		h.work.Go(func() { h.serve(f) })
	}
}

func (h *Host) serve(f *turnrpc.Frame) {
	answer := func(result any, err error) {
		if err != nil {
			_ = h.Conn.Fail(h.ctx, f.ID, turnrpc.CodeHost, err.Error())
			return
		}
		_ = h.Conn.Respond(h.ctx, f.ID, turnrpc.CodeHost, result)
	}
	switch f.Method {
	case turnrpc.MethodProviderOpen:
		var o turnrpc.ProviderOpen
		_ = f.DecodeParams(&o)
		if h.script.Open != nil {
			if err := h.script.Open(o); err != nil {
				answer(nil, err)
				return
			}
		}
		h.mu.Lock()
		id := fmt.Sprintf("s%d", len(h.streams)+1)
		h.streams[id] = nil
		h.mu.Unlock()
		answer(turnrpc.ProviderOpened{StreamID: id, InputTokens: h.script.Window}, nil)
	case turnrpc.MethodProviderSend:
		h.send(f, answer)
	case turnrpc.MethodMCPList:
		if h.script.ListError != "" {
			answer(nil, fmt.Errorf("%s", h.script.ListError))
			return
		}
		answer(turnrpc.MCPTools{Tools: h.script.Tools}, nil)
	case turnrpc.MethodMCPCall:
		var c turnrpc.MCPCall
		_ = f.DecodeParams(&c)
		r, err := h.script.Call(h.ctx, c)
		answer(r, err)
	case turnrpc.MethodRequestApproval:
		var r turnrpc.ApprovalRequest
		_ = f.DecodeParams(&r)
		d := turnrpc.Approval{Decision: turnrpc.DecisionDeny}
		if h.script.Approve != nil {
			d = h.script.Approve(r)
		}
		if d.Decision != "" {
			answer(d, nil)
		}
	default:
		answer(turnrpc.OK{OK: true}, nil)
	}
}

func (h *Host) send(f *turnrpc.Frame, answer func(any, error)) {
	var p turnrpc.ProviderSend
	_ = f.DecodeParams(&p)
	h.mu.Lock()
	h.streams[p.StreamID] = append(h.streams[p.StreamID], p.Data...)
	body := h.streams[p.StreamID]
	h.mu.Unlock()
	answer(turnrpc.OK{OK: true}, nil)
	if !p.Last {
		return
	}
	var r turnrpc.ProviderRequest
	if err := json.Unmarshal(body, &r); err != nil {
		h.t.Errorf("the request does not parse: %v", err)
		return
	}
	h.mu.Lock()
	n := h.models
	h.models++
	h.mu.Unlock()
	select {
	case h.Requests <- r:
	default:
	}
	if h.script.Model == nil {
		return
	}
	for _, e := range h.script.Model(n, r) {
		e.StreamID = p.StreamID
		if h.Conn.Notify(h.ctx, turnrpc.NotificationID(h.ids.Add(1)), turnrpc.MethodProviderEvent, e) != nil {
			return
		}
	}
}

// Greeted waits until hello was answered, and returns it.
func (h *Host) Greeted() turnrpc.Hello {
	h.t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	select {
	case <-h.greeted:
		return <-h.Hello
	case <-h.Conn.Done():
		h.t.Fatalf("the agent left before hello: %v", h.Conn.Err())
	case <-late.C:
		h.t.Fatal("the agent said no hello")
	}
	return turnrpc.Hello{}
}

// Call calls the guest and decodes the result.
func (h *Host) Call(method string, params, result any) error {
	ctx, cancel := context.WithTimeout(h.ctx, Patience)
	defer cancel()
	select {
	case <-h.greeted:
	case <-h.Conn.Done():
	case <-ctx.Done():
	}
	return h.Conn.Call(ctx, turnrpc.HostCallID(h.ids.Add(1)), method, params, result)
}

// Turn is a turn that was started.
type Turn struct {
	h  *Host
	ID string
	p  *turnrpc.Pending
}

// Start starts a turn.
func (h *Host) Start(u turnrpc.UserTurn) *Turn {
	h.t.Helper()
	select {
	case <-h.greeted:
	case <-h.Conn.Done():
	case <-time.After(Patience):
	}
	id := turnrpc.HostCallID(h.ids.Add(1))
	p, err := h.Conn.Start(h.ctx, id, turnrpc.MethodUserTurn, u)
	if err != nil {
		h.t.Fatalf("start the turn: %v", err)
	}
	return &Turn{h: h, ID: id, p: p}
}

// Cancel cancels the turn.
func (t *Turn) Cancel() {
	t.h.t.Helper()
	ctx, cancel := context.WithTimeout(t.h.ctx, Patience)
	defer cancel()
	if err := t.h.Conn.Call(ctx, turnrpc.CancelID(t.ID), turnrpc.MethodCancelTurn, turnrpc.CancelTurn{ID: t.ID}, nil); err != nil {
		t.h.t.Fatalf("cancel: %v", err)
	}
}

// Wait returns the turn's events and its end.
func (t *Turn) Wait() ([]turnrpc.AgentEvent, error) {
	ctx, cancel := context.WithTimeout(t.h.ctx, Patience)
	defer cancel()
	err := t.p.Wait(ctx, nil)
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	return append([]turnrpc.AgentEvent{}, t.h.events[t.ID]...), err
}

// Await waits for an event.
func (h *Host) Await(what string, is func(turnrpc.AgentEvent) bool) turnrpc.AgentEvent {
	h.t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	for {
		select {
		case e := <-h.onEvent:
			if is(e) {
				return e
			}
		case <-late.C:
			h.t.Fatalf("there was no event: %s", what)
		}
	}
}

// AwaitCall waits for a call of the guest.
func (h *Host) AwaitCall(method string) *turnrpc.Frame {
	h.t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	for {
		select {
		case f := <-h.Calls:
			if f.Method == method {
				return f
			}
		case <-late.C:
			h.t.Fatalf("there was no call of %s", method)
		}
	}
}

// Say is an answer of text.
func Say(text string) []turnrpc.ProviderEvent {
	return []turnrpc.ProviderEvent{{Type: turnrpc.ProviderText, Text: text}, {Type: turnrpc.ProviderDone}}
}

// Use is an answer of tool calls, each a name and its arguments.
func Use(calls ...[2]string) []turnrpc.ProviderEvent {
	var events []turnrpc.ProviderEvent
	for i, c := range calls {
		events = append(events, turnrpc.ProviderEvent{
			Type: turnrpc.ProviderTool, ToolID: fmt.Sprintf("call_%d", i+1), ToolName: c[0], ToolArgs: c[1],
		})
	}
	return append(events, turnrpc.ProviderEvent{Type: turnrpc.ProviderDone})
}

// Command is a call of run_command.
func Command(command string) [2]string {
	b, _ := json.Marshal(map[string]string{"command": command})
	return [2]string{turnrpc.MethodRunCommand, string(b)}
}

// Last is the last tool result in a request.
func Last(r turnrpc.ProviderRequest) string {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		if r.Messages[i].Role == turnrpc.RoleTool {
			return r.Messages[i].ToolResult
		}
	}
	return ""
}

// Kinds joins the kinds and statuses of events.
func Kinds(events []turnrpc.AgentEvent) string {
	var s []string
	for _, e := range events {
		k := e.Kind
		if e.Status != "" {
			k += ":" + e.Status
		}
		s = append(s, k)
	}
	return strings.Join(s, " ")
}
