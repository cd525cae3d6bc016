package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// CancelTimeout is how long a cancelled turn may take to end.
const CancelTimeout = 5 * time.Second

// deadlineSlack is what the host adds to a turn's own deadline before it
// cancels by itself.
const deadlineSlack = 5 * time.Second

// CodeTimeout is the local code of a turn that was cancelled and did not end
// within CancelTimeout.
const CodeTimeout = "timeout"

// Bounds of the events that wait for a turn's emit.
const (
	eventQueue  = 256
	eventMemory = 8 << 20
)

// TurnOptions configures one turn.
type TurnOptions struct {
	MaxTurns   int           // model round trips; 0: turnrpc.DefaultMaxTurns
	Timeout    time.Duration // of the whole turn, kept by the guest; rounded up to seconds, 0: none
	RichEvents bool
	Label      string           // the turn's name in approvals; "": its id on the wire
	Policy     *approval.Policy // answers instead of people; nil asks them
}

// TurnResult is how a turn ended.
type TurnResult struct {
	Usage      *turnrpc.Usage // rich only
	StopReason string         // rich only
	Canceled   bool           // by ctx or by the deadline
	TimedOut   bool           // by the deadline
}

// activeTurn is the turn under way.
type activeTurn struct {
	s   *Session
	id  string // frame id
	o   TurnOptions
	ctx context.Context // of its approvals and MCP calls

	asks   sync.WaitGroup // approvals under way
	ending bool           // no new ones; under Session.mu

	mu     sync.Mutex
	queue  []Event
	bytes  int
	over   bool
	more   chan struct{} // something is in the queue
	room   chan struct{} // something was taken from the queue
	recent []byte        // the model's last words
	why    why           // what it gave as the reason of a command
}

// Turn runs one turn and calls emit for every event, one at a time, until it
// returns; approval events are the host's own. A slow emit slows the guest
// down. When ctx ends the turn is cancelled, and Turn returns the guest's error
// or, after CancelTimeout, one of code CodeTimeout. A failed turn returns
// *turnrpc.Error, a lost guest *turnrpc.LostError.
func (s *Session) Turn(ctx context.Context, text string, o TurnOptions, emit func(Event)) (TurnResult, error) {
	if v := s.hello.Protocol; v < turnrpc.Version {
		return TurnResult{}, tooOld(v)
	}
	if err := ctx.Err(); err != nil {
		return TurnResult{Canceled: true}, &turnrpc.Error{Code: turnrpc.CodeCanceled, Message: err.Error()}
	}
	params := turnrpc.UserTurn{
		Text: text, MaxTurns: max(o.MaxTurns, 0), RichEvents: o.RichEvents,
		TimeoutSec: int((max(o.Timeout, 0) + time.Second - 1) / time.Second),
	}
	if b, err := json.Marshal(params); err != nil || len(b) > turnrpc.MaxFrame-1024 {
		return TurnResult{}, fmt.Errorf("the prompt has %d bytes (%d encoded), allowed are %d; put long text in a file of the workspace", len(text), len(b), turnrpc.MaxFrame-1024)
	}
	release, ok := s.exclude()
	if !ok {
		return TurnResult{}, ErrTurnActive
	}
	defer release()
	turnCtx, endTurn := context.WithCancel(ctx)
	defer endTurn()
	t := &activeTurn{s: s, id: s.nextID(), o: o, ctx: turnCtx, more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	if t.o.Label == "" {
		t.o.Label = t.id
	}
	s.mu.Lock()
	s.active = t
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.active = nil
		s.mu.Unlock()
		t.finish()
	}()
	call, err := s.conn.Start(ctx, t.id, turnrpc.MethodUserTurn, params)
	if err != nil {
		if ctx.Err() != nil { // nothing was sent
			return TurnResult{Canceled: true}, &turnrpc.Error{Code: turnrpc.CodeCanceled, Message: ctx.Err().Error()}
		}
		return TurnResult{}, err
	}
	defer call.Drop()
	return t.run(ctx, call, endTurn, emit)
}

func (t *activeTurn) run(ctx context.Context, call *turnrpc.Pending, endTurn func(), emit func(Event)) (r TurnResult, err error) {
	begun := time.Now()
	var late <-chan time.Time // the host's own deadline, then that of the cancel
	if t.o.Timeout > 0 {
		timer := time.NewTimer(t.o.Timeout + deadlineSlack)
		defer timer.Stop()
		late = timer.C
	}
	cancelled := ctx.Done()
	handle := func() {
		for _, e := range t.take() {
			if e.Kind == turnrpc.EventResult {
				r.Usage, r.StopReason = e.Usage, e.StopReason
			}
			emit(e)
		}
	}
	cancel := func() {
		cancelled = nil
		endTurn()
		select {
		case t.s.cancels <- t.id:
		default: // the guest takes nothing: the connection is about to be lost
		}
		late = time.NewTimer(CancelTimeout).C
	}
	finish := func(e error) (TurnResult, error) {
		endTurn() // what still waits for an approval is denied, and reported
		t.settle(handle)
		var failed *turnrpc.Error
		if errors.As(e, &failed) && (failed.Code == turnrpc.CodeCanceled || failed.Code == CodeTimeout) {
			r.Canceled = true
			r.TimedOut = ctx.Err() == nil && t.o.Timeout > 0 && time.Since(begun) >= t.o.Timeout
		}
		return r, e
	}
	for {
		select {
		case <-t.more:
			handle()
		case f := <-call.Answered():
			return finish(f.Decode(turnrpc.MethodUserTurn, nil))
		case <-t.s.conn.Done():
			return finish(call.Wait(context.Background(), nil)) // returns at once
		case <-cancelled:
			cancel()
		case <-late:
			if cancelled != nil {
				cancel()
				continue
			}
			return finish(&turnrpc.Error{Code: CodeTimeout, Message: fmt.Sprintf("the guest did not end the cancelled turn in %v", CancelTimeout)})
		}
	}
}

