package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// SearchOptions is what to look for.
type SearchOptions struct {
	Query string
	Regex bool // RE2, case matters; else text, in any case
	Limit int  // matches
	Names bool // only the paths of files that match by name or content
}

// Match is a line that matches, or a file that does (Line 0).
type Match struct {
	Path string
	Line int
	Text string // the line, cut around the match
}

// Found is what a search brought.
type Found struct {
	Matches []Match
	More    bool // the limit was reached
	Partial bool // time or bytes ran out
	Skipped int  // files too large to look into
}

// Bounds of a search.
const (
	maxSearchTime = 15 * time.Second
	maxSearchFile = 8 << 20
	maxSearchAll  = 1 << 30
	maxQuery      = 4 << 10
	maxMatchLine  = 240
)

// Search looks through the text files below a path, .git left out, in bounded time.
func (t *Tree) Search(ctx context.Context, start string, o SearchOptions) (Found, error) {
	if o.Query == "" {
		return Found{}, errors.New("the query is empty")
	}
	if len(o.Query) > maxQuery {
		return Found{}, fmt.Errorf("the query is longer than %d bytes", maxQuery)
	}
	expr := o.Query
	if !o.Regex {
		expr = "(?i)" + regexp.QuoteMeta(o.Query)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return Found{}, fmt.Errorf("the query is no regular expression: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, maxSearchTime)
	defer cancel()
	return Do(ctx, t, func(_ context.Context, r *Root) (Found, error) {
		s := search{ctx: limited, root: r, re: re, o: o, buf: make([]byte, 0, 64<<10)}
		return s.run(t.Local(start))
	})
}

// search is a search under way.
type search struct {
	ctx   context.Context
	root  *Root
	re    *regexp.Regexp
	o     SearchOptions
	found Found
	read  int64
	buf   []byte
}

func (s *search) run(start string) (Found, error) {
	// A file may be named too.
	if fd, st, err := s.root.openFile(start, 0); err == nil {
		defer unix.Close(fd)
		s.file(path.Clean(start), fd, st.Size)
		return s.found, nil
	}
	err := s.root.walk(s.ctx, start, maxLevels, func(p string, e entry) (bool, error) {
		if s.found.More {
			return false, errStop
		}
		if e.kind == unix.S_IFDIR {
			return e.name != ".git", nil
		}
		if e.kind != unix.S_IFREG {
			return false, nil
		}
		if s.o.Names && s.re.MatchString(e.name) {
			s.add(Match{Path: p})
			return false, nil
		}
		if s.read > maxSearchAll {
			s.found.Partial = true
			return false, errStop
		}
		fd, st, err := s.root.openFile(p, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return false, nil
		}
		defer unix.Close(fd)
		s.file(p, fd, st.Size)
		return false, nil
	})
	if err != nil && s.ctx.Err() != nil {
		// The time for a search is over. Had the caller gone, nobody would read this.
		s.found.Partial, err = true, nil
	}
	return s.found, err
}

// file looks through one file.
func (s *search) file(name string, fd int, size int64) {
	if size > maxSearchFile {
		s.found.Skipped++
		return
	}
	in := fdReader{s.ctx, fd}
	s.buf = s.buf[:0]
	for len(s.buf) <= maxSearchFile {
		if len(s.buf) == cap(s.buf) {
			s.buf = append(s.buf, 0)[:len(s.buf)]
		}
		n, err := in.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		if n == 0 || err != nil {
			break
		}
	}
	s.read += int64(len(s.buf))
	if bytes.IndexByte(s.buf[:min(len(s.buf), 8<<10)], 0) >= 0 {
		return // not text
	}
	b := s.buf
	for line := 1; len(b) > 0 && !s.found.More && s.ctx.Err() == nil; line++ {
		text, rest, _ := bytes.Cut(b, []byte{'\n'})
		b = rest
		at := s.re.FindIndex(text)
		if at == nil {
			continue
		}
		if s.o.Names {
			s.add(Match{Path: name})
			return
		}
		s.add(Match{Path: name, Line: line, Text: around(text, at)})
	}
}

func (s *search) add(m Match) {
	if len(s.found.Matches) >= s.o.Limit {
		s.found.More = true
		return
	}
	s.found.Matches = append(s.found.Matches, m)
}

// around cuts a long line around a match and makes it printable as UTF-8.
func around(line []byte, at []int) string {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	from, to := 0, len(line)
	if to > maxMatchLine {
		from = min(max(0, at[0]-maxMatchLine/3), len(line)-maxMatchLine)
		to = from + maxMatchLine
		for from > 0 && from < to && !utf8.RuneStart(line[from]) {
			from++
		}
		for to < len(line) && to > from && !utf8.RuneStart(line[to]) {
			to--
		}
	}
	s := strings.ToValidUTF8(string(line[from:to]), "\uFFFD")
	if from > 0 {
		s = "…" + s
	}
	if to < len(line) {
		s += "…"
	}
	return s
}
