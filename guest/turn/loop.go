package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"msb/protocol/turnrpc"
)

// turn is a turn under way.
type turn struct {
	a      *agent
	id     string // frame id
	ask    turnrpc.UserTurn
	rich   bool
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}

	tools   []turnrpc.Tool
	mcp     map[string]*turnrpc.MCPTool
	mcpErr  error
	started bool // the host knows tool_start
	output  bool // the host knows output
	ids     map[string]bool
	repeats repeats
	usage   turnrpc.Usage
	stop    string
}

// startTurn starts the turn of a frame, from the read loop.
func (a *agent) startTurn(f *turnrpc.Frame) error {
	var p turnrpc.UserTurn
	if err := f.DecodeParams(&p); err != nil {
		return err
	}
	if f.ID == "" {
		return errors.New("a turn needs an id")
	}
	if strings.TrimSpace(p.Text) == "" {
		return errors.New("the prompt is empty")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closing:
		return errors.New("the agent is shutting down")
	case a.turn != nil:
		return errors.New("turn already in progress")
	}
	t := &turn{a: a, id: f.ID, ask: p, rich: p.RichEvents, ended: make(chan struct{}), mcp: make(map[string]*turnrpc.MCPTool), ids: make(map[string]bool)}
	t.started, t.output = a.hostKnows(turnrpc.ExtToolStarted), a.hostKnows(turnrpc.ExtOutput)
	if p.TimeoutSec > 0 {
		const most = 1 << 30 // seconds; more would overflow
		t.ctx, t.cancel = context.WithTimeout(a.ctx, time.Duration(min(p.TimeoutSec, most))*time.Second)
	} else {
		t.ctx, t.cancel = context.WithCancel(a.ctx)
	}
	a.turn = t
	a.work.Go(t.run)
	return nil
}

// cancelTurn cancels the turn of an id, or any for "".
func (a *agent) cancelTurn(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turn != nil && (id == "" || a.turn.id == id) {
		a.turn.cancel()
	}
}

// run is a turn's whole life: events, then the answer.
func (t *turn) run() {
	a := t.a
	a.thaw()
	_, err := contained(func() (struct{}, error) { return struct{}{}, t.loop() })
	canceled := t.ctx.Err() != nil
	cause := context.Cause(t.ctx)
	t.cancel()
	switch {
	case err == nil:
		if t.rich {
			e := turnrpc.AgentEvent{Kind: turnrpc.EventResult, StopReason: t.stop}
			if t.usage != (turnrpc.Usage{}) {
				e.Usage = &t.usage
			}
			t.last(e)
		}
		t.last(turnrpc.AgentEvent{Kind: turnrpc.EventDone})
	case !canceled:
		t.last(turnrpc.AgentEvent{Kind: turnrpc.EventError, Err: err.Error()})
	}
	a.mu.Lock()
	a.turn = nil
	a.mu.Unlock()
	close(t.ended)
	switch {
	case err == nil:
		_ = a.conn.Respond(a.ctx, t.id, turnrpc.CodeAgent, turnrpc.OK{OK: true})
	case canceled:
		_ = a.conn.Fail(a.ctx, t.id, turnrpc.CodeCanceled, cause.Error())
	default:
		_ = a.conn.Fail(a.ctx, t.id, turnrpc.CodeAgent, err.Error())
	}
}

// emit sends an event while the turn is on.
func (t *turn) emit(e turnrpc.AgentEvent) error {
	if !t.rich && e.Kind != turnrpc.EventToolStart && e.Kind != turnrpc.EventOutput {
		e.ToolID, e.ToolArgs = "", ""
	}
	return t.a.conn.Notify(t.ctx, t.id, turnrpc.MethodAgentEvent, e)
}

// last sends an event of the end, when the turn's context may be over.
func (t *turn) last(e turnrpc.AgentEvent) {
	_ = t.a.conn.Notify(t.a.ctx, t.id, turnrpc.MethodAgentEvent, e)
}

