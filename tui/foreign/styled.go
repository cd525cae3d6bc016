package foreign

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"msb/turn/visible"
)

// Styled keeps of a text that a renderer made only printable characters, line
// feeds and changes of style. It is the last word over what a renderer made of
// foreign text: hyperlinks, titles, cursor movements and all other sequences
// are gone.
func Styled(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	var state byte
	marks := 0 // on the last character
	for len(s) > 0 {
		seq, width, n, next := ansi.DecodeSequence(s, state, nil)
		state = next
		switch {
		case n == 0:
			return b.String()
		case seq == "\n":
			b.WriteByte('\n')
		case isStyle(seq):
			b.WriteString(seq)
		case width > 0 || seq[0] != 0x1b && !(seq[0] >= 0x80 && seq[0] < 0xa0):
			if width > 0 {
				marks = -1 // the character itself
			}
			end := len(seq)
			for i := range seq {
				if marks++; marks > maxMarks {
					end = i
					break
				}
			}
			b.WriteString(visible.Text(seq[:end]))
		}
		s = s[n:]
	}
	return b.String()
}

// isStyle tells whether a sequence is a plain SGR without concealment.
func isStyle(seq string) bool {
	p, ok := strings.CutPrefix(seq, "\x1b[")
	if !ok || !strings.HasSuffix(p, "m") {
		return false
	}
	p = p[:len(p)-1]
	for i := range len(p) {
		if (p[i] < '0' || p[i] > '9') && p[i] != ';' && p[i] != ':' {
			return false
		}
	}
	return p != "8" && p != "5" && p != "6"
}
