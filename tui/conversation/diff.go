package conversation

import (
	"strings"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/theme"
)

// Diff draws a unified diff, which is foreign, in colours.
func Diff(patch string, w int, t *theme.Theme) []string {
	var out []string
	for line := range strings.SplitSeq(strings.TrimSuffix(patch, "\n"), "\n") {
		style := t.Plain
		switch {
		case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "diff "):
			style = t.Bold
		case strings.HasPrefix(line, "@@"):
			style = t.Hunk
		case strings.HasPrefix(line, "+"):
			style = t.Added
		case strings.HasPrefix(line, "-"):
			style = t.Removed
		case strings.HasPrefix(line, "index "), strings.HasPrefix(line, "new file"), strings.HasPrefix(line, "deleted file"), strings.HasPrefix(line, "similarity"):
			style = t.Dim
		}
		for _, l := range pane.Chop(foreign.Line(line), w) {
			out = append(out, style.Render(l))
		}
	}
	return out
}
