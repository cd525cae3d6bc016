package theme

import (
	"regexp"
	"testing"

	"charm.land/lipgloss/v2"
)

// Colours are those of the terminal's own sixteen, on dark and on light; what
// must stand out does so without any.
func TestTheme(t *testing.T) {
	own := regexp.MustCompile(`38;5;\d{3}|38;2;|48;`)
	for _, dark := range []bool{true, false} {
		th := New(dark)
		for name, s := range map[string]lipgloss.Style{"Dim": th.Dim, "Accent": th.Accent, "User": th.User, "Agent": th.Agent, "OK": th.OK,
			"Fail": th.Fail, "Wait": th.Wait, "Added": th.Added, "Removed": th.Removed, "Alert": th.Alert, "Sel": th.Sel} {
			if got := s.Render("x"); own.MatchString(got) {
				t.Errorf("%s: %q", name, got)
			}
		}
		for name, s := range map[string]lipgloss.Style{"Focus": th.Focus, "Sel": th.Sel, "Escape": th.Escape} {
			if !s.GetReverse() {
				t.Errorf("%s needs colours to be seen", name)
			}
		}
		for name, s := range map[string]lipgloss.Style{"Alert": th.Alert, "Fail": th.Fail, "User": th.User} {
			if !s.GetBold() {
				t.Errorf("%s needs colours to be seen", name)
			}
		}
	}
}
