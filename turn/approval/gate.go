package approval

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Per-tool policies of MCP servers.
const (
	ToolAsk   = "ask"
	ToolAllow = "allow"
	ToolDeny  = "deny"
)

// Defaults of Options.
const (
	DefaultGrace = 10 * time.Second
	DefaultQueue = 64
)

// maxReason bounds the reason of an answer, in bytes.
const maxReason = 4 << 10

// Options configures a Gate.
type Options struct {
	Audit *Audit // required: what is not logged is not allowed
	Rules *Rules // nil: none, and none can be added
	// Tool is the policy for an MCP tool: ToolAsk, ToolAllow or ToolDeny. ""
	// asks, what is not known denies. nil asks for every tool.
	Tool func(server, tool string) string
	// Timeout says how long a request waits for an answer; 0, and nil: until its
	// turn ends.
	Timeout func() time.Duration
	// Grace is how long requests wait after the last one who could answer has
	// gone, so that a screen can come back. 0: DefaultGrace; negative: none.
	Grace time.Duration
	// Queue bounds the requests that wait; 0: DefaultQueue.
	Queue int
}

// Gate takes every request of one sandbox. Requests queue; whoever answers
// first decides. It is safe for concurrent use.
type Gate struct {
	o      Options
	prefix string // of the ids: those of an earlier process match nothing

	mu        sync.Mutex
	waiting   []*entry
	decided   []string // ids, newest last
	next      int
	approvers int
	grace     *time.Timer // runs while the last approver has just gone
	changed   chan struct{}
	closed    bool
}

// entry is a request that waits. Who takes it from Gate.waiting decides, and
// sends the one outcome.
type entry struct {
	Request
	outcome chan Outcome
}

