// Package pane draws into rectangles: whatever it is given, a block has exactly
// the lines and the columns that were asked for. Cutting and measuring is done
// by cells, never by bytes or runes.
package pane

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Reset ends all styles.
const Reset = "\x1b[m"

// Width is the number of cells that a line takes.
func Width(s string) int { return ansi.StringWidth(s) }

// Fit makes a line exactly w cells wide: it is cut with an ellipsis, or filled
// with spaces.
func Fit(s string, w int) string {
	if w <= 0 {
		return ""
	}
	n := ansi.StringWidth(s)
	if n > w {
		s = ansi.Truncate(s, w, "…")
		n = ansi.StringWidth(s)
	}
	if strings.Contains(s, "\x1b") && !strings.HasSuffix(s, Reset) {
		s += Reset
	}
	if n < w {
		s += strings.Repeat(" ", w-n)
	}
	return s
}

// Block makes of lines exactly h lines of w cells.
func Block(lines []string, w, h int) []string {
	if h < 0 {
		h = 0
	}
	out := make([]string, h)
	for i := range out {
		if i < len(lines) {
			out[i] = Fit(lines[i], w)
		} else {
			out[i] = strings.Repeat(" ", max(w, 0))
		}
	}
	return out
}

// Wrap breaks text at words, and long words anywhere, so that no line is wider
// than w.
func Wrap(s string, w int) []string {
	if w < 1 {
		w = 1
	}
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		if ansi.StringWidth(line) <= w {
			lines = append(lines, line)
			continue
		}
		lines = append(lines, carry(strings.Split(ansi.Wrap(line, w, ""), "\n"), w)...)
	}
	return lines
}

// Chop breaks text anywhere, and loses none of it: for what must be read to the
// last blank.
func Chop(s string, w int) []string {
	if w < 1 {
		w = 1
	}
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		if ansi.StringWidth(line) <= w {
			lines = append(lines, line)
			continue
		}
		lines = append(lines, carry(strings.Split(ansi.Hardwrap(line, w, true), "\n"), w)...)
	}
	return lines
}

// carry takes styles over to the next line, so that every line stands alone.
func carry(lines []string, w int) []string {
	open := ""
	for i, line := range lines {
		full := open + line
		if ansi.StringWidth(full) > w {
			full = ansi.Truncate(full, w, "…")
		}
		open = lastStyle(full)
		if open != "" {
			full += Reset
		}
		lines[i] = full
	}
	return lines
}

// lastStyle is what styles are on at the end of a line.
func lastStyle(s string) string {
	if !strings.Contains(s, "\x1b[") {
		return ""
	}
	var on strings.Builder
	for {
		i := strings.Index(s, "\x1b[")
		if i < 0 {
			return on.String()
		}
		s = s[i+2:]
		j := strings.IndexByte(s, 'm')
		if j < 0 {
			return on.String()
		}
		if p := s[:j]; p == "" || p == "0" {
			on.Reset()
		} else {
			on.WriteString("\x1b[" + p + "m")
		}
		s = s[j+1:]
	}
}

// Split lays two texts out at the ends of a line; the left one gives way.
func Split(left, right string, w int) string {
	n := ansi.StringWidth(right)
	if n >= w {
		return Fit(right, w)
	}
	return Fit(left, w-n) + right
}

// Beside puts blocks side by side; each must have the same number of lines.
func Beside(blocks ...[]string) []string {
	var out []string
	for i, b := range blocks {
		if i == 0 {
			out = append(out, b...)
			continue
		}
		for j := range out {
			if j < len(b) {
				out[j] += b[j]
			}
		}
	}
	return out
}

// Over lays a block over another at a place, inside its bounds.
func Over(under, top []string, x, y int) []string {
	out := append([]string(nil), under...)
	for i, line := range top {
		if y+i < 0 || y+i >= len(out) {
			continue
		}
		base := out[y+i]
		total, n := ansi.StringWidth(base), ansi.StringWidth(line)
		left := Fit(ansi.Truncate(base, x, ""), x)
		right := ""
		if x+n < total {
			right = Reset + ansi.Cut(base, x+n, total)
		}
		out[y+i] = left + line + right
	}
	return out
}
