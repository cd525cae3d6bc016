// Package theme has the few colours of the workstation and what they mean. They
// are those of the terminal's own palette, so that they are readable where the
// user made them so; without colours, weight and reversal say the same.
package theme

import (
	"image/color"

	"charm.land/lipgloss/v2"
)

// Theme is a set of styles, each named by what it says.
type Theme struct {
	Dark bool

	Plain, Dim, Bold, Accent  lipgloss.Style
	User, Agent               lipgloss.Style // who speaks
	OK, Fail, Wait, Run       lipgloss.Style // how things stand
	Added, Removed, Hunk      lipgloss.Style // of a diff
	Alert, Focus, Escape      lipgloss.Style // waits for you; has the focus; was made visible
	Title, TabOn, TabOff, Sel lipgloss.Style
}

// New is the theme for a dark or a light background.
func New(dark bool) *Theme {
	c := func(onDark, onLight int) color.Color {
		if dark {
			return lipgloss.ANSIColor(onDark)
		}
		return lipgloss.ANSIColor(onLight)
	}
	s := lipgloss.NewStyle
	fg := func(onDark, onLight int) lipgloss.Style { return s().Foreground(c(onDark, onLight)) }
	return &Theme{
		Dark:  dark,
		Plain: s(), Dim: s().Faint(true), Bold: s().Bold(true), Accent: fg(14, 4),
		User: fg(14, 4).Bold(true), Agent: fg(13, 5),
		OK: fg(2, 2), Fail: fg(9, 1).Bold(true), Wait: fg(11, 3).Bold(true), Run: fg(14, 6),
		Added: fg(2, 2), Removed: fg(1, 1), Hunk: fg(6, 6),
		Alert: fg(11, 3).Bold(true), Focus: s().Reverse(true).Bold(true), Escape: s().Reverse(true),
		Title: s().Bold(true), TabOn: s().Bold(true).Underline(true), TabOff: s().Faint(true), Sel: s().Reverse(true),
	}
}
