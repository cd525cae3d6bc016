package tui

import (
	"slices"
	"strings"

	"msb/tui/keymap"
	"msb/tui/pane"
)

// notes are what the list of keys says about a place besides.
var notes = map[string]string{
	keymap.Approval: "keys count after half a second without one; allow, once the end was on the screen",
	keymap.Turns:    "/ begins a command, @ names a file of the workspace; both are completed",
}

// viewHelp is the list of all keys, made of the table.
func (a *App) viewHelp(w, h int) []string {
	var all []string
	help := a.help
	a.help = false
	here, _ := a.focus()
	a.help = help
	sections := a.keymap.Sections()
	// What counts where the user is comes first.
	slices.SortStableFunc(sections, func(x, y keymap.Section) int { return place(here, x) - place(here, y) })
	two := w >= 110
	width := w
	if two {
		width = w / 2
	}
	col := 26
	if width < 60 {
		col = 16
	}
	for _, part := range sections {
		all = append(all, a.theme.Bold.Render(" "+part.Title))
		group, _, _ := strings.Cut(part.Entries[0].Action, ".")
		if note := notes[group]; note != "" {
			for _, l := range pane.Wrap(note, max(width-4, 10)) {
				all = append(all, "   "+a.theme.Dim.Render(l))
			}
		}
		for _, e := range part.Entries {
			keys := e.Labels()
			if keys == "" {
				keys = "(none)"
			}
			for i, l := range pane.Wrap(e.Help, max(width-col-3, 10)) {
				if i > 0 {
					keys = ""
				}
				all = append(all, "   "+a.theme.Accent.Render(pane.Fit(keys, col-1))+" "+l)
			}
		}
	}
	if two {
		half := (len(all) + 1) / 2
		for half < len(all) && strings.HasPrefix(all[half], "   ") {
			half++
		}
		n := max(half, len(all)-half)
		all = pane.Beside(pane.Block(all[:half], w/2, n), pane.Block(all[half:], w-w/2, n))
	}
	a.helpAt = max(0, min(a.helpAt, len(all)-h))
	return all[a.helpAt:min(len(all), a.helpAt+h)]
}

// place is where a section stands in the list of keys.
func place(here []string, s keymap.Section) int {
	group, _, _ := strings.Cut(s.Entries[0].Action, ".")
	switch {
	case !slices.Contains(here, group):
		return 2
	case group == keymap.Everywhere, group == keymap.Lists:
		return 1
	}
	return 0
}
