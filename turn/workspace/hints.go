package workspace

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	wire "msb/protocol/worktree"
)

// maxHints bounds how many files a patch may concern.
const maxHints = maxEntries

// copyPatch copies a patch and collects the paths that its lines name. That is
// more than it concerns, since a line of content can look the same; what git
// does not find among them it does not change.
func copyPatch(w io.Writer, r io.Reader) ([]string, error) {
	seen := make(map[string]bool)
	var hints []string
	add := func(p string) {
		if p != "" && !seen[p] && len(hints) < maxHints {
			seen[p] = true
			hints = append(hints, p)
		}
	}
	lines := &lineTee{w: w, line: func(l []byte) {
		for _, prefix := range []string{"--- a/", "+++ b/", "rename from ", "rename to ", "copy from ", "copy to ", "diff --git "} {
			rest, ok := bytes.CutPrefix(l, []byte(prefix))
			if !ok {
				if quoted := quotedPrefix(prefix); quoted == "" || !bytes.HasPrefix(l, []byte(quoted)) {
					continue
				} else {
					rest = l[strings.IndexByte(quoted, '"'):]
				}
			}
			if prefix == "diff --git " {
				for _, p := range bothPaths(string(rest)) {
					add(p)
				}
				continue
			}
			p := string(rest)
			if strings.HasPrefix(prefix, "-") || strings.HasPrefix(prefix, "+") {
				p, _, _ = strings.Cut(p, "\t")
			}
			if u, ok := unquote(p); ok {
				p = u
				if quotedPrefix(prefix) != "" {
					_, p, _ = strings.Cut(p, "/")
				}
			}
			add(p)
		}
	}}
	if _, err := io.Copy(lines, r); err != nil {
		return nil, fmt.Errorf("read the patch: %w", err)
	}
	lines.end()
	slices.Sort(hints)
	return hints, nil
}

// quotedPrefix is how a line starts whose path is quoted.
func quotedPrefix(prefix string) string {
	switch prefix {
	case "--- a/":
		return `--- "a/`
	case "+++ b/":
		return `+++ "b/`
	}
	return ""
}

// bothPaths reads "a/PATH b/PATH" for a patch without other names: one whose
// two paths are the same.
func bothPaths(s string) []string {
	if strings.HasPrefix(s, `"`) {
		end := 1
		for end < len(s) && s[end] != '"' {
			if s[end] == '\\' {
				end++
			}
			end++
		}
		if end < len(s) {
			if u, ok := unquote(s[:end+1]); ok {
				_, p, _ := strings.Cut(u, "/")
				return []string{p}
			}
		}
		return nil
	}
	// The halves are equal but for their first letter.
	if len(s)%2 == 1 && s[len(s)/2] == ' ' {
		_, p, _ := strings.Cut(s[:len(s)/2], "/")
		return []string{p}
	}
	return nil
}

// unquote reads a path in git's quotes.
func unquote(s string) (string, bool) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s, false
	}
	s = s[1 : len(s)-1]
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", false
		}
		if s[i] >= '0' && s[i] <= '3' && i+2 < len(s) {
			b.WriteByte((s[i]-'0')<<6 | (s[i+1]-'0')<<3 | (s[i+2] - '0'))
			i += 2
			continue
		}
		if at := strings.IndexByte(`abfnrtv`, s[i]); at >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v"[at])
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String(), true
}

// lineTee copies what is written and calls line for each line that is not too
// long to name a path.
type lineTee struct {
	w    io.Writer
	line func([]byte)
	buf  []byte
	long bool
}

const maxLine = 4*wire.MaxPath + 64

func (l *lineTee) Write(p []byte) (int, error) {
	n := len(p)
	if _, err := l.w.Write(p); err != nil {
		return 0, err
	}
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if l.long = l.long || len(l.buf)+len(part) > maxLine; !l.long {
			l.buf = append(l.buf, part...)
		}
		if i < 0 {
			break
		}
		l.end()
		p = p[i+1:]
	}
	return n, nil
}

func (l *lineTee) end() {
	if !l.long {
		l.line(l.buf)
	}
	l.buf, l.long = l.buf[:0], false
}
