package conversation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"msb/protocol/turnrpc"
	"msb/tui/theme"
	"msb/turn"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// talk is a conversation that is told events.
type talk struct {
	*Conversation
	seq uint64
}

func newTalk() *talk { return &talk{Conversation: New(theme.New(true))} }

func (c *talk) tell(e turn.Event) {
	c.seq++
	e.Seq, e.Turn, e.Time = c.seq, "1", began.Add(time.Duration(c.seq)*time.Second)
	c.Add([]turn.Event{e})
}

func (c *talk) agent(e turnrpc.AgentEvent) { c.tell(turn.Event{AgentEvent: e}) }

func (c *talk) text(w, h int) string {
	return ansi.Strip(strings.Join(c.View(w, h, 0, began.Add(time.Minute)), "\n"))
}

// A call is one entry from its start to its end.
func TestCall(t *testing.T) {
	c := newTalk()
	c.agent(turnrpc.AgentEvent{Kind: turn.KindUser, Text: "run the tests"})
	c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventToolStart, Tool: "run_command", ToolID: "c1", ToolArgs: `{"command":"go test"}`})
	if s := c.text(80, 20); !strings.Contains(s, "go test") || !c.Busy() {
		t.Errorf("%s", s)
	}
	c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventOutput, Tool: "run_command", ToolID: "c1", Text: "ok a\nok b\n"})
	c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventTool, Tool: "run_command", ToolID: "c1", Status: turnrpc.StatusOK, Text: "exit=0"})
	c.agent(turnrpc.AgentEvent{Kind: turn.KindEnd})
	s := c.text(80, 20)
	if strings.Count(s, "go test") != 1 || !strings.Contains(s, "ok b") || !strings.Contains(s, "✓") || c.Busy() {
		t.Errorf("%s", s)
	}
	id, name, after, upTo, ok := c.Call()
	if id != "c1" || name != "run_command" || after != 1 || upTo != 4 || !ok {
		t.Error(id, name, after, upTo, ok)
	}
}

// Whatever scrolls by, memory stays bounded, and what is gone can be read back.
func TestBounds(t *testing.T) {
	c := newTalk()
	c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventToolStart, Tool: "run_command", ToolID: "c1", ToolArgs: "{}"})
	line := strings.Repeat("x", 999) + "\n"
	for range 20000 {
		c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventOutput, Tool: "run_command", ToolID: "c1", Text: line})
	}
	if n := len(c.entries[0].out); n > 2*maxOutput {
		t.Errorf("%d bytes of output are held", n)
	}
	for i := range 3 * MaxEntries {
		c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventTool, Tool: "read_file", ToolID: fmt.Sprint(i), ToolArgs: "{}", Status: "ok", Text: strings.Repeat("y", 1000)})
	}
	size := 0
	for _, e := range c.entries {
		size += e.size()
	}
	if len(c.entries) > MaxEntries || size > MaxBytes {
		t.Errorf("%d entries of %d bytes", len(c.entries), size)
	}
	if _, upTo, ok := c.Older(); !ok || upTo == 0 {
		t.Error("what is gone cannot be read back")
	}
}

// Events that are known already change nothing.
func TestTwice(t *testing.T) {
	c := newTalk()
	e := turn.Event{Seq: 1, Turn: "1", AgentEvent: turnrpc.AgentEvent{Kind: turnrpc.EventText, Text: "once"}}
	c.Add([]turn.Event{e, e})
	c.Add([]turn.Event{e})
	if s := c.text(40, 10); strings.Count(s, "once") != 1 {
		t.Error(s)
	}
}

// Letters that are read from right to left stay letters, and change nothing but
// their own place; what turns the direction of a line does not reach the terminal.
func TestRightToLeft(t *testing.T) {
	c := newTalk()
	c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventText, Text: "שלום עולם and مرحبا \u202eevil\u202c end"})
	s := strings.Join(c.View(60, 6, 0, began), "\n")
	if !strings.Contains(ansi.Strip(s), "שלום") || !strings.Contains(ansi.Strip(s), "مرحبا") {
		t.Errorf("the words cannot be read: %q", s)
	}
	if strings.ContainsAny(s, "\u202e\u202c\u2066\u200f") {
		t.Errorf("%q", s)
	}
	for _, l := range c.View(60, 6, 0, began) {
		if w := ansi.StringWidth(l); w > 60 {
			t.Errorf("%d wide: %q", w, l)
		}
	}
}

// Reading: entries, questions, finding, copying.
func TestReading(t *testing.T) {
	c := newTalk()
	for i := range 3 {
		c.agent(turnrpc.AgentEvent{Kind: turn.KindUser, Text: fmt.Sprintf("question %d", i)})
		c.agent(turnrpc.AgentEvent{Kind: turnrpc.EventText, Text: fmt.Sprintf("answer %d", i)})
	}
	c.View(60, 5, 0, began)
	c.SelectTurn(-1)
	if got := c.Copy(); got != "question 2" {
		t.Error(got)
	}
	c.SelectTurn(-1)
	if got := c.Copy(); got != "question 1" {
		t.Error(got)
	}
	if !c.Find("ANSWER 0", -1) || c.Copy() != "answer 0" {
		t.Error(c.Copy())
	}
	if c.Find("nowhere", 1) {
		t.Error("found")
	}
	c.Follow()
	if !c.Following() || c.Selected() || c.Copy() != "answer 2" {
		t.Error(c.Copy())
	}
}
