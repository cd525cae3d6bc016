package pane

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

var texts = []string{"", "plain", "世界世界世界", "e\u0301e\u0301e\u0301", "\x1b[1mbold words that go on\x1b[0m", strings.Repeat("x", 300),
	"👩‍👩‍👧‍👦 family", "שלום עולם", "a\x1b[31mred 世 red\x1b[0mb", "word " + strings.Repeat("long", 30) + " word"}

// Fit gives exactly the width that was asked for, whatever the text.
func TestFit(t *testing.T) {
	for _, s := range texts {
		for _, w := range []int{0, 1, 2, 3, 7, 40} {
			if got := ansi.StringWidth(Fit(s, w)); got != w {
				t.Errorf("Fit(%q, %d) is %d wide", s, w, got)
			}
		}
	}
}

// Blocks are as large as they shall be, and lines do not touch each other.
func TestBlock(t *testing.T) {
	for _, h := range []int{-1, 0, 1, 5, 30} {
		b := Block(texts, 13, h)
		if len(b) != max(h, 0) {
			t.Errorf("%d lines, not %d", len(b), h)
		}
		for _, l := range b {
			if ansi.StringWidth(l) != 13 {
				t.Errorf("%q", l)
			}
		}
	}
}

// Wrap and Chop make no line too wide; Chop loses nothing, and every line stands
// alone: a style that a line opens ends in it.
func TestWrap(t *testing.T) {
	for _, s := range texts {
		for _, w := range []int{2, 3, 10} {
			for name, lines := range map[string][]string{"Wrap": Wrap(s, w), "Chop": Chop(s, w)} {
				for _, l := range lines {
					if ansi.StringWidth(l) > w {
						t.Errorf("%s(%q, %d): %q is too wide", name, s, w, l)
					}
					if strings.Contains(l, "\x1b[") && !strings.HasSuffix(ansi.Strip(strings.ReplaceAll(l, "\x1b[0m", "\x00")), "\x00") && lastStyle(l) != "" {
						t.Errorf("%s(%q, %d): %q leaves a style on", name, s, w, l)
					}
				}
			}
			if got := ansi.Strip(strings.Join(Chop(s, w), "")); got != ansi.Strip(s) {
				t.Errorf("Chop(%q, %d) is %q", s, w, got)
			}
		}
	}
}

// Over lays a block over another and leaves the rest as it was.
func TestOver(t *testing.T) {
	base := Block([]string{"aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"}, 10, 3)
	got := Over(base, []string{"XX", "YY"}, 4, 1)
	for i, want := range []string{"aaaaaaaaaa", "bbbbXXbbbb", "ccccYYcccc"} {
		if ansi.Strip(got[i]) != want {
			t.Errorf("%q, want %q", got[i], want)
		}
	}
	beside := Beside(Block([]string{"a"}, 2, 2), Block([]string{"b", "c"}, 2, 2))
	if len(beside) != 2 || ansi.Strip(beside[1]) != "  c " {
		t.Errorf("%q", beside)
	}
}

// Split puts one text at either end.
func TestSplit(t *testing.T) {
	if got := ansi.Strip(Split("left", "right", 12)); got != "left   right" {
		t.Errorf("%q", got)
	}
	for _, w := range []int{0, 1, 5, 8} {
		if got := ansi.StringWidth(Split("left", "right", w)); got > max(w, 0) {
			t.Errorf("%d wide, not %d", got, w)
		}
	}
}
