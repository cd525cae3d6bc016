// Package patch reads unified diffs as models write them, with wrong line numbers and counts, and applies them to
// files in memory.
package patch

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// File is the change of one file. One of Old and New is "" when the file is created or deleted.
type File struct {
	Old, New string
	Mode     uint32 // permissions to set; 0: as they are
	Binary   bool   // the change of a binary file, which only git can apply
	Special  bool   // makes or changes a link or submodule, which only git can apply
	Copy     bool   // New is a copy of Old
	Hunks    []Hunk
}

// Name is the file's name after the change, or before it if it is deleted.
func (f *File) Name() string {
	if f.New != "" {
		return f.New
	}
	return f.Old
}

// Hunk is a run of changed lines.
type Hunk struct {
	Start int // line of the old file that it begins at, as the patch claims; 0: unknown
	Lines []Line
}

// Line is a line of a hunk.
type Line struct {
	Op    byte // ' ', '-' or '+'
	Text  string
	NoEnd bool // the last line of a file that has no line end
}

// ErrNoFiles reports text in which there is no change of a file.
var ErrNoFiles = errors.New("this is no unified diff: it names no file; a patch has lines --- a/FILE, +++ b/FILE and @@ -N,N +N,N @@ before the changed lines")

// Parse reads a patch. Every name in it has been checked: it is relative, stays inside, and is not git's own.
func Parse(text string) ([]File, error) {
	p := parser{lines: strings.Split(text, "\n")}
	if n := len(p.lines); p.lines[n-1] == "" {
		p.lines = p.lines[:n-1]
	}
	for p.at < len(p.lines) {
		if err := p.next(); err != nil {
			return nil, fmt.Errorf("patch, line %d: %w", p.at+1, err)
		}
	}
	p.finish()
	if len(p.files) == 0 {
		return nil, ErrNoFiles
	}
	for i := range p.files {
		for _, name := range []string{p.files[i].Old, p.files[i].New} {
			if err := CheckName(name); name != "" && err != nil {
				return nil, err
			}
		}
	}
	return p.files, nil
}

// CheckName refuses names that a patch must not touch.
func CheckName(name string) error {
	if name == "" || strings.HasPrefix(name, "/") || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("the patch names %q, which is not a path inside the workspace", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return fmt.Errorf("the patch names %q, which is outside the workspace", name)
		case strings.EqualFold(part, ".git"):
			return fmt.Errorf("the patch names %q, which is git's own: use git commands for that", name)
		}
	}
	return nil
}

// parser is a patch being read.
type parser struct {
	lines []string
	at    int
	files []File
	cur   *File
	git   bool // cur began with a "diff --git" line
}

func (p *parser) finish() {
	if p.cur != nil && (p.cur.Old != "" || p.cur.New != "") {
		p.files = append(p.files, *p.cur)
	}
	p.cur, p.git = nil, false
}

func (p *parser) peek(i int) string {
	if i < len(p.lines) {
		return p.lines[i]
	}
	return ""
}

// next takes one line outside a hunk, or a whole hunk.
func (p *parser) next() error {
	line := strings.TrimSuffix(p.lines[p.at], "\r")
	switch {
	case strings.HasPrefix(line, "diff --git "):
		p.finish()
		p.cur, p.git = &File{}, true
		// Only of use when nothing better follows: a mode change, an empty file.
		if a, b, ok := gitNames(line[len("diff --git "):]); ok {
			p.cur.Old, p.cur.New = a, b
		}
	case p.fileHeader(p.at):
		return p.names()
	case strings.HasPrefix(line, "@@"):
		if p.cur == nil {
			return errors.New("a hunk before any file is named; write --- a/FILE and +++ b/FILE first")
		}
		return p.hunk(line)
	case p.cur != nil && p.git && len(p.cur.Hunks) == 0:
		return p.gitHeader(line)
	}
	p.at++
	return nil
}

// fileHeader tells whether the two lines at i name a file.
func (p *parser) fileHeader(i int) bool {
	return strings.HasPrefix(p.peek(i), "--- ") && strings.HasPrefix(p.peek(i+1), "+++ ")
}

