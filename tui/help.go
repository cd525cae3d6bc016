package tui

import (
	"strings"

	"msb/tui/pane"
)

var helpText = []struct {
	title string
	keys  [][2]string
}{
	{"everywhere", [][2]string{{"Tab, Alt-1 … Alt-5", "another tab"}, {"F1, ?", "this"}, {"Ctrl-] or Ctrl-C twice", "leave; sandboxes, turns go on"}}},
	{"turns", [][2]string{{"Enter", "ask; while a turn runs: queue"}, {"Alt-Enter, Ctrl-J", "a new line"}, {"↑ ↓", "what was asked before"},
		{"/ and @", "commands; files of the workspace"}, {"Esc", "stop the turn; else read what was said"}, {"PgUp PgDn", "scroll; End follows again"}, {"Ctrl-O", "open or fold the last call"}}},
	{"reading (Esc)", [][2]string{{"↑ ↓ j k", "move"}, {"Space", "open or fold"}, {"[ ]", "from question to question"}, {"/ n N", "find"}, {"y", "copy"}, {"Esc, i", "back to writing"}}},
	{"approval", [][2]string{{"n, Esc, Enter", "deny"}, {"r", "deny, and tell the model why"}, {"y", "allow this once"}, {"s", "allow for the session"}, {"e", "everything about it"},
		{"", "keys count after half a second without one; allow, once the end was on the screen"}}},
	{"shell", [][2]string{{"Ctrl-] 1 … 5", "another tab"}, {"Ctrl-] n, x", "new; end"}, {"Ctrl-] f", "the whole screen, and back"}, {"Ctrl-] Tab", "next shell"}, {"Ctrl-] u", "scroll back; Esc returns"}, {"Ctrl-] Ctrl-]", "Ctrl-] itself"}}},
	{"files", [][2]string{{"Enter, ←", "open, close or go up"}, {"e", "edit through the mount"}, {"d", "what changed"}, {"J K", "scroll the preview"}}},
	{"boxes", [][2]string{{"Enter", "open"}, {"s x p", "start, stop, pause or resume"}, {"d", "remove, after its name was typed"}}},
}

func (a *App) viewHelp(w, h int) []string {
	var all []string
	for _, part := range helpText {
		all = append(all, a.theme.Bold.Render(" "+part.title))
		for _, k := range part.keys {
			col := 26
			if w < 60 {
				col = 16
			}
			lines := pane.Wrap(k[1], max(w-col-3, 10))
			for i, l := range lines {
				key := ""
				if i == 0 {
					key = k[0]
				}
				all = append(all, "   "+a.theme.Accent.Render(pane.Fit(key, col-1))+" "+l)
			}
		}
	}
	if w >= 110 && len(all) > h { // in two columns
		half := (len(all) + 1) / 2
		for half < len(all) && strings.HasPrefix(all[half], "   ") {
			half++
		}
		n := max(half, len(all)-half)
		return pane.Beside(pane.Block(all[:half], w/2, n), pane.Block(all[half:], w-w/2, n))
	}
	a.helpAt = max(0, min(a.helpAt, len(all)-h))
	return all[a.helpAt:]
}