// New returns a gate.
func New(o Options) (*Gate, error) {
	if o.Audit == nil {
		return nil, errors.New("approvals need an audit log")
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Queue == 0 {
		o.Queue = DefaultQueue
	}
	var id [4]byte
	rand.Read(id[:])
	return &Gate{o: o, prefix: hex.EncodeToString(id[:]), changed: make(chan struct{})}, nil
}

// Ask waits for the decision on a request; the gate sets its ID and times. It
// returns a denial on every failure and when ctx ends. onAsked, unless nil, is
// called before anyone is asked, with the request as they will see it.
func (g *Gate) Ask(ctx context.Context, r Request, onAsked func(Request)) Outcome {
	return g.Decide(ctx, g.Name(r), onAsked)
}

// Name gives a request its ID, its times and the words for the rule that would
// remember it.
func (g *Gate) Name(r Request) Request {
	r.Asked = time.Now()
	if g.o.Timeout != nil {
		late := r.Asked.Add(g.o.Timeout())
		if late.After(r.Asked) && (r.Deadline.IsZero() || late.Before(r.Deadline)) {
			r.Deadline = late
		}
	}
	g.mu.Lock()
	g.next++
	r.ID = g.prefix + "-" + strconv.Itoa(g.next)
	g.mu.Unlock()
	r.Matches = ruleFor(r, Answer{Allow: true, Scope: ScopeSession}, r.Asked).subject()
	return r
}

// Decide is Ask for a request that has been named.
func (g *Gate) Decide(ctx context.Context, r Request, onAsked func(Request)) Outcome {
	out, decided := g.automatic(ctx, r)
	if !decided {
		out = g.ask(ctx, r, onAsked)
	}
	if !out.Allowed || ctx.Err() == nil {
		return out
	}
	// The turn ended while the answer was on its way.
	out = Outcome{Cause: CauseCancelled, Reason: "the turn ended"}
	g.log(r, out)
	return out
}

// automatic decides without people, where it can.
func (g *Gate) automatic(ctx context.Context, r Request) (Outcome, bool) {
	out, ok := g.policies(r)
	switch {
	case r.Kind != KindCommand && r.Kind != KindMCP:
		out, ok = Outcome{Cause: CauseError, Reason: "unknown kind of request"}, true
	case ctx.Err() != nil:
		out, ok = Outcome{Cause: CauseCancelled, Reason: "the turn ended"}, true
	}
	if !ok {
		return Outcome{}, false
	}
	if err := g.log(r, out); err != nil {
		out = Outcome{Cause: CauseError, Reason: err.Error()}
	}
	return out, true
}

// policies asks, in this order: what the configuration denies, an entry of the
// turn's policy, what the configuration allows, the rest of the policy, and
// remembered rules.
func (g *Gate) policies(r Request) (Outcome, bool) {
	tool := ToolAsk
	if r.Kind == KindMCP && g.o.Tool != nil {
		tool = g.o.Tool(r.Server, r.MCPTool)
	}
	switch tool {
	case ToolAsk, ToolAllow, "":
	default:
		return Outcome{Cause: CauseRule, Reason: "the configuration denies this tool", Rule: "config"}, true
	}
	if r.Policy != nil {
		if out, ok := r.Policy.match(r); ok {
			return out, true
		}
	}
	if tool == ToolAllow {
		return Outcome{Allowed: true, Cause: CauseRule, Reason: "the configuration allows this tool", Rule: "config"}, true
	}
	if r.Policy != nil && !r.Policy.Ask {
		return r.Policy.rest(), true
	}
	if g.o.Rules != nil {
		if rule, ok := g.o.Rules.Match(r); ok {
			return Outcome{Allowed: rule.Allow, Cause: CauseRule, Reason: "a remembered rule: " + rule.Describe(), By: rule.By, Rule: rule.ID}, true
		}
	}
	return Outcome{}, false
}

// ask queues the request and waits.
func (g *Gate) ask(ctx context.Context, r Request, onAsked func(Request)) Outcome {
	if onAsked != nil {
		onAsked(r)
	}
	e := &entry{Request: r, outcome: make(chan Outcome, 1)}
	var late <-chan time.Time
	if !r.Deadline.IsZero() {
		t := time.NewTimer(time.Until(r.Deadline))
		defer t.Stop()
		late = t.C
	}
	g.mu.Lock()
	var no Outcome
	switch {
	case g.closed:
		no = Outcome{Cause: CauseError, Reason: "the sandbox is stopping"}
	case len(g.waiting) >= g.o.Queue:
		no = Outcome{Cause: CauseError, Reason: fmt.Sprintf("%d requests wait already", g.o.Queue)}
	case g.approvers == 0 && g.grace == nil:
		no = noApprover()
	default:
		g.waiting = append(g.waiting, e)
		g.notify()
	}
	g.mu.Unlock()
	if no.Cause != "" {
		g.log(r, no)
		return no
	}
	select {
	case out := <-e.outcome:
		return out
	case <-ctx.Done():
		no = Outcome{Cause: CauseCancelled, Reason: "the turn ended"}
	case <-late:
		no = Outcome{Cause: CauseTimeout, Reason: fmt.Sprintf("no answer within %v", r.Deadline.Sub(r.Asked).Round(time.Second))}
	}
	if g.take(r.ID) == nil {
		return <-e.outcome // an answer was first, and is being written down
	}
	g.log(r, no)
	return no
}

func noApprover() Outcome {
	return Outcome{Cause: CauseNoApprover} // which says it all
}

// take removes a request from those that wait; nil when someone else did.
func (g *Gate) take(id string) *entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, e := range g.waiting {
		if e.ID == id {
			g.waiting = slices.Delete(g.waiting, i, i+1)
			g.remember(id)
			g.notify()
			return e
		}
	}
	return nil
}

// remember keeps the newest ids that are decided, to tell late answers.
func (g *Gate) remember(id string) {
	const most = 1024
	if g.decided = append(g.decided, id); len(g.decided) > most {
		g.decided = slices.Delete(g.decided, 0, most/2)
	}
}

func (g *Gate) notify() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Answer decides a request. The first valid answer wins, later ones get
// ErrAnswered. An answer with an unknown scope, or one that would remember a
// denial, denies and returns ErrAnswer. Whoever calls sets By.
func (g *Gate) Answer(id string, a Answer) error {
	e := g.take(id)
	if e == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if slices.Contains(g.decided, id) {
			return fmt.Errorf("%w: %s", ErrAnswered, id)
		}
		return fmt.Errorf("%w: %q", ErrUnknownRequest, id)
	}
	out, err := g.answer(e.Request, a)
	e.outcome <- out
	return err
}

