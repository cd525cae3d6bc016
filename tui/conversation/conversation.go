// Package conversation is the view of a session's turns: what was asked, what
// the model says and does, and how it ends. It holds a bounded part of the
// transcript; the rest is read back when it is asked for.
package conversation

import (
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"msb/protocol/turnrpc"
	"msb/tui/theme"
	"msb/turn"
)

// Bounds of what is held in memory.
const (
	MaxEntries = 1500
	MaxBytes   = 6 << 20
	// OlderEvents is how many events are read back at a time.
	OlderEvents = 400
)

// Conversation is a view of one session.
type Conversation struct {
	// Cost is the price of what was used, for people; nil or "": not known.
	Cost func(model string, u turnrpc.Usage) string

	Active  string        // the turn under way
	Ended   string        // the last that ended
	Model   string        // profile
	Total   turnrpc.Usage // since the view was opened
	Prompts []string      // what the user asked, oldest first

	theme    *theme.Theme
	md       *markdown
	entries  []*entry
	seq      uint64
	dropped  bool // there is more before the first entry
	extra    int  // entries that were read back
	usage    turnrpc.Usage
	stop     string
	began    time.Time
	width    int
	height   int
	top      int // first line on the screen
	follow   bool
	selected int // entry, -1: none
	query    string
	total    int // lines of the last layout
}

// New returns an empty conversation.
func New(t *theme.Theme) *Conversation {
	return &Conversation{theme: t, follow: true, selected: -1}
}

// SetTheme changes the colours.
func (c *Conversation) SetTheme(t *theme.Theme) {
	c.theme, c.md = t, nil
	for _, e := range c.entries {
		e.touch()
	}
}

// Seq is the last event that was taken.
func (c *Conversation) Seq() uint64 { return c.seq }

// Busy tells whether something on the screen moves by itself.
func (c *Conversation) Busy() bool { return c.Active != "" }

// Empty tells whether nothing was said yet.
func (c *Conversation) Empty() bool {
	for _, e := range c.entries {
		if e.kind != note {
			return false
		}
	}
	return true
}

// trim drops the oldest entries over the bounds.
func (c *Conversation) trim() {
	if !c.follow && c.extra > 0 && len(c.entries) < 4*MaxEntries {
		return // someone reads what was read back
	}
	size := 0
	for _, e := range c.entries {
		size += e.size()
	}
	n := 0
	for len(c.entries)-n > MaxEntries || size > MaxBytes && len(c.entries)-n > 2 {
		size -= c.entries[n].size()
		n++
	}
	if n == 0 {
		return
	}
	gone := 0
	for _, e := range c.entries[:n] {
		gone += len(e.cache.lines)
	}
	c.entries = append([]*entry(nil), c.entries[n:]...)
	c.top = max(0, c.top-gone)
	c.selected = max(-1, c.selected-n)
	c.dropped, c.extra = true, 0
}

// Forget drops all but the last entries; they can be read back.
func (c *Conversation) Forget() {
	const keep = 5
	if n := len(c.entries) - keep; n > 0 && c.Active == "" {
		c.entries = append([]*entry(nil), c.entries[n:]...)
		c.dropped, c.extra, c.selected, c.top = true, 0, -1, 0
	}
}

// Begin says that the events before seq exist, but were not read.
func (c *Conversation) Begin(seq uint64) {
	c.seq = seq
	c.dropped = seq > 0
}

// Older is the range of events, after and up to, that come before what is
// held; ok is false when there are none.
func (c *Conversation) Older() (after, upTo uint64, ok bool) {
	if !c.dropped {
		return 0, 0, false
	}
	upTo = c.seq
	if len(c.entries) > 0 {
		upTo = c.entries[0].first - 1
	}
	if upTo == 0 {
		return 0, 0, false
	}
	if upTo > OlderEvents {
		after = upTo - OlderEvents
	}
	return after, upTo, true
}

// Prepend takes the events of a range that Older named.
func (c *Conversation) Prepend(after uint64, events []turn.Event) {
	past := New(c.theme)
	past.Cost = c.Cost
	for i := range events {
		past.add(&events[i])
	}
	lines := 0
	if c.width > 0 {
		for _, e := range past.entries {
			lines += len(c.draw(e, 0, time.Time{}))
		}
	}
	c.entries = append(past.entries, c.entries...)
	c.dropped = after > 0
	c.extra += len(past.entries)
	c.top += lines
	if c.selected >= 0 {
		c.selected += len(past.entries)
	}
}

// Follow goes to the end and stays there.
func (c *Conversation) Follow() {
	c.follow, c.selected = true, -1
	c.trim()
}

// Following tells whether the end is kept on the screen.
func (c *Conversation) Following() bool { return c.follow }