// settle waits for the approvals under way and handles the events until then.
func (t *activeTurn) settle(handle func()) {
	t.s.mu.Lock()
	t.ending = true
	t.s.mu.Unlock()
	settled := make(chan struct{})
	go func() {
		t.asks.Wait()
		close(settled)
	}()
	for {
		select {
		case <-t.more:
			handle()
		case <-settled:
			handle()
			return
		}
	}
}

// sendCancels sends what cancels turns, so that a guest that takes nothing
// holds up nobody. The answers say nothing and are dropped.
func (s *Session) sendCancels() {
	for {
		select {
		case id := <-s.cancels:
			f, err := turnrpc.Call(turnrpc.CancelID(id), turnrpc.MethodCancelTurn, turnrpc.CancelTurn{ID: id})
			if err == nil {
				err = s.conn.Send(s.ctx, f)
			}
			if err != nil {
				s.log.Warn("cancel of a turn not sent", "err", err)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// exclude takes the right to run a turn or to change what turns depend on.
func (s *Session) exclude() (release func(), ok bool) {
	select {
	case s.exclusive <- struct{}{}:
		return func() { <-s.exclusive }, true
	default:
		return nil, false
	}
}

// event queues an event of the guest. What a guest may not say is dropped:
// kinds that nobody knows, those of extensions it did not list, words of the
// user, and approvals, which the host reports itself.
func (t *activeTurn) event(f *turnrpc.Frame) {
	var e turnrpc.AgentEvent
	if err := f.DecodeParams(&e); err != nil {
		t.s.log.Warn("agent event dropped", "err", err)
		return
	}
	switch e.Kind {
	case turnrpc.EventText, turnrpc.EventTool, turnrpc.EventResult, turnrpc.EventError, turnrpc.EventDone:
	case turnrpc.EventToolStart:
		if !t.s.has(turnrpc.ExtToolStarted) {
			return
		}
		t.note(e)
	case turnrpc.EventOutput:
		if !t.s.has(turnrpc.ExtOutput) {
			return
		}
	default:
		return
	}
	if e.Kind == turnrpc.EventText {
		t.say(e.Text)
	} else if e.Kind == turnrpc.EventTool {
		t.say("")
	}
	t.put(Event{AgentEvent: e}, len(f.Params))
}

// approval queues an event about a request: the question, or its outcome.
func (t *activeTurn) approval(r approval.Request, out *approval.Outcome) {
	e := Event{AgentEvent: turnrpc.AgentEvent{
		Kind: turnrpc.EventApproval, Tool: r.Tool, ToolID: r.ToolID, Status: turnrpc.StatusPending,
	}}
	if r.Kind == approval.KindMCP {
		e.ToolArgs = argsText(r.Arguments)
	}
	e.Request = &r
	if out != nil {
		e.Outcome, e.Status = out, turnrpc.StatusDenied
		if out.Allowed {
			e.Status = turnrpc.StatusAllowed
		}
	}
	t.put(e, len(r.Command)+len(r.Arguments)+1024)
}

// put waits for room in the queue; this is what slows the guest down.
func (t *activeTurn) put(e Event, size int) {
	for {
		t.mu.Lock()
		if t.over {
			t.mu.Unlock()
			signal(t.room) // the next one that waits
			return
		}
		if len(t.queue) == 0 || len(t.queue) < eventQueue && t.bytes+size <= eventMemory {
			t.queue, t.bytes = append(t.queue, e), t.bytes+size
			if len(t.queue) < eventQueue {
				signal(t.room) // the next one that waits
			}
			t.mu.Unlock()
			signal(t.more)
			return
		}
		t.mu.Unlock()
		select {
		case <-t.room:
		case <-t.s.conn.Done():
			return
		}
	}
}

// take empties the queue.
func (t *activeTurn) take() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.queue
	t.queue, t.bytes = nil, 0
	signal(t.room)
	return list
}

// finish lets nobody wait for room any more.
func (t *activeTurn) finish() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	signal(t.room)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// maxSaid is what an approval repeats of the model's words, in bytes.
const maxSaid = 2 << 10

// say notes what the model says; "" starts anew.
func (t *activeTurn) say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text == "" {
		t.recent = nil
		return
	}
	t.recent = append(t.recent, text[max(len(text)-maxSaid, 0):]...)
	if over := len(t.recent) - maxSaid; over > 0 {
		t.recent = append(t.recent[:0], t.recent[over:]...)
	}
}

// why is the reason that a model gave in the arguments of a call.
type why struct{ toolID, text string }

// note keeps the reason in the arguments of a command that begins.
func (t *activeTurn) note(e turnrpc.AgentEvent) {
	var args struct {
		Reason string `json:"reason"`
	}
	if e.Tool != turnrpc.MethodRunCommand || e.ToolID == "" || json.Unmarshal([]byte(e.ToolArgs), &args) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why{e.ToolID, strings.TrimSpace(args.Reason[:min(len(args.Reason), maxSaid)])}
}

// reason is why a model asks, in its words: what it gave with the call, else
// what it said before it.
func (t *activeTurn) reason(toolID string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.why.text != "" && t.why.toolID == toolID {
		return strings.ToValidUTF8(t.why.text, "")
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(t.recent), ""))
}