func (g *Gate) answer(r Request, a Answer) (Outcome, error) {
	out := Outcome{Allowed: a.Allow, Cause: CauseUser, Reason: a.Reason, By: a.By}
	if len(out.Reason) > maxReason {
		out.Reason = strings.ToValidUTF8(out.Reason[:maxReason], "") + "…"
	}
	remember := false
	switch {
	case a.Scope == "" || a.Scope == ScopeOnce:
	case a.Allow && (a.Scope == ScopeSession || a.Scope == ScopeWorkspace):
		remember = true
	default:
		no := Outcome{Cause: CauseError, Reason: "an answer that is not known", By: a.By}
		g.log(r, no)
		return no, fmt.Errorf("%w: scope %q of a decision allow=%t; the request is denied", ErrAnswer, a.Scope, a.Allow)
	}
	var rule Rule
	var ruleErr error
	if remember {
		rule, ruleErr = g.addRule(ruleFor(r, a, time.Now()))
		out.Rule = rule.ID
	}
	if err := g.log(r, out); err != nil {
		if rule.ID != "" {
			g.o.Rules.Remove(rule.ID)
		}
		return Outcome{Cause: CauseError, Reason: err.Error()}, fmt.Errorf("the request is denied: %w", err)
	}
	if ruleErr != nil {
		return out, fmt.Errorf("allowed this once, but not remembered: %w", ruleErr)
	}
	return out, nil
}

func (g *Gate) addRule(rule Rule) (Rule, error) {
	if g.o.Rules == nil {
		return Rule{}, errors.New("there is no place for rules")
	}
	rule, err := g.o.Rules.Add(rule)
	if err != nil {
		return Rule{}, err
	}
	if err := g.o.Audit.Append(Entry{Time: time.Now(), Event: AuditRuleAdded, Rule: &rule, By: rule.By}); err != nil {
		g.o.Rules.Remove(rule.ID)
		return Rule{}, err
	}
	return rule, nil
}

// Rules lists the rules in force, oldest first.
func (g *Gate) Rules() []Rule {
	if g.o.Rules == nil {
		return nil
	}
	return g.o.Rules.List()
}

// RemoveRule removes a rule for someone.
func (g *Gate) RemoveRule(id, by string) error {
	if g.o.Rules == nil {
		return fmt.Errorf("%w: %q", ErrNoRule, id)
	}
	rule, err := g.o.Rules.Remove(id)
	if err != nil {
		return err
	}
	return g.o.Audit.Append(Entry{Time: time.Now(), Event: AuditRuleRemoved, Rule: &rule, By: by})
}

// Forget drops the rules of a session that has ended for good.
func (g *Gate) Forget(session string) {
	if g.o.Rules != nil {
		g.o.Rules.Forget(session)
	}
}

// log writes a decision to the audit log.
func (g *Gate) log(r Request, out Outcome) error {
	now := time.Now()
	return g.o.Audit.Append(Entry{Time: now, Event: AuditDecision, Request: &r, Outcome: &out, Waited: now.Sub(r.Asked), By: out.By})
}

// Pending lists the requests that wait, oldest first.
func (g *Gate) Pending() []Request {
	list, _ := g.Watch()
	return list
}

// Watch lists the requests that wait, oldest first, and returns a channel that
// is closed when the list changes.
func (g *Gate) Watch() ([]Request, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]Request, len(g.waiting))
	for i, e := range g.waiting {
		list[i] = e.Request
	}
	return list, g.changed
}

// Attach says that there is someone to ask, until release is called. After the
// last release, requests wait for Options.Grace and are then denied.
func (g *Gate) Attach() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.approvers++
	if g.grace != nil {
		g.grace.Stop()
		g.grace = nil
	}
	return sync.OnceFunc(g.detach)
}

func (g *Gate) detach() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.approvers--; g.approvers > 0 || g.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(max(g.o.Grace, 0), func() {
		g.mu.Lock()
		gone := g.grace == t // no one came back meanwhile
		if gone {
			g.grace = nil
		}
		g.mu.Unlock()
		if gone {
			g.denyAll(noApprover())
		}
	})
	g.grace = t
}

// Close denies what waits and everything later.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	if g.grace != nil {
		g.grace.Stop()
		g.grace = nil
	}
	g.mu.Unlock()
	g.denyAll(Outcome{Cause: CauseError, Reason: "the sandbox is stopping"})
}

func (g *Gate) denyAll(no Outcome) {
	for _, r := range g.Pending() {
		if e := g.take(r.ID); e != nil {
			g.log(e.Request, no)
			e.outcome <- no
		}
	}
}
