package approval

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type rig struct {
	*Gate
	audit string
	rules *Rules
}

func newGate(t *testing.T, o Options) rig {
	t.Helper()
	dir := t.TempDir()
	r := rig{audit: filepath.Join(dir, "audit.jsonl")}
	log, err := OpenAudit(r.audit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	r.rules, err = OpenRules(filepath.Join(dir, "rules.json"))
	if err != nil {
		t.Fatal(err)
	}
	o.Audit, o.Rules = log, r.rules
	r.Gate, err = New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// asked starts Ask and returns when the request waits.
func (r rig) asked(t *testing.T, ctx context.Context, q Request) (id string, out chan Outcome) {
	t.Helper()
	out = make(chan Outcome, 1)
	ids := make(chan string, 1)
	go func() { out <- r.Ask(ctx, q, func(q Request) { ids <- q.ID }) }()
	id = <-ids
	for {
		list, changed := r.Watch()
		for _, q := range list {
			if q.ID == id {
				return id, out
			}
		}
		<-changed
	}
}

func (r rig) entries(t *testing.T) []Entry {
	t.Helper()
	var list []Entry
	for e, err := range ReadAudit(r.audit) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func TestAnswer(t *testing.T) {
	g := newGate(t, Options{})
	defer g.Attach()()
	ctx := context.Background()

	id, out := g.asked(t, ctx, command("make"))
	if err := g.Answer(id, Answer{Allow: true, By: "me"}); err != nil {
		t.Fatal(err)
	}
	if o := <-out; !o.Allowed || o.Cause != CauseUser || o.By != "me" {
		t.Errorf("%+v", o)
	}
	if err := g.Answer(id, Answer{Allow: true}); !errors.Is(err, ErrAnswered) {
		t.Errorf("late answer: %v", err)
	}
	if err := g.Answer("nothing", Answer{Allow: true}); !errors.Is(err, ErrUnknownRequest) {
		t.Errorf("answer to nothing: %v", err)
	}

	id, out = g.asked(t, ctx, command("make"))
	g.Answer(id, Answer{Reason: "not now"})
	if o := <-out; o.Allowed || o.Tell() != "denied by the user: not now" {
		t.Errorf("%+v", o)
	}

	for _, a := range []Answer{{Allow: true, Scope: "always"}, {Scope: ScopeSession}, {Scope: ScopeWorkspace}} {
		id, out = g.asked(t, ctx, command("make"))
		if err := g.Answer(id, a); !errors.Is(err, ErrAnswer) {
			t.Errorf("%+v: %v", a, err)
		}
		if o := <-out; o.Allowed || o.Cause != CauseError {
			t.Errorf("%+v: %+v", a, o)
		}
	}
	list := g.entries(t)
	if len(list) != 5 {
		t.Fatalf("%d entries in the audit log", len(list))
	}
	if e := list[0]; e.Request.Command != "make" || !e.Outcome.Allowed || e.By != "me" || e.Time.IsZero() || e.Request.ID == "" {
		t.Errorf("%+v", e)
	}
	if st, _ := os.Stat(g.audit); st.Mode() != 0o600 {
		t.Error(st.Mode())
	}
}

// An answer to a request of an earlier process is to nothing, whatever the id.
func TestRestart(t *testing.T) {
	before := newGate(t, Options{})
	defer before.Attach()()
	id, out := before.asked(t, context.Background(), command("make"))
	before.Close()
	if o := <-out; o.Allowed || o.Cause != CauseError {
		t.Errorf("when the process ends: %+v", o)
	}
	after := newGate(t, Options{})
	defer after.Attach()()
	same, out := after.asked(t, context.Background(), command("make"))
	if same == id {
		t.Fatalf("%q is used again", id)
	}
	if err := after.Answer(id, Answer{Allow: true}); !errors.Is(err, ErrUnknownRequest) {
		t.Errorf("answer to an earlier process: %v", err)
	}
	if list := after.Pending(); len(list) != 1 || list[0].ID != same {
		t.Errorf("waiting: %+v", list)
	}
	after.Answer(same, Answer{})
	<-out
}

// Two who answer at once: one wins, and only his answer counts.
func TestAnswerRace(t *testing.T) {
	g := newGate(t, Options{})
	defer g.Attach()()
	for range 20 {
		id, out := g.asked(t, context.Background(), command("make"))
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() { errs[i] = g.Answer(id, Answer{Allow: i%2 == 0, By: string(rune('a' + i))}) })
		}
		wg.Wait()
		won, o := -1, <-out
		for i, err := range errs {
			switch {
			case err == nil && won < 0:
				won = i
			case !errors.Is(err, ErrAnswered):
				t.Errorf("answer %d: %v", i, err)
			}
		}
		if won < 0 || o.By != string(rune('a'+won)) || o.Allowed != (won%2 == 0) {
			t.Errorf("answer %d won, outcome %+v", won, o)
		}
	}
}

func TestQueue(t *testing.T) {
	g := newGate(t, Options{Queue: 2})
	defer g.Attach()()
	ctx := context.Background()
	first, out1 := g.asked(t, ctx, command("one"))
	second, out2 := g.asked(t, ctx, command("two"))
	if o := g.Ask(ctx, command("three"), nil); o.Allowed || o.Cause != CauseError {
		t.Errorf("beyond the queue: %+v", o)
	}
	if list := g.Pending(); len(list) != 2 || list[0].Command != "one" || list[1].Command != "two" {
		t.Errorf("%+v", list)
	}
	g.Answer(second, Answer{Allow: true})
	if o := <-out2; !o.Allowed {
		t.Errorf("%+v", o)
	}
	g.Answer(first, Answer{})
	if o := <-out1; o.Allowed {
		t.Errorf("%+v", o)
	}
}

// No path but a clear yes allows anything.
func TestFailClosed(t *testing.T) {
	background := context.Background()
	gone, cancel := context.WithCancel(background)
	cancel()
	for _, c := range []struct {
		name  string
		o     Options
		cause string
		do    func(t *testing.T, g rig) Outcome
	}{
		{"no approver", Options{}, CauseNoApprover, func(t *testing.T, g rig) Outcome {
			return g.Ask(background, command("x"), nil)
		}},
		{"turn over before", Options{}, CauseCancelled, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			return g.Ask(gone, command("x"), nil)
		}},
		{"turn over before, with a rule", Options{}, CauseCancelled, func(t *testing.T, g rig) Outcome {
			g.rules.Add(Rule{Kind: KindCommand, Allow: true, Command: "x", Workdir: "/work/repo"})
			return g.Ask(gone, command("x"), nil)
		}},
		{"turn over meanwhile", Options{}, CauseCancelled, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			ctx, cancel := context.WithCancel(background)
			_, out := g.asked(t, ctx, command("x"))
			cancel()
			return <-out
		}},
		{"timeout", Options{Timeout: after(time.Millisecond)}, CauseTimeout, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			return g.Ask(background, command("x"), nil)
		}},
		{"deadline of the request", Options{Timeout: after(time.Hour)}, CauseTimeout, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			q := command("x")
			q.Deadline = time.Now().Add(time.Millisecond)
			return g.Ask(background, q, nil)
		}},
		{"last approver leaves", Options{Grace: -1}, CauseNoApprover, func(t *testing.T, g rig) Outcome {
			release := g.Attach()
			_, out := g.asked(t, background, command("x"))
			release()
			return <-out
		}},
		{"gate closes", Options{}, CauseError, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			_, out := g.asked(t, background, command("x"))
			g.Close()
			return <-out
		}},
		{"gate closed", Options{}, CauseError, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			g.Close()
			return g.Ask(background, command("x"), nil)
		}},
		{"unknown kind", Options{}, CauseError, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			return g.Ask(background, Request{Kind: "other"}, nil)
		}},
		{"answer that cannot be logged", Options{}, CauseError, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			id, out := g.asked(t, background, command("x"))
			g.o.Audit.Close()
			if err := g.Answer(id, Answer{Allow: true, Scope: ScopeWorkspace}); err == nil {
				t.Error("no error")
			}
			if len(g.rules.List()) != 0 {
				t.Error("it was remembered")
			}
			return <-out
		}},
		{"rule that cannot be logged", Options{}, CauseError, func(t *testing.T, g rig) Outcome {
			g.rules.Add(Rule{Kind: KindCommand, Allow: true, Command: "x", Workdir: "/work/repo"})
			g.o.Audit.Close()
			return g.Ask(background, command("x"), nil)
		}},
		{"denied by a rule", Options{}, CauseRule, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			g.rules.Add(Rule{Kind: KindCommand, Command: "x", Workdir: "/work/repo"})
			return g.Ask(background, command("x"), nil)
		}},
		{"headless", Options{}, CauseNoApprover, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			g.rules.Add(Rule{Kind: KindCommand, Allow: true, Command: "x", Workdir: "/work/repo"})
			q := command("x")
			q.Policy = DenyAll()
			return g.Ask(background, q, nil)
		}},
		{"tool denied by the configuration", Options{Tool: func(string, string) string { return ToolDeny }}, CauseRule, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			q := Request{Kind: KindMCP, Server: "a", MCPTool: "b", Policy: &Policy{Rules: []PolicyRule{{Allow: true, Server: "a", Tool: "b"}}}}
			return g.Ask(background, q, nil)
		}},
		{"tool policy that is not known", Options{Tool: func(string, string) string { return "yes" }}, CauseRule, func(t *testing.T, g rig) Outcome {
			defer g.Attach()()
			return g.Ask(background, Request{Kind: KindMCP, Server: "a", MCPTool: "b"}, nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if o := c.do(t, newGate(t, c.o)); o.Allowed || o.Cause != c.cause {
				t.Errorf("%+v", o)
			}
		})
	}
}

