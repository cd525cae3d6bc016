package worktree

import (
	"bytes"
	"strings"
)

// Bounds of the ignore patterns of one file.
const (
	maxIgnoreFile = 1 << 20
	maxPatterns   = 20000
	maxSteps      = 100000 // of one match; a pattern that needs more does not match
)

// pattern is a line of a .gitignore file.
type pattern struct {
	text     string
	negate   bool
	dirOnly  bool
	anchored bool // against the path from the file's folder, not the name
}

// rules are the patterns of one file, which hold below its folder.
type rules struct {
	base     string // folder of the file, "" or with a slash at the end
	patterns []pattern
	up       *rules // of the folders above
}

// parseRules reads a file of patterns.
func parseRules(content []byte, base string, up *rules) *rules {
	content = bytes.TrimPrefix(content[:min(len(content), maxIgnoreFile)], []byte("\xef\xbb\xbf"))
	r := &rules{base: base, up: up}
	for line := range strings.SplitSeq(string(content), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if p, ok := parsePattern(line); ok && len(r.patterns) < maxPatterns {
			r.patterns = append(r.patterns, p)
		}
	}
	if len(r.patterns) == 0 {
		return up
	}
	return r
}

func parsePattern(line string) (p pattern, ok bool) {
	line = trimSpaces(line)
	if line == "" || line[0] == '#' {
		return p, false
	}
	if line[0] == '!' {
		p.negate, line = true, line[1:]
	} else if strings.HasPrefix(line, `\!`) || strings.HasPrefix(line, `\#`) {
		line = line[1:]
	}
	if strings.HasSuffix(line, "/") {
		p.dirOnly, line = true, line[:len(line)-1]
	}
	if strings.HasPrefix(line, "/") {
		p.anchored, line = true, line[1:]
	} else {
		p.anchored = strings.Contains(line, "/")
	}
	p.text = line
	return p, line != ""
}

// trimSpaces takes spaces off the end that no backslash keeps.
func trimSpaces(s string) string {
	end := len(s)
	for end > 0 && s[end-1] == ' ' {
		slashes := 0
		for i := end - 2; i >= 0 && s[i] == '\\'; i-- {
			slashes++
		}
		if slashes%2 == 1 {
			break
		}
		end--
	}
	return s[:end]
}

// hides tells whether a path is ignored. The folders above it are not.
func (r *rules) hides(path string, dir bool) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	for ; r != nil; r = r.up {
		below := strings.TrimPrefix(path, r.base)
		for i := len(r.patterns) - 1; i >= 0; i-- {
			p := r.patterns[i]
			if p.dirOnly && !dir {
				continue
			}
			text := name
			if p.anchored {
				text = below
			}
			steps := 0
			if match(p.text, text, &steps) {
				return !p.negate
			}
		}
	}
	return false
}

// match is git's wildmatch of a path: ** crosses slashes, * and ? do not.
func match(p, s string, steps *int) bool {
	for len(p) > 0 {
		if *steps++; *steps > maxSteps {
			return false
		}
		switch p[0] {
		case '*':
			stars := 1
			for stars < len(p) && p[stars] == '*' {
				stars++
			}
			rest := p[stars:]
			return matchStar(rest, s, stars, steps)
		case '?':
			if s == "" || s[0] == '/' {
				return false
			}
			p, s = p[1:], s[1:]
		case '[':
			n, ok := matchClass(p, s)
			if !ok {
				return false
			}
			p, s = p[n:], s[1:]
		case '\\':
			if len(p) == 1 || s == "" || p[1] != s[0] {
				return false
			}
			p, s = p[2:], s[1:]
		case '/':
			// "/**/" is a slash, or whole folders.
			if strings.HasPrefix(p, "/**/") && s != "" && s[0] == '/' {
				if match(p[4:], s[1:], steps) {
					return true
				}
				return matchFolders(p[4:], s[1:], steps)
			}
			if p == "/**" {
				return len(s) > 1 && s[0] == '/'
			}
			fallthrough
		default:
			if s == "" || p[0] != s[0] {
				return false
			}
			p, s = p[1:], s[1:]
		}
	}
	return s == ""
}

func matchStar(rest, s string, stars int, steps *int) bool {
	if stars == 2 && strings.HasPrefix(rest, "/") { // at the start: "**/"
		return match(rest[1:], s, steps) || matchFolders(rest[1:], s, steps)
	}
	for i := 0; ; i++ {
		if match(rest, s[i:], steps) {
			return true
		}
		if i == len(s) || s[i] == '/' || *steps > maxSteps {
			return false
		}
	}
}

// matchFolders matches after each further slash.
func matchFolders(p, s string, steps *int) bool {
	for {
		i := strings.IndexByte(s, '/')
		if i < 0 || *steps > maxSteps {
			return false
		}
		s = s[i+1:]
		if match(p, s, steps) {
			return true
		}
	}
}

// matchClass matches s[0] with the class at the start of p, of n bytes.
func matchClass(p, s string) (n int, ok bool) {
	if s == "" || s[0] == '/' {
		return 0, false
	}
	c, i, negate, found := s[0], 1, false, false
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		negate = true
		i++
	}
	for first := true; ; first = false {
		if i >= len(p) {
			return 0, false
		}
		if p[i] == ']' && !first {
			break
		}
		if strings.HasPrefix(p[i:], "[:") {
			if end := strings.Index(p[i:], ":]"); end > 0 {
				if inClass(p[i+2:i+end], c) {
					found = true
				}
				i += end + 2
				continue
			}
		}
		low := p[i]
		if low == '\\' && i+1 < len(p) {
			i++
			low = p[i]
		}
		i++
		high := low
		if i+1 < len(p) && p[i] == '-' && p[i+1] != ']' {
			high = p[i+1]
			i += 2
			if high == '\\' && i < len(p) {
				high = p[i]
				i++
			}
		}
		if low <= c && c <= high {
			found = true
		}
	}
	return i + 1, found != negate
}

func inClass(name string, c byte) bool {
	lower, upper, digit := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9'
	switch name {
	case "alpha":
		return lower || upper
	case "digit":
		return digit
	case "alnum":
		return lower || upper || digit
	case "lower":
		return lower
	case "upper":
		return upper
	case "space":
		return c == ' ' || c >= '\t' && c <= '\r'
	case "blank":
		return c == ' ' || c == '\t'
	case "punct":
		return c > ' ' && c < 0x7f && !lower && !upper && !digit
	case "xdigit":
		return digit || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
	case "cntrl":
		return c < ' ' || c == 0x7f
	case "graph":
		return c > ' ' && c < 0x7f
	case "print":
		return c >= ' ' && c < 0x7f
	}
	return false
}
