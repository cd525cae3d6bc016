// Package approve is the panel that asks before something is done. It cannot be
// missed, and it cannot be answered by accident: Deny has the focus, and a key
// counts only after a while without any, once the end of what would run was on
// the screen.
package approve

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"msb/tui/theme"
	"msb/turn/approval"
)

// TickMsg is a beat of the panel's clock.
type TickMsg struct{ turn int }

// AnswerMsg is a decision that was made in the panel; it is bound to the id of
// the request that was on the screen.
type AnswerMsg struct {
	ID     string
	Answer approval.Answer
}

// Panel shows the requests that wait, one at a time.
type Panel struct {
	// Now is the clock; tests have their own.
	Now func() time.Time
	// Label is how a key is called: "deny", "reason", "once", "session" or
	// "everything".
	Label func(action string) string
	// Here is the id of the session that is shown beside the panel; "": none.
	Here  string
	theme *theme.Theme

	queue   []approval.Request
	subject Subject // of the first
	guard   guard
	beats   int // which clock counts

	drawn     bool
	seenEnd   bool
	scroll    int
	page      int // lines of the last drawing
	total     int
	full      bool // everything is shown
	reasoning bool
	reason    []rune
	sent      string // id of the request whose answer is on its way
	failed    string // why an answer did not arrive
}

// New returns an empty panel.
func New(t *theme.Theme) *Panel {
	first := map[string]string{"deny": "n", "reason": "r", "once": "y", "session": "s", "everything": "e"}
	return &Panel{Now: time.Now, Label: func(action string) string { return first[action] }, theme: t}
}

// SetTheme changes the colours.
func (p *Panel) SetTheme(t *theme.Theme) { p.theme = t }

// Open tells whether something waits.
func (p *Panel) Open() bool { return len(p.queue) > 0 }

// Count is how many requests wait.
func (p *Panel) Count() int { return len(p.queue) }

// Current is the id of the request on the screen.
func (p *Panel) Current() string {
	if len(p.queue) == 0 {
		return ""
	}
	return p.queue[0].ID
}

// Tried tells whether the request on the screen was answered here: the answer is
// on its way, or did not arrive.
func (p *Panel) Tried() bool { return p.sent != "" || p.failed != "" }

// Set takes the requests that wait now. The one on the screen stays there as
// long as it waits, whatever its place; another one begins anew.
func (p *Panel) Set(list []approval.Request) tea.Cmd {
	current := p.Current()
	var queue []approval.Request
	for _, r := range list {
		if r.ID == current {
			queue = append(queue, p.queue[0]) // as it was when it was shown
		}
	}
	for _, r := range list {
		if r.ID != current {
			queue = append(queue, r)
		}
	}
	p.queue = queue
	if p.Current() == current {
		return nil
	}
	p.subject = Subject{}
	p.drawn, p.seenEnd, p.scroll, p.full = false, false, 0, false
	p.reasoning, p.reason, p.sent, p.failed = false, nil, "", ""
	if len(queue) == 0 {
		p.beats++
		return nil
	}
	p.subject = SubjectOf(queue[0])
	return p.Disturb()
}

// Disturb starts the wait again: a key, a change of focus or of the size.
func (p *Panel) Disturb() tea.Cmd {
	if !p.Open() {
		return nil
	}
	p.guard.restart(p.Now())
	p.beats++
	return p.next()
}

// Resized starts everything again: another part of the text is on the screen.
func (p *Panel) Resized() tea.Cmd {
	p.seenEnd, p.drawn = false, false
	return p.Disturb()
}

func (p *Panel) next() tea.Cmd {
	turn := p.beats
	return tea.Tick(beat, func(time.Time) tea.Msg { return TickMsg{turn} })
}

// Tick is a beat of the clock.
func (p *Panel) Tick(m TickMsg) tea.Cmd {
	if m.turn != p.beats || !p.Open() {
		return nil
	}
	if !p.drawn {
		p.guard.restart(p.Now())
	}
	p.guard.tick(p.Now())
	return p.next() // it goes on: a process that was held up closes the guard
}