func TestRemembered(t *testing.T) {
	g := newGate(t, Options{Grace: -1})
	release := g.Attach()
	id, out := g.asked(t, context.Background(), command("go test"))
	if q := g.Pending()[0]; !strings.HasPrefix(q.Matches, "the command of exactly 2 words") {
		t.Errorf("%q", q.Matches)
	}
	if err := g.Answer(id, Answer{Allow: true, Scope: ScopeSession, By: "me"}); err != nil {
		t.Fatal(err)
	}
	<-out
	release()
	if o := g.Ask(context.Background(), command("go  test"), nil); !o.Allowed || o.Cause != CauseRule || o.By != "me" {
		t.Errorf("same command: %+v", o)
	}
	other := command("go test")
	other.Session = "t"
	if o := g.Ask(context.Background(), command("go test; id"), nil); o.Allowed {
		t.Errorf("other command: %+v", o)
	}
	rules := g.Gate.Rules()
	if len(rules) != 1 {
		t.Fatalf("%+v", rules)
	}
	if err := g.RemoveRule(rules[0].ID, "me"); err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, e := range g.entries(t) {
		events = append(events, e.Event)
	}
	if want := "rule_added decision decision decision rule_removed"; strings.Join(events, " ") != want {
		t.Errorf("audit log: %v", events)
	}
	g.rules.Add(Rule{Kind: KindCommand, Allow: true, Session: "s", Command: "x", Workdir: "/"})
	g.Forget("s")
	if len(g.Gate.Rules()) != 0 {
		t.Error("rules of a session that is gone")
	}
}