func (p *parser) names() error {
	if p.cur == nil || !p.git || len(p.cur.Hunks) > 0 {
		p.finish()
		p.cur = &File{}
	}
	old, err := header(p.lines[p.at][4:])
	if err != nil {
		return err
	}
	to, err := header(p.lines[p.at+1][4:])
	if err != nil {
		return err
	}
	p.at += 2
	switch {
	case old == "/dev/null" && to == "/dev/null":
		return errors.New("both names are /dev/null")
	case old == "/dev/null":
		p.cur.Old, p.cur.New = "", strip(to, "b/")
	case to == "/dev/null":
		p.cur.Old, p.cur.New = strip(old, "a/"), ""
	case strings.HasPrefix(old, "a/") && strings.HasPrefix(to, "b/"):
		p.cur.Old, p.cur.New = strip(old, "a/"), strip(to, "b/")
	default:
		p.cur.Old, p.cur.New = path.Clean(old), path.Clean(to)
	}
	return nil
}

func strip(name, prefix string) string { return path.Clean(strings.TrimPrefix(name, prefix)) }

// header is the name in a --- or +++ line: a time may follow after a tab, and git quotes unusual names.
func header(s string) (string, error) {
	s = strings.TrimRight(s, "\r")
	if strings.HasPrefix(s, `"`) {
		name, _, err := unquote(s)
		return name, err
	}
	s, _, _ = strings.Cut(s, "\t")
	s = strings.TrimRight(s, " ")
	if s == "" {
		return "", errors.New("the name of the file is missing")
	}
	return s, nil
}

// unquote reads a quoted name as git writes it, and what follows.
func unquote(s string) (name, rest string, err error) {
	quoted, err := strconv.QuotedPrefix(s)
	if err != nil {
		return "", "", fmt.Errorf("the quoted name %.80q is broken", s)
	}
	name, err = strconv.Unquote(quoted)
	if err != nil {
		return "", "", fmt.Errorf("the quoted name %.80q is broken", s)
	}
	return name, s[len(quoted):], nil
}

// gitNames splits "a/X b/X". Names with blanks are told apart by being equal.
func gitNames(s string) (a, b string, ok bool) {
	if strings.HasPrefix(s, `"`) {
		first, rest, err := unquote(s)
		if err != nil || !strings.HasPrefix(rest, " ") {
			return "", "", false
		}
		second, err := header(rest[1:])
		return strip(first, "a/"), strip(second, "b/"), err == nil
	}
	for i := range len(s) {
		if s[i] != ' ' || !strings.HasPrefix(s[i+1:], "b/") {
			continue
		}
		x, y := strings.TrimPrefix(s[:i], "a/"), strings.TrimPrefix(s[i+1:], "b/")
		if x == y {
			return path.Clean(x), path.Clean(y), true
		}
	}
	a, b, ok = strings.Cut(s, " ")
	return strip(a, "a/"), strip(b, "b/"), ok
}

// gitHeader takes one of git's extended header lines.
func (p *parser) gitHeader(line string) error {
	f := p.cur
	name := func(prefix string, to *string) error {
		n, err := header(line[len(prefix):])
		if err == nil {
			*to = path.Clean(n)
		}
		return err
	}
	var err error
	switch {
	case strings.HasPrefix(line, "new file mode "):
		f.Old = ""
		err = f.mode(line[len("new file mode "):])
	case strings.HasPrefix(line, "deleted file mode "):
		f.New = ""
		err = f.mode(line[len("deleted file mode "):])
		f.Mode = 0
	case strings.HasPrefix(line, "new mode "):
		err = f.mode(line[len("new mode "):])
	case strings.HasPrefix(line, "rename from "):
		err = name("rename from ", &f.Old)
	case strings.HasPrefix(line, "rename to "):
		err = name("rename to ", &f.New)
	case strings.HasPrefix(line, "copy from "):
		err = name("copy from ", &f.Old)
	case strings.HasPrefix(line, "copy to "):
		f.Copy = true
		err = name("copy to ", &f.New)
	case strings.HasPrefix(line, "index ") && strings.HasSuffix(line, " 120000"):
		f.Special = true
	case strings.HasPrefix(line, "GIT binary patch"), strings.HasPrefix(line, "Binary files "):
		f.Binary = true
	}
	p.at++
	return err
}

