package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

const (
	// CallTimeout bounds an MCP call, from the moment it was approved.
	CallTimeout = 60 * time.Second
	// ForeignWait is how long an MCP call of a guest that does not wait for
	// approvals may be asked about: such a guest gives up after 60 s.
	ForeignWait = 55 * time.Second
)

// maxGuestID bounds the ids of guest calls, in bytes.
const maxGuestID = 256

// frame handles what the read loop does not: guest calls and events. It blocks
// only where the guest is to be slowed down.
func (s *Session) frame(f *turnrpc.Frame) {
	switch {
	case f.IsResponse():
		// An answer nobody waits for any more.
	case turnrpc.IsGuestCall(f.ID):
		s.guestCall(f)
	case f.Method == turnrpc.MethodAgentEvent:
		s.mu.Lock()
		t := s.active
		s.mu.Unlock()
		if t != nil && t.id == f.ID {
			t.event(f)
		}
	}
}

// guestCall takes a slot and answers the call in a goroutine of its own.
func (s *Session) guestCall(f *turnrpc.Frame) {
	if len(f.ID) > maxGuestID {
		s.log.Warn("guest call dropped: its id is too long", "bytes", len(f.ID))
		return
	}
	release, ok := s.slots.Take(f.Method)
	if !ok {
		select {
		case s.busy <- f.ID: // a full queue slows the guest down
		case <-s.conn.Done():
		}
		return
	}
	s.work.Go(func() {
		defer release()
		s.answer(f)
	})
}

func (s *Session) answerBusy() {
	for {
		select {
		case id := <-s.busy:
			s.conn.Fail(s.ctx, id, turnrpc.CodeBusy, turnrpc.BusyMessage)
		case <-s.ctx.Done():
			return
		}
	}
}

// answer serves one call. A panic in a broker is the failure of that call.
func (s *Session) answer(f *turnrpc.Frame) {
	result, err := func() (result any, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("panic in a guest call", "method", f.Method, "panic", p, "stack", string(debug.Stack()))
				err = errors.New("internal error")
			}
		}()
		return s.serve(f)
	}()
	if err == nil {
		err = s.conn.Respond(s.ctx, f.ID, turnrpc.CodeHost, result)
	} else {
		code, message := turnrpc.CodeHost, err.Error()
		var e *turnrpc.Error
		switch {
		case errors.As(err, &e):
			code, message = e.Code, e.Message
		case errors.Is(err, context.Canceled):
			code = turnrpc.CodeCanceled
		}
		err = s.conn.Fail(s.ctx, f.ID, code, message)
	}
	if err != nil && s.ctx.Err() == nil {
		s.log.Warn("guest call not answered", "method", f.Method, "err", err)
	}
}

var errNoHandler = errors.New("guest calls not supported by this host")

// serve runs a call of the closed list that the guest's version may use.
func (s *Session) serve(f *turnrpc.Frame) (any, error) {
	least, ok := turnrpc.GuestCallVersion(f.Method)
	if !ok {
		return nil, fmt.Errorf("unknown guest method %s", clip(f.Method, 128))
	}
	if v := s.hello.Protocol; v < least {
		return nil, fmt.Errorf("%s requires protocol %d, guest speaks %d", f.Method, least, v)
	}
	switch f.Method {
	case turnrpc.MethodProviderOpen, turnrpc.MethodProviderSend, turnrpc.MethodProviderCancel:
		if s.provider == nil {
			return nil, errNoHandler
		}
		return s.serveProvider(f)
	case turnrpc.MethodRequestApproval:
		return s.serveApproval(f)
	}
	if s.o.MCP == nil {
		return nil, errNoHandler
	}
	return s.serveMCP(f)
}

func (s *Session) serveProvider(f *turnrpc.Frame) (any, error) {
	switch f.Method {
	case turnrpc.MethodProviderOpen:
		var p turnrpc.ProviderOpen
		if err := f.DecodeParams(&p); err != nil {
			return nil, err
		}
		opened, err := s.provider.Open(s.ctx, p.Model, p.Rich)
		if !s.has(turnrpc.ExtContextWindow) {
			opened.InputTokens = 0
		}
		return opened, err
	case turnrpc.MethodProviderSend:
		var p turnrpc.ProviderSend
		if err := f.DecodeParams(&p); err != nil {
			return nil, err
		}
		return turnrpc.OK{OK: true}, s.provider.Send(s.ctx, p.StreamID, p.Data, p.Last)
	default:
		var p turnrpc.ProviderCancel
		if err := f.DecodeParams(&p); err != nil {
			return nil, err
		}
		s.provider.Cancel(p.StreamID)
		return turnrpc.OK{OK: true}, nil
	}
}

func (s *Session) serveMCP(f *turnrpc.Frame) (any, error) {
	switch f.Method {
	case turnrpc.MethodMCPList:
		tools, err := s.o.MCP.List(s.ctx)
		if tools == nil {
			tools = []turnrpc.MCPTool{}
		}
		return turnrpc.MCPTools{Tools: tools}, err
	case turnrpc.MethodMCPCancel:
		var p turnrpc.MCPCancel
		if err := f.DecodeParams(&p); err != nil {
			return nil, err
		}
		s.mu.Lock()
		cancel := s.calls[p.CallID]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		s.o.MCP.Cancel(p.CallID)
		return turnrpc.OK{OK: true}, nil
	default:
		var p turnrpc.MCPCall
		if err := f.DecodeParams(&p); err != nil {
			return nil, err
		}
		return s.callMCP(p)
	}
}