// loop asks the model, runs its calls and asks again, until it calls nothing.
func (t *turn) loop() error {
	rounds := t.ask.MaxTurns
	if rounds <= 0 {
		rounds = turnrpc.DefaultMaxTurns
	}
	t.a.history.User(t.ask.Text)
	if err := t.listTools(); err != nil {
		return err
	}
	for range rounds {
		got, err := t.askModel()
		t.usage.InputTokens += got.usage.InputTokens
		t.usage.OutputTokens += got.usage.OutputTokens
		if got.stop != "" {
			t.stop = got.stop
		}
		if got.text != "" {
			t.a.history.Assistant(got.text)
		}
		if err != nil {
			return err
		}
		if len(got.calls) == 0 {
			return nil
		}
		for _, c := range got.calls {
			if err := t.runCall(c); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("turn limit reached: the model was asked %d times and still calls tools; say \"go on\" to let it continue", rounds)
}

// listTools gathers the tools of the turn. A broken MCP broker costs only its tools.
func (t *turn) listTools() error {
	for i := range builtins {
		t.tools = append(t.tools, builtins[i].Tool)
	}
	tools, err := t.a.mcpTools(t.ctx)
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	if err != nil {
		if lost := t.a.conn.Err(); lost != nil {
			return lost
		}
		t.a.log.Error("the tools of MCP servers are not available in this turn", "err", err)
		t.mcpErr = err
	}
	for i := range tools {
		m := &tools[i]
		t.mcp[m.Prefixed] = m
		t.tools = append(t.tools, turnrpc.Tool{
			Name: m.Prefixed, Description: "[" + m.Server + "] " + m.Description, Parameters: m.Parameters,
		})
	}
	return nil
}

// tooLarge finds the words of providers for a request that does not fit in a model's window.
var tooLarge = regexp.MustCompile(`(?i)too (large|long|many tokens)|context (length|window|size)|maximum context|token limit`)

// askModel asks the model with the conversation so far, made small enough for the model's window. When a host says that
// it is too large all the same, it is made smaller, once.
func (t *turn) askModel() (answer, error) {
	fixed := fixedSize(t.prompt(), t.tools)
	var model string
	var size int // of the messages sent
	ask := func(smaller int) (answer, error) {
		return t.a.ask(t.ctx, t.rich, func(name string, window int) turnrpc.ProviderRequest {
			budget := t.a.tokens.budget(name, window, fixed)
			if smaller > 0 {
				budget = min(budget, smaller)
			}
			messages := t.a.history.Messages(budget)
			model, size = name, requestSize(messages)
			return turnrpc.ProviderRequest{Messages: t.withPrompt(messages), Tools: t.tools}
		}, func(text string) error {
			return t.emit(turnrpc.AgentEvent{Kind: turnrpc.EventText, Text: text})
		})
	}
	got, err := ask(0)
	if err != nil && got.text == "" && size > leastBudget && t.ctx.Err() == nil && tooLarge.MatchString(err.Error()) {
		smaller := t.a.tokens.refused(model, size)
		t.a.log.Info("the conversation is too large for the model and is compacted", "bytes", size, "to", smaller, "err", err)
		got, err = ask(smaller)
	}
	if err == nil {
		t.a.tokens.learn(model, size+fixed, got.usage.InputTokens)
	}
	return got, err
}

// plainName is what providers accept as the name of a function.
var plainName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// maxModelResult bounds what a tool tells the model, in bytes.
const maxModelResult = 64 << 10

// runCall runs one call and keeps it with its result. Only the end of the turn is an error: all else is for the model.
func (t *turn) runCall(c toolCall) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	given := c
	if !t.has(c.name) { // what the model made up is kept as a name that providers take
		c.name = clipName(plainName.ReplaceAllString(c.name, "_"))
	}
	c.id = t.uniqueID(c.id)
	problem := ""
	if strings.TrimSpace(c.args) == "" {
		c.args = "{}"
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.args), &object); err != nil || object == nil {
		if err == nil {
			err = errors.New("null")
		}
		problem = fmt.Sprintf("the arguments are no JSON object: %v", err)
		// What is kept must be an object: a provider may refuse the whole conversation over anything else.
		b, _ := json.Marshal(map[string]string{"broken_arguments": clip(given.args, 1024)})
		c.args = string(b)
	}
	if t.started {
		if err := t.emit(turnrpc.AgentEvent{Kind: turnrpc.EventToolStart, Tool: c.name, ToolID: c.id, ToolArgs: c.args}); err != nil {
			return t.ending(err)
		}
	}
	var result string
	var err error
	switch warning, stop := t.repeats.before(c); {
	case stop != nil:
		t.a.history.Tool(c, "error: "+stop.Error())
		t.tell(c, "", stop)
		return stop
	case problem != "":
		err = errors.New(problem)
	case warning != "":
		err = errors.New(warning)
	default:
		result, err = contained(func() (string, error) { return t.dispatch(c) })
	}
	if t.ctx.Err() != nil {
		t.a.history.Tool(c, "error: the turn was canceled before this call had ended")
		return context.Cause(t.ctx)
	}
	shown := result
	if err != nil {
		shown = "error: " + middleCut(err.Error(), maxModelResult)
	}
	shown = strings.ToValidUTF8(shown, "\uFFFD")
	if stop := t.repeats.after(c, shown); stop != nil {
		t.a.history.Tool(c, shown)
		t.tell(c, result, err)
		return stop
	}
	t.a.history.Tool(c, shown)
	return t.tell(c, result, err)
}