func (f *File) mode(s string) error {
	m, err := strconv.ParseUint(strings.TrimSpace(s), 8, 32)
	if err != nil {
		return fmt.Errorf("bad file mode %.20q", s)
	}
	if kind := m &^ 0o7777; kind != 0o100000 {
		f.Special = true
	}
	f.Mode = 0o644
	if m&0o111 != 0 {
		f.Mode = 0o755
	}
	return nil
}

// hunk reads a hunk. Its counts are believed as long as the lines allow it.
func (p *parser) hunk(head string) error {
	start, olds, news := ranges(head)
	counted := olds >= 0
	h := Hunk{Start: start}
	p.at++
	for p.at < len(p.lines) {
		line := p.lines[p.at]
		full := counted && olds <= 0 && news <= 0
		switch {
		case strings.HasPrefix(line, `\`):
			if n := len(h.Lines); n > 0 {
				h.Lines[n-1].NoEnd = true
			}
			p.at++
			continue
		case strings.HasPrefix(line, "@@"), strings.HasPrefix(line, "diff --git "):
			return p.add(h)
		case p.fileHeader(p.at) && (full || !counted || strings.HasPrefix(p.peek(p.at+2), "@@")):
			return p.add(h)
		case line == "" || line == "\r":
			// Blank lines lose their leading blank on the way; outside the counts they only separate.
			if full || (!counted && p.endsHere()) {
				return p.add(h)
			}
			h.Lines = append(h.Lines, Line{Op: ' ', Text: line})
			olds, news = olds-1, news-1
		case line[0] == ' ', line[0] == '+', line[0] == '-':
			if full && line == "-- " { // the signature of a mailed patch
				return p.add(h)
			}
			h.Lines = append(h.Lines, Line{Op: line[0], Text: line[1:]})
			if line[0] != '+' {
				olds--
			}
			if line[0] != '-' {
				news--
			}
		default:
			if !full && counted {
				return fmt.Errorf("the line begins with %q: lines of a hunk begin with a blank, + or -", line[:1])
			}
			return p.add(h)
		}
		p.at++
	}
	return p.add(h)
}

// endsHere tells that nothing but blank lines or the next file follows.
func (p *parser) endsHere() bool {
	for i := p.at; i < len(p.lines); i++ {
		if line := strings.TrimSuffix(p.lines[i], "\r"); line != "" {
			return strings.HasPrefix(line, "diff --git ") || p.fileHeader(i)
		}
	}
	return true
}

func (p *parser) add(h Hunk) error {
	changes := false
	for _, l := range h.Lines {
		changes = changes || l.Op != ' '
	}
	if !changes {
		return errors.New("a hunk changes nothing: no line of it begins with + or -")
	}
	p.cur.Hunks = append(p.cur.Hunks, h)
	return nil
}

// ranges reads "@@ -A,B +C,D @@". olds is -1 when there are no counts.
func ranges(head string) (start, olds, news int) {
	f := strings.Fields(strings.TrimLeft(head, "@"))
	if len(f) < 2 || f[0][0] != '-' || f[1][0] != '+' {
		return 0, -1, -1
	}
	start, olds, ok1 := span(f[0][1:])
	_, news, ok2 := span(f[1][1:])
	if !ok1 || !ok2 {
		return 0, -1, -1
	}
	return start, olds, news
}

func span(s string) (start, count int, ok bool) {
	a, b, hasCount := strings.Cut(s, ",")
	start, err := strconv.Atoi(a)
	if err != nil || start < 0 {
		return 0, 0, false
	}
	if !hasCount {
		return start, 1, true
	}
	count, err = strconv.Atoi(b)
	return start, count, err == nil && count >= 0
}