// A screen that comes back within the grace finds its request.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Options{Grace: 10 * time.Second})
		release := g.Attach()
		id, out := g.asked(t, t.Context(), command("x"))
		release()
		release() // twice is once
		time.Sleep(9 * time.Second)
		release = g.Attach()
		time.Sleep(time.Minute)
		if err := g.Answer(id, Answer{Allow: true}); err != nil {
			t.Fatal(err)
		}
		if o := <-out; !o.Allowed {
			t.Errorf("%+v", o)
		}
		release()
		_, out = g.asked(t, t.Context(), command("y")) // within the grace
		time.Sleep(11 * time.Second)
		if o := <-out; o.Cause != CauseNoApprover {
			t.Errorf("%+v", o)
		}
		if o := g.Ask(t.Context(), command("z"), nil); o.Cause != CauseNoApprover {
			t.Errorf("%+v", o)
		}
	})
}

func TestToolPolicy(t *testing.T) {
	g := newGate(t, Options{Tool: func(server, tool string) string {
		if tool == "read" {
			return ToolAllow
		}
		return ""
	}})
	read := Request{Kind: KindMCP, Server: "a", MCPTool: "read"}
	if o := g.Ask(context.Background(), read, nil); !o.Allowed || o.Cause != CauseRule {
		t.Errorf("%+v", o)
	}
	read.Policy = &Policy{Source: "p", Rules: []PolicyRule{{Server: "a", Tool: "*"}}}
	if o := g.Ask(context.Background(), read, nil); o.Allowed {
		t.Errorf("a policy that denies: %+v", o)
	}
	if o := g.Ask(context.Background(), Request{Kind: KindMCP, Server: "a", MCPTool: "write"}, nil); o.Cause != CauseNoApprover {
		t.Errorf("%+v", o)
	}
}

// A log that was torn by a crash goes on with whole lines.
func TestAuditTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	os.WriteFile(path, []byte(`{"event":"decision","by":"a"}`+"\n"+`{"event":"deci`), 0o600)
	a, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	big := Request{Arguments: []byte(`"` + strings.Repeat("x", 100000) + `"`)}
	a.Append(Entry{Event: AuditDecision, By: "b", Request: &big})
	a.Close()
	var by []string
	damaged := 0
	for e, err := range ReadAudit(path) {
		if err != nil {
			damaged++
			continue
		}
		by = append(by, e.By)
		if e.By == "b" && (e.ArgumentsBytes != 100002 || len(e.ArgumentsSHA256) != 64 || e.Request.Arguments != nil) {
			t.Errorf("%+v", e)
		}
	}
	if strings.Join(by, "") != "ab" || damaged != 1 {
		t.Errorf("%v, %d damaged", by, damaged)
	}
}

// after is a time limit that does not change.
func after(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
