// Package terminal holds every fact about the terminal that msb runs in, behind one type, so that commands can be
// tested without one.
package terminal

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Streams are the three streams of a command and what is known about them.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer

	inFile, outFile, errFile *os.File // nil when the stream is not a file
	env                      func(string) string
}

// System returns the streams of this process.
func System() *Streams {
	return &Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		inFile: os.Stdin, outFile: os.Stdout, errFile: os.Stderr, env: os.Getenv}
}

// Test returns streams without a terminal, for tests.
func Test(in io.Reader, out, err io.Writer) *Streams {
	return &Streams{In: in, Out: out, Err: err, env: func(string) string { return "" }}
}

// InTTY says whether standard input is a terminal.
func (s *Streams) InTTY() bool { return isTTY(s.inFile) }

// OutTTY says whether standard output is a terminal.
func (s *Streams) OutTTY() bool { return isTTY(s.outFile) }

// ErrTTY says whether standard error is a terminal.
func (s *Streams) ErrTTY() bool { return isTTY(s.errFile) }

// Interactive says whether both ends, input and output, are a terminal.
func (s *Streams) Interactive() bool { return s.InTTY() && s.OutTTY() }

// Env returns an environment variable as the user's terminal set it.
func (s *Streams) Env(key string) string { return s.env(key) }

// Colour says whether colour may be used on standard error, where progress and warnings go.
func (s *Streams) Colour() bool {
	return s.ErrTTY() && s.env("NO_COLOR") == "" && s.env("TERM") != "dumb"
}

// Size returns the size of the terminal on standard output (or input), 0 and 0 when there is none.
func (s *Streams) Size() (rows, cols uint16) {
	for _, f := range []*os.File{s.outFile, s.inFile, s.errFile} {
		if f == nil {
			continue
		}
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return uint16(min(h, 65535)), uint16(min(w, 65535))
		}
	}
	return 0, 0
}

// Width is the number of columns to draw in: the terminal's, else 80.
func (s *Streams) Width() int {
	if _, cols := s.Size(); cols > 0 {
		return int(cols)
	}
	return 80
}

func isTTY(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

// Clean replaces control characters in text that may come from a guest, so that it cannot speak to the terminal.
// Line breaks and tabs stay.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0xfffd || isBidi(r):
			return '\ufffd'
		}
		return r
	}, s)
}

// Line is Clean for text that has one line only: what would begin another cannot look like a line of ours.
func Line(s string) string { return strings.ReplaceAll(Clean(s), "\n", "\ufffd") }

// Indented is Clean for text that may have several lines; those after the first are set off by the margin.
func Indented(s, margin string) string { return strings.ReplaceAll(Clean(s), "\n", "\n"+margin) }

// isBidi names the characters that reorder text on the screen.
func isBidi(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c
}
