// Package foreign is how the workstation shows text that it did not write
// itself: of models, MCP servers, files and commands. Everything goes through
// package visible, the one writer of such text; here it is also kept to its
// cells, since terminals draw some characters wider, or higher, than they
// measure.
package foreign

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"msb/turn/visible"
)

// maxMarks is how many combining marks a letter may carry.
const maxMarks = 3

// MaxLine bounds a line of a text that is shown, in bytes; what is behind it is
// counted.
const MaxLine = 4096

// Text makes text harmless for one line: line breaks and tabs are shown too.
func Text(s string) string { return visible.Text(settle(s)) }

// Line is Text with tabs as spaces.
func Line(s string) string { return visible.Line(settle(cut(s))) }

// Lines makes text harmless that may have several lines.
func Lines(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	if !strings.Contains(s, "\n") {
		return Line(s)
	}
	var b strings.Builder
	for i, line := range strings.Split(s, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(Line(line))
	}
	return b.String()
}

// cut bounds a line.
func cut(s string) string {
	if len(s) <= MaxLine {
		return s
	}
	n := MaxLine
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s … %d more bytes in this line", s[:n], len(s)-n)
}

// settle escapes what terminals do not agree about: piled marks, and parts that
// join with their neighbours to one picture.
func settle(s string) string {
	ascii := true
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			ascii = false
			break
		}
	}
	if ascii {
		return s
	}
	var b strings.Builder
	marks := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if unicode.In(r, unicode.Mn, unicode.Me, unicode.Mc) {
			marks++
		} else {
			marks = 0
		}
		if marks > maxMarks || marks > 0 && i == 0 || joins(r) {
			b.WriteString(visible.Escape(r))
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// joins names characters that change the width of the one before: skin tones,
// halves of flags, and the parts of Hangul syllables.
func joins(r rune) bool {
	return r >= 0x1f3fb && r <= 0x1f3ff || r >= 0x1f1e6 && r <= 0x1f1ff || r >= 0x1160 && r <= 0x11ff || r >= 0xd7b0 && r <= 0xd7fb
}