// Scroll moves by lines. It tells whether the top was reached and there is
// more before it.
func (c *Conversation) Scroll(lines int) (wantsOlder bool) {
	bottom := max(c.total-c.height, 0)
	if c.follow {
		c.top = bottom
	}
	c.top += lines
	if c.top >= bottom {
		c.top, c.follow = bottom, true
		return false
	}
	c.follow = false
	if c.top <= 0 {
		c.top = 0
		return c.dropped
	}
	return false
}

// Home goes to the first line that is held.
func (c *Conversation) Home() (wantsOlder bool) { return c.Scroll(-1 << 30) }

// Page is how many lines the view has.
func (c *Conversation) Page() int { return max(c.height-2, 1) }

// Select moves the mark by entries; the first move marks the last entry.
func (c *Conversation) Select(n int) (wantsOlder bool) {
	if len(c.entries) == 0 {
		return false
	}
	if c.selected < 0 {
		c.selected = len(c.entries)
	}
	want := c.selected + n
	c.selected = max(0, min(want, len(c.entries)-1))
	c.show(c.selected)
	return want < 0 && c.dropped
}

// Selected tells whether an entry is marked.
func (c *Conversation) Selected() bool { return c.selected >= 0 }

// SelectTurn moves the mark to the question before or after.
func (c *Conversation) SelectTurn(dir int) (wantsOlder bool) {
	at := c.selected
	if at < 0 {
		at = len(c.entries)
	}
	for i := at + dir; i >= 0 && i < len(c.entries); i += dir {
		if c.entries[i].kind == user {
			c.selected = i
			c.show(i)
			return false
		}
	}
	return dir < 0 && c.dropped
}

// show scrolls so that an entry is on the screen.
func (c *Conversation) show(i int) {
	line := 0
	if c.dropped {
		line = 1
	}
	for _, e := range c.entries[:i] {
		line += len(c.draw(e, 0, time.Time{}))
	}
	n := len(c.draw(c.entries[i], 0, time.Time{}))
	c.follow = false
	if line < c.top {
		c.top = line
	} else if line+n > c.top+c.height {
		c.top = min(line, line+n-c.height)
	}
}

// Toggle opens or folds the marked entry, or the last one that folds.
func (c *Conversation) Toggle() {
	i := c.selected
	if i < 0 {
		for i = len(c.entries) - 1; i >= 0 && c.entries[i].kind != tool; i-- {
		}
	}
	if i >= 0 && i < len(c.entries) {
		c.entries[i].open = !c.entries[i].open
		c.entries[i].touch()
		if i == c.selected {
			c.show(i)
		}
	}
}

// Copy is the text of the marked entry, or of the model's last words, as it
// came.
func (c *Conversation) Copy() string {
	i := c.selected
	if i < 0 {
		for i = len(c.entries) - 1; i >= 0 && c.entries[i].kind != agent; i-- {
		}
	}
	if i < 0 || i >= len(c.entries) {
		return ""
	}
	e := c.entries[i]
	if e.kind != tool {
		return e.text
	}
	if e.name == turnrpc.MethodRunCommand {
		return e.argument("command") + "\n" + string(e.out)
	}
	if len(e.out) > 0 {
		return string(e.out)
	}
	return e.args + "\n" + e.result + e.err
}

// Call names the call that is marked, or the last one: its id, its tool, and the
// events between which everything about it is, after and up to.
func (c *Conversation) Call() (id, name string, after, upTo uint64, ok bool) {
	i := c.selected
	if i < 0 {
		for i = len(c.entries) - 1; i >= 0 && c.entries[i].kind != tool; i-- {
		}
	}
	if i < 0 || i >= len(c.entries) || c.entries[i].kind != tool || c.entries[i].first == 0 {
		return "", "", 0, 0, false
	}
	e := c.entries[i]
	return e.id, e.name, e.first - 1, e.last, true
}

// Find marks the next entry that holds a text, in any case, going up (-1) or
// down.
func (c *Conversation) Find(query string, dir int) bool {
	c.query = query
	if query == "" {
		return false
	}
	q := strings.ToLower(query)
	n := len(c.entries)
	at := c.selected
	if at < 0 {
		at = n
		if dir > 0 {
			at = -1
		}
	}
	for k := 1; k <= n; k++ {
		i := ((at+dir*k)%n + n) % n
		e := c.entries[i]
		if strings.Contains(strings.ToLower(e.text+" "+e.name+" "+e.args+" "+string(e.out)+" "+e.result+" "+e.err), q) {
			c.selected = i
			if e.kind == tool && !e.open && !strings.Contains(strings.ToLower(ansi.Strip(strings.Join(c.draw(e, 0, time.Time{}), "\n"))), q) {
				e.open = true
				e.touch()
			}
			c.show(i)
			return true
		}
	}
	return false
}

// Unselect takes the mark away.
func (c *Conversation) Unselect() { c.selected = -1 }
