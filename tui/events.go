package tui

import (
	"fmt"
	"strings"
	"time"

	"msb/protocol/turnrpc"
	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/turn"
	"msb/vmm/traffic"
)

// maxEventRows bounds the list of events.
const maxEventRows = 2000

// eventLog is what crossed the border in the session on the screen: every event
// of the transcript as one line.
type eventLog struct {
	rows   []eventRow
	at     int // first on the screen; -1: the end
	height int
	filter string
	typing bool
	bytes  int64
	count  int64
}

type eventRow struct {
	text, kind string // safe
	bad        bool
}

func newEventLog() *eventLog { return &eventLog{at: -1} }

func (l *eventLog) clear() { *l = eventLog{at: -1} }

func (l *eventLog) add(events []turn.Event) {
	for i := range events {
		e := &events[i]
		size := len(e.Text) + len(e.ToolArgs) + len(e.Err)
		l.bytes += int64(size)
		l.count++
		l.rows = append(l.rows, rowOf(e, size))
	}
	l.bound()
}

func rowOf(e *turn.Event, size int) eventRow {
	kind := e.Kind
	about := e.Text
	switch {
	case e.Outcome != nil:
		kind = "approval"
		about = e.Outcome.Tell()
		if e.Outcome.By != "" {
			about += " by " + e.Outcome.By
		}
		about += " (" + e.Outcome.Cause + ")"
	case e.Request != nil:
		about = "asked " + e.Request.ID + ": " + e.Request.Command + e.Request.Server + " " + e.Request.MCPTool
	case e.Kind == turnrpc.EventToolStart:
		about = e.ToolArgs
	case e.Err != "":
		about = e.Err
	}
	name := e.Tool
	if e.Status != "" {
		name += " " + e.Status
	}
	id := e.ToolID
	text := fmt.Sprintf("%6d %s %-10s %7d B  %s %s %s", e.Seq, e.Time.Local().Format("15:04:05.000"), foreign.Text(kind), size,
		foreign.Text(name), foreign.Text(clip(id, 24)), foreign.Text(clip(about, 300)))
	bad := e.Err != "" || e.Outcome != nil && !e.Outcome.Allowed || e.Status == turnrpc.StatusError
	return eventRow{text: text, kind: foreign.Text(kind + " " + name), bad: bad}
}

// cross adds what has crossed the protocols.
func (l *eventLog) cross(p traffic.Piece) {
	if p.Lost > 0 {
		l.rows = append(l.rows, eventRow{text: fmt.Sprintf("… %d crossings came too fast to be kept", p.Lost), bad: true})
	}
	for _, c := range p.List {
		n := max(c.Count, 1)
		l.count += int64(n)
		l.bytes += int64(c.Bytes)
		l.rows = append(l.rows, rowOfCrossing(c, n))
	}
	l.bound()
}

func rowOfCrossing(c traffic.Crossing, n int) eventRow {
	at := c.Time.Local().Format("15:04:05.000")
	method := foreign.Text(clip(c.Method, 64))
	if c.Wire == traffic.Control {
		text := fmt.Sprintf("%s control        %-26s %9s", at, method, c.Took.Round(10*time.Microsecond))
		if c.Error != "" {
			text += "  " + foreign.Text(clip(c.Error, 200))
		}
		return eventRow{text: text, bad: c.Error != ""}
	}
	way := "←"
	if c.ToGuest {
		way = "→"
	}
	text := fmt.Sprintf("%s agent %s %-6s %-26s %9d B", at, way, fmt.Sprintf("#%d", c.Client), method, c.Bytes)
	if n > 1 {
		text += fmt.Sprintf(" ×%d", n)
	}
	return eventRow{text: fmt.Sprintf("%s  id %d", text, c.ID), bad: strings.HasSuffix(c.Method, "error") || strings.HasSuffix(c.Method, "failed")}
}

// bound drops the oldest rows.
func (l *eventLog) bound() {
	if over := len(l.rows) - maxEventRows; over > maxEventRows/4 {
		l.rows = append([]eventRow(nil), l.rows[over:]...)
		if l.at >= 0 {
			l.at = max(l.at-over, 0)
		}
	}
}

// log is the list that the tab shows.
func (a *App) log() *eventLog {
	if a.wire {
		return a.traffic
	}
	return a.events
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

func (l *eventLog) visible() []eventRow {
	if l.filter == "" {
		return l.rows
	}
	var out []eventRow
	q := strings.ToLower(l.filter)
	for _, r := range l.rows {
		if strings.Contains(strings.ToLower(r.text), q) {
			out = append(out, r)
		}
	}
	return out
}

func (l *eventLog) scroll(n int) {
	rows := len(l.visible())
	bottom := max(rows-l.height, 0)
	at := l.at
	if at < 0 {
		at = bottom
	}
	at = max(0, at+n)
	if at >= bottom {
		at = -1
	}
	l.at = at
}

func (a *App) viewEvents(w, h int) []string {
	l := a.log()
	rows := l.visible()
	head := fmt.Sprintf(" session: %d events, %d B of text", l.count, l.bytes)
	if a.wire {
		head = fmt.Sprintf(" protocols: %d messages, %d B, since this screen looks; never what is in them", l.count, l.bytes)
	}
	if l.filter != "" || l.typing {
		head += fmt.Sprintf(" · filter %q: %d", l.filter, len(rows))
	}
	out := []string{a.theme.Dim.Render(pane.Fit(head, w))}
	l.height = h - 1
	first := max(len(rows)-l.height, 0)
	if l.at >= 0 {
		first = min(l.at, first)
	}
	for _, r := range rows[first:min(len(rows), first+l.height)] {
		line := pane.Fit(" "+r.text, w)
		if r.bad {
			line = a.theme.Fail.Render(line)
		}
		out = append(out, line)
	}
	return pane.Block(out, w, h)
}