// Ready tells whether keys count, and whether one may allow.
func (p *Panel) Ready() (counts, allow bool) {
	if now := p.Now(); p.guard.open && now.Sub(p.guard.last) > late {
		p.guard.restart(now)
	}
	counts = p.Open() && p.guard.open && p.sent == ""
	return counts, counts && p.seenEnd
}

// Failed says that an answer did not arrive; the request still waits.
func (p *Panel) Failed(id, why string) tea.Cmd {
	if p.sent != id {
		return nil
	}
	p.sent, p.failed = "", why
	return p.Disturb()
}

// Answered takes a request off the screen whose answer has arrived.
func (p *Panel) Answered(id string) tea.Cmd {
	var rest []approval.Request
	for _, r := range p.queue {
		if r.ID != id {
			rest = append(rest, r)
		}
	}
	return p.Set(rest)
}

// Key is a key that was pressed while the panel is open.
func (p *Panel) Key(k tea.KeyPressMsg) tea.Cmd {
	if p.reasoning {
		return p.typeReason(k)
	}
	counts, allow := p.Ready()
	wait := p.Disturb()
	switch name := k.String(); name {
	case "up", "k":
		p.scrollBy(-1)
	case "down", "j":
		p.scrollBy(1)
	case "pgup", "ctrl+b":
		p.scrollBy(-max(p.page-1, 1))
	case "pgdown", "ctrl+f", "space":
		p.scrollBy(max(p.page-1, 1))
	case "home", "g":
		p.scroll = 0
	case "end", "G":
		p.scrollBy(p.total)
	case "e":
		p.full, p.scroll = !p.full, 0
	default:
		if !counts {
			return wait
		}
		switch {
		case name == "n", name == "esc", name == "enter":
			return tea.Batch(wait, p.answer(approval.Answer{}))
		case name == "r":
			p.reasoning, p.reason = true, nil
		case name == "y" && allow:
			return tea.Batch(wait, p.answer(approval.Answer{Allow: true, Scope: approval.ScopeOnce}))
		case name == "s" && allow:
			return tea.Batch(wait, p.answer(approval.Answer{Allow: true, Scope: approval.ScopeSession}))
		}
	}
	return wait
}

// maxReason bounds what can be typed, in characters.
const maxReason = 1000

func (p *Panel) typeReason(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc":
		p.reasoning = false
	case "enter":
		p.reasoning = false
		return tea.Batch(p.Disturb(), p.answer(approval.Answer{Reason: strings.TrimSpace(string(p.reason))}))
	case "backspace":
		if len(p.reason) > 0 {
			p.reason = p.reason[:len(p.reason)-1]
		}
	case "ctrl+u":
		p.reason = nil
	default:
		p.insert(k.Text)
	}
	return p.Disturb()
}

// Typing tells whether characters are text: the reason of a denial.
func (p *Panel) Typing() bool { return p.reasoning }

// Paste is text that was pasted while the panel is open: it is no answer.
func (p *Panel) Paste(text string) tea.Cmd {
	if p.reasoning {
		p.insert(text)
	}
	return p.Disturb()
}

func (p *Panel) insert(text string) {
	for _, r := range text {
		if unicode.IsControl(r) || r == utf8.RuneError {
			r = ' '
		}
		if len(p.reason) < maxReason {
			p.reason = append(p.reason, r)
		}
	}
}

// Wheel scrolls.
func (p *Panel) Wheel(lines int) tea.Cmd {
	p.scrollBy(lines)
	return p.Disturb()
}

func (p *Panel) scrollBy(n int) {
	p.scroll = max(0, min(p.scroll+n, p.total-p.page))
}

func (p *Panel) answer(a approval.Answer) tea.Cmd {
	id := p.Current()
	p.sent, p.failed = id, ""
	return func() tea.Msg { return AnswerMsg{ID: id, Answer: a} }
}