// callMCP asks for approval and calls the tool. The call belongs to the turn
// under way; without one there is nobody to ask.
func (s *Session) callMCP(c turnrpc.MCPCall) (any, error) {
	if len(c.CallID) > maxGuestID || len(c.Server) > maxGuestID || len(c.Tool) > 1024 || len(c.Arguments) > turnrpc.MaxMCPArguments {
		return nil, errors.New("invalid MCP call")
	}
	t, done := s.turn("")
	defer done()
	ctx, cancel := s.callContext(t)
	defer cancel()
	s.mu.Lock()
	_, twice := s.calls[c.CallID]
	if !twice {
		s.calls[c.CallID] = cancel
	}
	s.mu.Unlock()
	if twice {
		return nil, fmt.Errorf("MCP call id %q is in use", c.CallID)
	}
	defer func() {
		s.mu.Lock()
		delete(s.calls, c.CallID)
		s.mu.Unlock()
	}()
	r := approval.Request{
		Kind: approval.KindMCP, Tool: c.Server + turnrpc.MCPSeparator + c.Tool,
		Server: c.Server, MCPTool: c.Tool, Arguments: c.Arguments, Claim: s.o.MCP.Claim(c.Server, c.Tool),
	}
	if !s.has(turnrpc.ExtDenialReason) {
		r.Deadline = time.Now().Add(ForeignWait)
	}
	out := s.ask(ctx, t, r)
	done()
	if !out.Allowed {
		if out.Cause == approval.CauseCancelled {
			return nil, &turnrpc.Error{Code: turnrpc.CodeCanceled, Message: "MCP call canceled"}
		}
		text := "this call was " + out.Tell()
		if out.Cause == approval.CauseTimeout && !r.Deadline.IsZero() {
			text += "; this guest does not wait longer"
		}
		return turnrpc.MCPResult{Text: text, IsError: true}, nil
	}
	ctx, stop := context.WithTimeout(ctx, CallTimeout)
	defer stop()
	result, err := s.o.MCP.Call(ctx, c)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil, &turnrpc.Error{Code: turnrpc.CodeCanceled, Message: "MCP call canceled"}
	}
	return result, err
}

// serveApproval answers for a command. Whatever is not a clear yes is a no.
func (s *Session) serveApproval(f *turnrpc.Frame) (any, error) {
	var p turnrpc.ApprovalRequest
	err := f.DecodeParams(&p)
	if err != nil || p.TurnID == "" || len(p.Command) > turnrpc.MaxCommand || strings.Contains(p.Command, "\x00") ||
		len(p.Workdir) > turnrpc.MaxCommand || len(p.ToolID) > 1024 {
		return nil, errors.New("invalid run_command approval request")
	}
	if p.Workdir == "" {
		p.Workdir = turnrpc.DefaultRepoDir
	}
	t, done := s.turn(p.TurnID)
	defer done()
	ctx, cancel := s.callContext(t)
	defer cancel()
	const maxTimeout = 365 * 24 * 3600
	out := s.ask(ctx, t, approval.Request{
		Kind: approval.KindCommand, Tool: turnrpc.MethodRunCommand, ToolID: p.ToolID,
		Command: p.Command, Workdir: p.Workdir, User: s.o.CommandUser,
		Timeout: time.Duration(min(max(p.TimeoutSec, 1), maxTimeout)) * time.Second,
	})
	answer := turnrpc.Approval{Decision: turnrpc.DecisionDeny}
	switch {
	case out.Allowed:
		answer.Decision = turnrpc.DecisionAllowOnce
	case s.has(turnrpc.ExtDenialReason):
		answer.Cause, answer.Reason = out.Cause, out.Reason
	}
	return answer, nil
}

// turn is the one under way; with an id, only if that is its id. The turn does
// not end before done was called.
func (s *Session) turn(id string) (t *activeTurn, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t = s.active
	if t == nil || t.ending || id != "" && t.id != id {
		return nil, func() {}
	}
	t.asks.Add(1)
	return t, sync.OnceFunc(t.asks.Done)
}

// callContext ends with the turn and with the connection.
func (s *Session) callContext(t *activeTurn) (context.Context, context.CancelFunc) {
	if t == nil {
		return context.WithCancel(s.ctx)
	}
	ctx, cancel := context.WithCancel(t.ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// ask goes through the gate and reports question and decision as events. A
// request outside a turn, or without a gate, is denied.
func (s *Session) ask(ctx context.Context, t *activeTurn, r approval.Request) approval.Outcome {
	r.Session = s.o.ID
	if t == nil {
		return approval.Outcome{Cause: approval.CauseError, Reason: "it is not of the turn under way"}
	}
	r.Turn, r.Policy, r.Reason = t.o.Label, t.o.Policy, t.reason(r.ToolID)
	if !utf8.ValidString(r.Command) { // cannot be: JSON; but what is shown must be what runs
		return approval.Outcome{Cause: approval.CauseError, Reason: "the command is not valid UTF-8"}
	}
	if s.o.Gate == nil {
		out := approval.Outcome{Cause: approval.CauseNoApprover}
		t.approval(r, &out)
		return out
	}
	r = s.o.Gate.Name(r)
	out := s.o.Gate.Decide(ctx, r, func(asked approval.Request) { t.approval(asked, nil) })
	t.approval(r, &out)
	return out
}

func argsText(a json.RawMessage) string {
	if len(a) > maxShownArgs {
		return ""
	}
	return string(a)
}

// maxShownArgs is what an approval event repeats of an MCP call's arguments.
const maxShownArgs = 16 << 10
