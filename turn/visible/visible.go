// Package visible makes foreign text harmless to show: nothing in it can speak
// to the terminal, hide, look like nothing, or change the order of what is
// read. Approvals, patches and transcripts are shown through it.
package visible

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with everything that is not plainly visible as an escape in
// Go's notation: control and format characters, line and paragraph separators,
// characters of private use, unassigned ones and surrogates, every space but
// U+0020, characters that are drawn as nothing, and bytes that are not UTF-8. A backslash stands for itself, so the text is for people to read, not
// for programs to parse.
func Text(s string) string {
	if Plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case hidden(r):
			b.WriteString(Escape(r))
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// Lines is Text that leaves line feeds as they are, and tabs as spaces up to
// the next multiple of 8 columns.
func Lines(s string) string {
	var b strings.Builder
	for i, line := range strings.Split(s, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(Line(line))
	}
	return b.String()
}

// Line is Text with tabs as spaces up to the next multiple of 8 columns.
func Line(s string) string {
	if !strings.Contains(s, "\t") {
		return Text(s)
	}
	var b strings.Builder
	column := 0
	for i, part := range strings.Split(s, "\t") {
		if i > 0 {
			n := 8 - column%8
			b.WriteString(strings.Repeat(" ", n))
			column += n
		}
		text := Text(part)
		b.WriteString(text)
		column += utf8.RuneCountInString(text)
	}
	return b.String()
}

// Plain tells whether Text leaves s as it is.
func Plain(s string) bool {
	for i, r := range s {
		if hidden(r) || r == utf8.RuneError && isBroken(s[i:]) {
			return false
		}
	}
	return true
}

// Foreign tells whether s holds characters other than those of ASCII, some of
// which look like others. Text does not escape letters.
func Foreign(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return true
		}
	}
	return false
}

// Escape is how a rune is shown that cannot be shown itself.
func Escape(r rune) string {
	switch r {
	case '\a':
		return `\a`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	case '\v':
		return `\v`
	}
	switch {
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r > 0xffff:
		return fmt.Sprintf(`\U%08x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// hidden runes are not shown as they are.
func hidden(r rune) bool {
	switch {
	case r >= ' ' && r < 0x7f:
		return false
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp, unicode.Zs):
		return true
	case unicode.In(r, unicode.Cn, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		return true
	}
	return blank[r]
}

// blank runes are letters or symbols that are drawn as nothing.
var blank = map[rune]bool{
	0x115f: true, 0x1160: true, 0x3164: true, 0xffa0: true, // Hangul fillers
	0x2800: true, // blank Braille pattern
	0x17b4: true, 0x17b5: true,
	0x1d159: true, // null notehead
}

// isBroken tells whether s starts with a byte that is not UTF-8.
func isBroken(s string) bool {
	_, n := utf8.DecodeRuneInString(s)
	return n == 1
}
