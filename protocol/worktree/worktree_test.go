package worktree

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestFramesComeBackAsTheyWere(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	entries := []Entry{
		{Path: "a", Kind: KindDir, Mode: 0o755},
		{Path: "a/\xff \n", Kind: KindFile, Mode: 0o4755, MTime: -1, Stamp: "s\x00t", Same: true},
		{Path: "l", Kind: KindLink, Target: "../\xfe"},
		{Path: "p", Kind: KindOther, Problem: "a FIFO"},
	}
	for _, e := range entries {
		if err := w.Entry(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(errors.New("no")); err != nil {
		t.Fatal(err)
	}
	r := NewReader(&b)
	for _, want := range entries {
		kind, p, err := r.Next()
		if err != nil || kind != FrameEntry {
			t.Fatal(kind, err)
		}
		if got, err := DecodeEntry(p); err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	if kind, p, err := r.Next(); kind != FrameEnd || string(p) != "no" || err != nil {
		t.Error(kind, p, err)
	}
	if r.Taken() != w.Written() {
		t.Errorf("%d bytes read, %d written", r.Taken(), w.Written())
	}
	if _, _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
}

func TestPathsThatAreRefused(t *testing.T) {
	for _, p := range []string{"", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\x00b",
		strings.Repeat("x", 256), strings.Repeat("x/", MaxDepth) + "x", strings.Repeat("abcd/", MaxPath/4) + "x"} {
		if CheckPath(p) == nil {
			t.Errorf("%.40q is accepted", p)
		}
	}
	for _, p := range []string{"a", "a/b", "...", "..a", " ", "a\nb", "\xff", ".git"} {
		if err := CheckPath(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Entry(Entry{Path: "a/b", Kind: KindFile, Stamp: "x"})
	w.Known(Known{"a", "b"})
	w.End(nil)
	f.Add(b.Bytes())
	f.Add([]byte("E\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		for {
			kind, p, err := r.Next()
			if err != nil {
				return
			}
			switch kind {
			case FrameEntry:
				e, err := DecodeEntry(p)
				if err == nil && !bytes.Equal(AppendEntry(nil, e), p) {
					t.Errorf("%x is read as %+v", p, e)
				}
			case FrameKnown:
				DecodeKnown(p)
			}
		}
	})
}
