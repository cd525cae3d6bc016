package patch

import (
	"fmt"
	"strings"
)

// Apply returns content with the hunks applied. A hunk is looked for where it says, then ever farther away, first
// exactly and then with other blanks at the ends of lines. All hunks apply, or none: the error says which does not.
func (f *File) Apply(content string) (string, error) {
	lines, noEnd := splitLines(content)
	crlf := mostlyCRLF(lines)
	var out []string
	next, shift := 0, 0 // first line not yet consumed; how far off the last hunk was
	for i, h := range f.Hunks {
		old := h.old()
		want := max(h.Start-1, 0) + shift
		if len(old) == 0 { // nothing to find it by: "after line N"
			want = h.Start + shift
		}
		at, ok := find(lines, old, next, want)
		if !ok {
			return "", &HunkError{File: f.Name(), Number: i + 1, Start: h.Start, Wanted: firstLines(old), Found: around(lines, want)}
		}
		shift += at - want
		out = append(out, lines[next:at]...)
		k := at
		for _, l := range h.Lines {
			switch l.Op {
			case ' ':
				out = append(out, lines[k]) // the file's own, with its blanks
				k++
			case '-':
				k++
			case '+':
				text := l.Text
				if crlf && !strings.HasSuffix(text, "\r") {
					text += "\r"
				}
				out = append(out, text)
			}
		}
		next = k
		if k == len(lines) {
			noEnd = h.endsWithout(noEnd)
		}
	}
	out = append(out, lines[next:]...)
	if len(out) == 0 {
		return "", nil
	}
	text := strings.Join(out, "\n")
	if !noEnd {
		text += "\n"
	}
	return text, nil
}

// HunkError is a hunk that has no place in its file.
type HunkError struct {
	File   string
	Number int
	Start  int
	Wanted string
	Found  string
}

// Error shows what was looked for and what is there, for whoever wrote the patch to do it better.
func (e *HunkError) Error() string {
	return fmt.Sprintf("%s: hunk %d does not apply at line %d or anywhere else. It expects:\n%s\nThe file has there:\n%s\nRead the file again and write the lines as they are.",
		e.File, e.Number, e.Start, e.Wanted, e.Found)
}

// endsWithout tells whether a file that ends with this hunk has no last line end; before is how it was.
func (h *Hunk) endsWithout(before bool) bool {
	for i := len(h.Lines) - 1; i >= 0; i-- {
		switch l := h.Lines[i]; l.Op {
		case '+':
			return l.NoEnd
		case ' ':
			return l.NoEnd || (before && i == len(h.Lines)-1)
		}
	}
	return false
}

func (h *Hunk) old() []string {
	var old []string
	for _, l := range h.Lines {
		if l.Op != '+' {
			old = append(old, l.Text)
		}
	}
	return old
}

// maxCompared bounds the work for one hunk: lines compared.
const maxCompared = 20_000_000

// find returns where old is in lines, at or after from, nearest to want.
func find(lines, old []string, from, want int) (int, bool) {
	want = min(max(want, from), len(lines))
	if len(old) == 0 {
		return want, true
	}
	compared := 0
	for _, same := range []func(a, b string) bool{
		func(a, b string) bool { return a == b },
		func(a, b string) bool { return strings.TrimRight(a, " \t\r") == strings.TrimRight(b, " \t\r") },
	} {
		for d := 0; d <= len(lines); d++ {
			for _, at := range []int{want + d, want - d} {
				if at < from || at+len(old) > len(lines) || (d == 0 && at != want) {
					continue
				}
				n := 0
				for n < len(old) && same(lines[at+n], old[n]) {
					n++
				}
				if n == len(old) {
					return at, true
				}
				if compared += n + 1; compared > maxCompared {
					return 0, false
				}
				if d == 0 {
					break
				}
			}
		}
	}
	return 0, false
}

// splitLines returns the lines without their ends, and whether the last one had none.
func splitLines(s string) (lines []string, noEnd bool) {
	if s == "" {
		return nil, false
	}
	lines = strings.Split(s, "\n")
	if n := len(lines); lines[n-1] == "" {
		return lines[:n-1], false
	}
	return lines, true
}

func mostlyCRLF(lines []string) bool {
	n := 0
	for _, l := range lines {
		if strings.HasSuffix(l, "\r") {
			n++
		}
	}
	return n > len(lines)/2
}

func firstLines(lines []string) string {
	return strings.Join(clip(lines[:min(len(lines), 6)]), "\n")
}

func around(lines []string, at int) string {
	at = min(max(at, 0), len(lines))
	return strings.Join(clip(lines[at:min(len(lines), at+6)]), "\n")
}

func clip(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		if len(l) > 200 {
			l = strings.ToValidUTF8(l[:200], "") + "…"
		}
		out[i] = "| " + l
	}
	return out
}
