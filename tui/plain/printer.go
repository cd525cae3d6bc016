package plain

import (
	"fmt"
	"io"
	"strings"

	"msb/protocol/turnrpc"
	"msb/tui/conversation"
	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/turn"
)

// printer is the one writer of the line mode. Lines of foreign text begin with
// a bar, and are broken before the terminal would do it, so that none of them
// can pass for a line of ours.
type printer struct {
	Cost  func(model string, u turnrpc.Usage) string
	w     io.Writer
	width int
	err   error

	said    string // what the model says, up to the end of a line
	saying  bool
	model   string
	usage   turnrpc.Usage
	printed map[string]int // lines of a command that were shown
}

// maxPrinted is how many lines of a command are shown; the rest is counted.
const maxPrinted = 200

func newPrinter(w io.Writer, width int) *printer {
	if width < 20 {
		width = 80
	}
	return &printer{w: w, width: width, printed: make(map[string]int)}
}

func (p *printer) write(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, s)
	}
}

func (p *printer) bell() { p.write("\a") }

// say prints text with who says it; more lines follow behind a bar.
func (p *printer) say(who, text string) {
	p.flush()
	lines := strings.Split(foreign.Lines(text), "\n")
	for i, l := range pane.Wrap(strings.TrimSpace(lines[0]), p.width-len(who)-2) {
		if i == 0 {
			p.write(who + ": " + l + "\n")
		} else {
			p.write("  | " + strings.TrimSpace(l) + "\n")
		}
	}
	for _, l := range lines[1:] {
		p.body(l)
	}
}

// alert is say for what went wrong.
func (p *printer) alert(who, text string) { p.say(who+", attention", text) }

// block prints a text under its name.
func (p *printer) block(name, text string) {
	p.say(name, "")
	p.body(text)
}

// body prints text that is safe, each line behind a bar; a plus marks where one
// was broken.
func (p *printer) body(text string) {
	for l := range strings.SplitSeq(text, "\n") {
		for i, part := range pane.Chop(l, p.width-4) {
			lead := "  | "
			if i > 0 {
				lead = "  + "
			}
			p.write(lead + part + "\n")
		}
	}
}

// flush prints what the model began to say.
func (p *printer) flush() {
	if p.said != "" {
		text := p.said
		p.said = ""
		p.body(foreign.Lines(text))
	}
	p.saying = false
}

// speak prints whole lines as they come.
func (p *printer) speak(text string) {
	if !p.saying {
		p.write("agent:\n")
		p.saying = true
	}
	p.said += text
	for {
		l, rest, ok := strings.Cut(p.said, "\n")
		if !ok && len(p.said) < foreign.MaxLine {
			return
		}
		p.said = rest
		p.body(foreign.Lines(l))
	}
}

func (p *printer) event(e *turn.Event) {
	if e.Kind == turnrpc.EventText {
		p.speak(e.Text)
		return
	}
	switch e.Kind {
	case turn.KindUser:
		p.say("you", e.Text)
		p.usage, p.printed = turnrpc.Usage{}, make(map[string]int)
	case turnrpc.EventToolStart:
		name, short := conversation.Title(e.Tool, e.ToolArgs)
		p.say("tool starts", name+" "+short)
		if e.Tool == turnrpc.MethodApplyPatch {
			p.body(foreign.Lines(conversation.Argument(e.ToolArgs, "patch")))
		}
	case turnrpc.EventOutput:
		p.output(e)
	case turnrpc.EventApproval:
		if e.Outcome != nil {
			p.say("approval", e.Outcome.Tell())
		}
	case turnrpc.EventTool:
		name, _ := conversation.Title(e.Tool, e.ToolArgs)
		if n := p.printed[e.ToolID]; n > maxPrinted {
			p.say("tool", fmt.Sprintf("%d lines more of output are in the transcript", n-maxPrinted))
		}
		if e.Status == turnrpc.StatusOK {
			p.say("tool ended", fmt.Sprintf("%s, %d bytes", name, len(e.Text)))
		} else {
			p.alert("tool failed", name+": "+e.Err)
		}
	case turnrpc.EventResult:
		if e.Usage != nil {
			p.usage = *e.Usage
		}
	case turnrpc.EventError:
		p.alert("agent", "stopped: "+e.Err)
	case turn.KindEnd:
		p.end(e)
	case turn.KindSession:
		p.say("session", strings.TrimSpace(e.Status+" "+e.Text+" "+e.Err))
		if e.Text != "" {
			p.model = e.Text
		}
	case turn.KindModel:
		p.model = e.Text
		p.say("model", e.Text)
	}
}

func (p *printer) output(e *turn.Event) {
	text := strings.TrimSuffix(e.Text, "\n")
	for l := range strings.SplitSeq(text, "\n") {
		p.printed[e.ToolID]++
		if p.printed[e.ToolID] > maxPrinted {
			continue
		}
		p.flush()
		p.body(foreign.Line(l))
	}
}

func (p *printer) end(e *turn.Event) {
	if e.Usage != nil {
		p.usage = *e.Usage
	}
	text := e.Status
	if e.Err != "" {
		text += ": " + e.Err
	}
	if p.usage != (turnrpc.Usage{}) {
		text += ", " + conversation.Tokens(p.usage)
		if p.Cost != nil {
			if s := p.Cost(p.model, p.usage); s != "" {
				text += ", " + s
			}
		}
	}
	if e.Code != "" {
		p.alert("turn ended", text)
		return
	}
	p.say("turn ended", text)
}
