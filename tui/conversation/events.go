package conversation

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/approval"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Add takes events in the order of the transcript; those it has are skipped.
func (c *Conversation) Add(events []turn.Event) {
	for i := range events {
		e := &events[i]
		if e.Seq != 0 && e.Seq <= c.seq {
			continue
		}
		c.seq = e.Seq
		c.add(e)
	}
	c.trim()
}

func (c *Conversation) add(e *turn.Event) {
	switch e.Kind {
	case turn.KindUser:
		c.push(&entry{kind: user, text: e.Text}, e)
		c.Prompts = append(c.Prompts, e.Text)
		if len(c.Prompts) > 200 {
			c.Prompts = c.Prompts[1:]
		}
		c.Active, c.began = e.Turn, e.Time
		c.usage, c.stop = turnrpc.Usage{}, ""
	case turnrpc.EventText:
		c.say(e)
	case turnrpc.EventToolStart:
		c.push(&entry{kind: tool, name: e.Tool, args: e.ToolArgs, id: e.ToolID, state: running, began: e.Time}, e)
	case turnrpc.EventOutput:
		t := c.call(e)
		t.print(e.Text)
		t.last = e.Seq
	case turnrpc.EventApproval:
		c.asked(e)
	case turnrpc.EventTool:
		c.finished(e)
	case turnrpc.EventResult:
		c.stop = e.StopReason
		if e.Usage != nil {
			c.usage = *e.Usage
		}
	case turnrpc.EventError:
		c.push(&entry{kind: note, alert: true, text: "the agent stopped: " + e.Err}, e)
	case turn.KindEnd:
		c.end(e)
	case turn.KindSession:
		c.session(e)
	case turn.KindModel:
		c.Model = e.Text
		c.push(&entry{kind: note, text: "model " + e.Text}, e)
	}
}

func (c *Conversation) push(n *entry, e *turn.Event) *entry {
	n.turn, n.first, n.last = e.Turn, e.Seq, e.Seq
	c.entries = append(c.entries, n)
	return n
}

// say adds to what the model says.
func (c *Conversation) say(e *turn.Event) {
	if n := len(c.entries); n > 0 {
		last := c.entries[n-1]
		if last.kind == agent && last.turn == e.Turn {
			if len(last.text)+len(e.Text) <= maxText {
				last.text += e.Text
				last.last = e.Seq
				last.touch()
				return
			}
			for text := e.Text; text != ""; {
				piece := text[:min(len(text), maxText)]
				text = text[len(piece):]
				c.push(&entry{kind: agent, text: piece, more: true}, e)
			}
			return
		}
	}
	c.push(&entry{kind: agent, text: e.Text}, e)
}

// call finds the tool call that an event is about, the last one of that id or
// name; it makes one for a guest that does not say when calls begin.
func (c *Conversation) call(e *turn.Event) *entry {
	for i := len(c.entries) - 1; i >= 0; i-- {
		t := c.entries[i]
		if t.turn != e.Turn {
			break
		}
		if t.kind != tool || t.ended != (time.Time{}) {
			continue
		}
		if e.ToolID != "" && t.id == e.ToolID || (e.ToolID == "" || t.id == "") && t.name == e.Tool {
			return t
		}
	}
	return c.push(&entry{kind: tool, name: e.Tool, args: e.ToolArgs, id: e.ToolID, state: running, began: e.Time}, e)
}

// asked is a request for approval, or its outcome.
func (c *Conversation) asked(e *turn.Event) {
	t := c.call(e)
	t.last = e.Seq
	if r := e.Request; r != nil {
		t.mcp = r.Kind == approval.KindMCP
		if t.args == "" {
			t.args = e.ToolArgs
		}
	}
	if e.Outcome != nil {
		t.decided(e.Outcome)
		return
	}
	if e.Status == turnrpc.StatusPending {
		t.state = waiting
	}
	t.touch()
}

func (c *Conversation) finished(e *turn.Event) {
	t := c.call(e)
	t.last, t.ended = e.Seq, e.Time
	t.result, t.err = e.Text, e.Err
	if e.ToolArgs != "" {
		t.args = e.ToolArgs
	}
	switch {
	case t.state == denied:
	case e.Status == turnrpc.StatusOK:
		t.state = done
	default:
		t.state = failed
	}
	t.touch()
}

func (c *Conversation) end(e *turn.Event) {
	for _, t := range c.entries {
		if t.turn == e.Turn {
			t.settle(canceled, e.Time)
		}
	}
	if e.Usage != nil {
		c.usage = *e.Usage
	}
	if e.StopReason != "" {
		c.stop = e.StopReason
	}
	n := &entry{kind: note}
	var parts []string
	switch {
	case e.Status == turn.StatusCanceled:
		parts = append(parts, "stopped")
	case e.Status == turn.StatusTimedOut:
		parts = append(parts, "out of time")
		n.alert = true
	case e.Code != "":
		parts = append(parts, "failed: "+e.Err)
		n.alert = true
	default:
		parts = append(parts, "done")
		if c.stop != "" && c.stop != "stop" && c.stop != "end_turn" {
			parts[0] += " (" + c.stop + ")"
		}
	}
	if !c.began.IsZero() && c.Active == e.Turn {
		parts = append(parts, elapsed(e.Time.Sub(c.began)))
	}
	if c.usage != (turnrpc.Usage{}) {
		parts = append(parts, Tokens(c.usage))
		c.Total.InputTokens += c.usage.InputTokens
		c.Total.OutputTokens += c.usage.OutputTokens
		if c.Cost != nil {
			if s := c.Cost(c.Model, c.usage); s != "" {
				parts = append(parts, s)
			}
		}
	}
	n.text = strings.Join(parts, " · ")
	c.push(n, e)
	c.Active = ""
	c.Ended = e.Turn
}

func (c *Conversation) session(e *turn.Event) {
	n := &entry{kind: note, text: "session " + e.Status}
	switch e.Status {
	case turn.StatusOpened, turn.StatusResumed:
		if e.Text != "" {
			c.Model = e.Text
			n.text += ", model " + e.Text
		}
	case turn.StatusLost:
		n.alert = true
		n.text = "the sandbox's agent is gone"
	}
	if e.Err != "" {
		n.text += ": " + e.Err
	}
	c.push(n, e)
}

// Tokens says how much a model was used.
func Tokens(u turnrpc.Usage) string {
	return fmt.Sprintf("%s in · %s out", thousands(u.InputTokens), thousands(u.OutputTokens))
}

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// elapsed is a duration for people.
func elapsed(d time.Duration) string {
	switch {
	case d < 0:
		return "0 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}

// bytes is an amount for people.
func bytes(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1000*1000:
		return fmt.Sprintf("%.1f kB", float64(n)/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}
