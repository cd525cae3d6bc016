package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"msb/cmd/msb/progress"
	"msb/cmd/msb/question"
	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/visible"
)

// eventPrinter prints the events of a turn.
type eventPrinter interface {
	event(e turn.Event)
	failed() error // the first error of the output
}

// longLine is the width of lines that no terminal breaks.
const longLine = 1000

func newEventPrinter(a *app, asJSON bool) eventPrinter {
	if asJSON {
		return &jsonPrinter{w: a.io.Out}
	}
	width := longLine
	if a.io.ErrTTY() {
		width = a.io.Width()
	}
	return &textPrinter{out: a.io.Out, err: a.io.Err, width: width, shared: a.io.OutTTY() && a.io.ErrTTY(), colour: a.io.Colour()}
}

// jsonPrinter prints an event a line.
type jsonPrinter struct {
	w   io.Writer
	err error
}

func (p *jsonPrinter) event(e turn.Event) {
	enc := json.NewEncoder(p.w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); p.err == nil {
		p.err = err
	}
}

func (p *jsonPrinter) failed() error { return p.err }

// textPrinter prints for people: the model's words on one stream, what happens on the other.
type textPrinter struct {
	out, err io.Writer
	width    int
	shared   bool // both go to one terminal
	colour   bool

	middle  bool // the last line of the words is not complete
	output  int  // lines shown of the command that runs
	partial string
	broken  error
}

func (p *textPrinter) failed() error { return p.broken }

// maxOutput is how many lines of a command's output are shown.
const maxOutput = 40

func (p *textPrinter) event(e turn.Event) {
	switch e.Kind {
	case turnrpc.EventText:
		p.words(e.Text)
	case turnrpc.EventToolStart:
		p.output, p.partial = 0, ""
		p.note("› %s %s", visible.Text(e.Tool), arguments(e.ToolArgs, p.width-len(e.Tool)-10))
	case turnrpc.EventOutput:
		p.show(e.Text)
	case turnrpc.EventTool:
		p.tool(e)
	case turnrpc.EventApproval:
		p.approval(e)
	case turnrpc.EventError:
		p.note("! %s", visible.Text(e.Err))
	case turn.KindEnd:
		p.words("")
		p.usage(e)
	}
}

// words prints what the model says, as it comes.
func (p *textPrinter) words(text string) {
	if text == "" {
		if p.middle {
			p.write("\n")
			p.middle = false
		}
		return
	}
	p.write(visible.Lines(text))
	p.middle = !strings.HasSuffix(text, "\n")
}

func (p *textPrinter) write(s string) {
	if _, err := io.WriteString(p.out, s); err != nil && p.broken == nil {
		p.broken = err
	}
}

// note prints a line of its own about what happens.
func (p *textPrinter) note(format string, args ...any) {
	if p.shared {
		p.words("")
	}
	line := "  " + progress.Cut(fmt.Sprintf(format, args...), max(p.width-3, 20))
	if p.colour {
		line = "\x1b[2m" + line + "\x1b[0m"
	}
	fmt.Fprintln(p.err, line)
}

// show prints the output of a command, the beginning of it.
func (p *textPrinter) show(text string) {
	text = p.partial + text
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole && len(text) < 4096 {
			p.partial = text
			return
		}
		if !whole {
			line, rest = text[:4096], text[4096:]
		}
		p.outputLine(line)
		text = rest
	}
}

func (p *textPrinter) outputLine(line string) {
	p.output++
	switch {
	case p.output <= maxOutput:
		p.note("  │ %s", visible.Line(strings.TrimSuffix(line, "\r")))
	case p.output == maxOutput+1:
		p.note("  │ … (more output is not shown; --json has it)")
	}
}

func (p *textPrinter) tool(e turn.Event) {
	if p.partial != "" {
		p.outputLine(p.partial)
		p.partial = ""
	}
	if e.Status == turnrpc.StatusError {
		p.note("✗ %s: %s", visible.Text(e.Tool), visible.Text(e.Err))
		return
	}
	first, _, more := strings.Cut(strings.TrimSpace(e.Text), "\n")
	if p.output > 0 && more { // it was shown as it came
		first = strings.TrimSpace(first)
	}
	p.note("✓ %s  %s", visible.Text(e.Tool), visible.Text(first))
}

func (p *textPrinter) approval(e turn.Event) {
	what := e.Tool
	if e.Request != nil {
		what = e.Request.Command
		if e.Request.Server != "" {
			what = e.Request.Server + " · " + e.Request.MCPTool
		}
	}
	what = visible.Text(what)
	switch {
	case e.Outcome != nil && e.Outcome.Allowed:
		p.note("✓ allowed%s: %s", because(e), what)
	case e.Outcome != nil:
		p.note("✗ %s: %s", visible.Text(e.Outcome.Tell()), what)
	default:
		p.note("? waits for approval: %s", what)
	}
}

// because says which rule allowed something without a question.
func because(e turn.Event) string {
	if e.Outcome.Rule == "" || e.Outcome.Reason == "" {
		return ""
	}
	return " by " + visible.Text(e.Outcome.Reason)
}

func (p *textPrinter) usage(e turn.Event) {
	if u := e.Usage; u != nil {
		p.note("%s tokens in, %s out", thousands(int(u.InputTokens)), thousands(int(u.OutputTokens)))
	}
}

// arguments is the beginning of a tool's arguments on one line.
func arguments(raw string, width int) string {
	return progress.Cut(visible.Text(question.JSON(raw)), max(width, 20))
}