// tell sends the event of a finished call.
func (t *turn) tell(c toolCall, result string, err error) error {
	e := turnrpc.AgentEvent{Kind: turnrpc.EventTool, Tool: c.name, Status: turnrpc.StatusOK, ToolID: c.id, ToolArgs: c.args}
	if err != nil {
		e.Status, e.Err = turnrpc.StatusError, clip(err.Error(), turnrpc.MaxEventText)
	} else {
		e.Text = clip(result, turnrpc.MaxEventText)
	}
	return t.ending(t.emit(e))
}

// ending prefers the reason of the turn's end to an error that comes from it.
func (t *turn) ending(err error) error {
	if err != nil && t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return err
}

// has tells whether there is a tool of exactly that name. Names of MCP tools may hold what providers do not take, such
// as dots; the host replaces those on the way to the provider and back.
func (t *turn) has(name string) bool { return builtin(name) != nil || t.mcp[name] != nil }

// dispatch finds the tool and runs it.
func (t *turn) dispatch(c toolCall) (string, error) {
	if tool := builtin(c.name); tool != nil {
		return tool.run(t, c)
	}
	if m := t.mcp[c.name]; m != nil {
		return t.a.callMCP(t.ctx, m, c.args)
	}
	names := make([]string, 0, len(t.tools))
	for _, tool := range t.tools {
		names = append(names, tool.Name)
	}
	return "", fmt.Errorf("there is no tool %q; there are %s", c.name, clip(strings.Join(names, ", "), 2048))
}

// uniqueID keeps the model's id of a call if it is one, and not another's of this turn.
func (t *turn) uniqueID(id string) string {
	id = clipName(plainName.ReplaceAllString(id, "_"))
	if id == "" || t.ids[id] {
		for n := len(t.ids) + 1; ; n++ {
			if next := fmt.Sprintf("call_%s_%d", plainName.ReplaceAllString(t.id, "_"), n); !t.ids[next] {
				id = next
				break
			}
		}
	}
	t.ids[id] = true
	return id
}

func clipName(s string) string {
	if len(s) > 64 {
		return s[:64]
	}
	return s
}
