package workspace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"msb/turn/visible"
)

// Colours of a patch, as SGR parameters.
const (
	colourHead    = "1"
	colourHunk    = "36"
	colourAdded   = "32"
	colourDeleted = "31"
)

// maxShown is how much of a line is shown, in bytes.
const maxShown = 4096

// Show writes a patch for people: made harmless, binary contents left out,
// coloured if so wanted.
func Show(out io.Writer, patch io.Reader, colour bool) error {
	in := bufio.NewReaderSize(patch, 64<<10)
	w := bufio.NewWriter(out)
	var s shower
	for {
		line, long, err := readShown(in)
		if err == io.EOF {
			return w.Flush()
		}
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		text, sgr, show := s.line(string(line))
		if !show {
			continue
		}
		if text = visible.Line(text); long {
			text += " … (a long line)"
		}
		if colour && sgr != "" {
			text = "\x1b[" + sgr + "m" + text + "\x1b[0m"
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
}

// readShown reads a line, of which the rest is dropped when it is long.
func readShown(in *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if room := maxShown - len(line); len(part) > room {
			part, long = part[:max(room, 0)], true
		}
		line = append(line, part...)
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(line) == 0:
			return nil, false, io.EOF
		case err != nil && err != io.EOF:
			return nil, false, err
		}
		return bytes.TrimSuffix(line, []byte("\n")), long, nil
	}
}

// shower knows in what part of a patch a line is.
type shower struct {
	old, new int // lines that are left of the hunk
	binary   bool
}

func (s *shower) line(l string) (text, sgr string, show bool) {
	switch {
	case s.old > 0 || s.new > 0:
		return l, s.content(l), true
	case strings.HasPrefix(l, "diff --git "):
		s.binary = false
		return l, colourHead, true
	case s.binary:
		return "", "", false
	case strings.HasPrefix(l, "GIT binary patch"):
		s.binary = true
		return "(binary content)", "", true
	case strings.HasPrefix(l, "@@ "):
		s.hunk(l)
		return l, colourHunk, true
	case strings.HasPrefix(l, `\`):
		return l, "", true
	case strings.HasPrefix(l, "index "):
		return "", "", false
	}
	return l, colourHead, true
}

// content counts a line of a hunk.
func (s *shower) content(l string) string {
	switch {
	case strings.HasPrefix(l, "+"):
		s.new--
		return colourAdded
	case strings.HasPrefix(l, "-"):
		s.old--
		return colourDeleted
	case strings.HasPrefix(l, `\`):
		return ""
	}
	s.old--
	s.new--
	return ""
}

// hunk reads "@@ -LINE,COUNT +LINE,COUNT @@".
func (s *shower) hunk(l string) {
	part := strings.Fields(l)
	if len(part) < 3 {
		return
	}
	count := func(p string) int {
		_, n, found := strings.Cut(p[1:], ",")
		if !found {
			return 1
		}
		var v int
		fmt.Sscan(n, &v)
		return max(v, 0)
	}
	s.old, s.new = count(part[1]), count(part[2])
}
