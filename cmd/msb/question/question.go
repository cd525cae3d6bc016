// Package question shows what a model wants to do, whole and harmless, as lines that fit on a terminal.
package question

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"msb/turn/approval"
	"msb/turn/visible"
)

// Prefixes of lines. Text of a model never stands at the beginning of a line.
const (
	prefixLine = "    | " // a line of a command
	prefixWrap = "    : " // the rest of one that is too long
)

const (
	// minWidth is what lines are made for on a narrower terminal.
	minWidth = 40
	// blankLines in a row, and blanks in a line, are counted from here on.
	blankLines = 4
	blanks     = 24
)

// Lines describes a request on a terminal that is width columns wide.
func Lines(r approval.Request, width int) []string {
	width = max(width, minWidth)
	var lines []string
	say := func(format string, args ...any) {
		lines = append(lines, wrap("  ", "    ", fmt.Sprintf(format, args...), width, true)...)
	}
	text := r.Command
	switch r.Kind {
	case approval.KindCommand:
		where := ""
		if r.Workdir != "" {
			where = " in " + visible.Text(r.Workdir)
		}
		if r.User != "" {
			where += " as " + visible.Text(r.User)
		}
		if r.Timeout > 0 {
			where += ", up to " + r.Timeout.Round(time.Second).String()
		}
		say("run a command%s:", where)
	case approval.KindMCP:
		say("call the tool %s of the MCP server %s with:", visible.Text(r.MCPTool), visible.Text(r.Server))
		text = pretty(r.Arguments)
	default:
		say("do something of an unknown kind, %s:", visible.Text(r.Kind))
	}
	lines = append(lines, Content(text, width)...)
	if notes := notes(text); notes != "" {
		say("(%s)", notes)
	}
	if r.Claim != "" {
		say("%s (its claim, which nobody has checked)", visible.Text(r.Claim))
	}
	if r.Reason != "" {
		say("because (the model's words): %s", visible.Text(r.Reason))
	}
	return lines
}

// Content shows a text with every line marked, what is too long wrapped, and long runs of nothing counted.
func Content(text string, width int) []string {
	var lines []string
	empty := 0
	flush := func() {
		switch {
		case empty >= blankLines:
			lines = append(lines, fmt.Sprintf("%s(%d lines with nothing on them)", strings.TrimRight(prefixWrap, " ")+" ", empty))
		default:
			for range empty {
				lines = append(lines, strings.TrimRight(prefixLine, " "))
			}
		}
		empty = 0
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.Trim(line, " \t") == "" {
			empty++
			continue
		}
		flush()
		lines = append(lines, wrap(prefixLine, prefixWrap, countBlanks(visible.Text(line)), max(width, minWidth), false)...)
	}
	flush()
	return lines
}

// countBlanks replaces long runs of spaces by how many there are.
func countBlanks(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		n := len(s) - len(strings.TrimLeft(s, " "))
		if n >= blanks {
			fmt.Fprintf(&b, " (%d spaces) ", n)
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
		next := strings.IndexByte(s, ' ')
		if next < 0 {
			next = len(s)
		}
		b.WriteString(s[:next])
		s = s[next:]
	}
	return b.String()
}

// notes says what is easily overlooked in a text.
func notes(text string) string {
	var notes []string
	if n := strings.Count(strings.TrimSuffix(text, "\n"), "\n"); n > 0 {
		notes = append(notes, fmt.Sprintf("%d lines, %d bytes", n+1, len(text)))
	}
	switch {
	case !visible.Plain(strings.NewReplacer("\n", "", "\t", "").Replace(text)):
		notes = append(notes, `holds characters that do not show, here as \escapes`)
	case visible.Foreign(text):
		notes = append(notes, "holds characters outside ASCII, some of which look like others")
	}
	return strings.Join(notes, "; ")
}

// pretty is JSON with a line for each value.
func pretty(raw json.RawMessage) string {
	var b bytes.Buffer
	if len(raw) == 0 {
		return "(no arguments)"
	}
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return readable(b.String())
}

// JSON is a JSON text on one line; what is none is returned as it is.
func JSON(raw string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(raw)) != nil {
		return raw
	}
	return readable(b.String())
}

// readable takes back the escapes of <, > and & that encoders make for the sake of HTML. Everything else stays as it
// was sent, keys that come twice included.
func readable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		if c, ok := htmlEscapes[s[i:min(i+6, len(s))]]; ok {
			b.WriteByte(c)
			i += 5
			continue
		}
		b.WriteString(s[i : i+2]) // an escape, or an escaped backslash
		i++
	}
	return b.String()
}

var htmlEscapes = map[string]byte{`\u003c`: '<', `\u003e`: '>', `\u0026`: '&'}

// wrap breaks a harmless text into lines of width columns. A character that is not ASCII may take two. Words are kept
// together if they may, but not in what has to be shown exactly.
func wrap(first, rest, text string, width int, words bool) []string {
	var lines []string
	prefix := first
	for {
		room := width - 1 - len(prefix)
		n, space, used := 0, 0, 0
		for n < len(text) {
			r, size := utf8.DecodeRuneInString(text[n:])
			cells := 1
			if r >= utf8.RuneSelf {
				cells = 2
			}
			if used+cells > room {
				break
			}
			if r == ' ' {
				space = n
			}
			used += cells
			n += size
		}
		if n < len(text) && words && space > 0 && text[n] != ' ' {
			n = space
		}
		lines = append(lines, prefix+text[:n])
		if text = text[n:]; words {
			text = strings.TrimPrefix(text, " ")
		}
		if text == "" {
			return lines
		}
		prefix = rest
	}
}

// Say is a sentence as lines.
func Say(text string, width int) []string {
	return wrap("  ", "    ", visible.Text(text), max(width, minWidth), true)
}
