package workspace

import (
	"bytes"
	"os"
	"strings"
	"testing"

	wire "msb/protocol/worktree"
)

// A helper that lies: it answers every scan with prepared bytes.
func TestHostileHelper(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/file", "old\n")
	r := newRig(t)
	r.bring(dir, Options{})
	honest := r.helper
	answer := t.TempDir() + "/answer"
	script := t.TempDir() + "/helper"
	put(t, script, "#!/bin/sh\nexec cat "+answer+"\n")
	must(t, os.Chmod(script, 0o755))

	entry := func(path string) func(w *wire.Writer) {
		return func(w *wire.Writer) { w.Entry(wire.Entry{Path: path, Kind: wire.KindDir}) }
	}
	for name, tc := range map[string]struct {
		send func(w *wire.Writer)
		want string // in the error
	}{
		"dots":             {entry("../x"), "plain relative"},
		"absolute":         {entry("/x"), "plain relative"},
		"NUL":              {entry("a\x00b"), "NUL"},
		"no path":          {entry(""), "empty path"},
		"without folder":   {entry("a/b"), "without its folder"},
		"twice":            {func(w *wire.Writer) { entry("a")(w); entry("a")(w) }, "twice"},
		"link without end": {func(w *wire.Writer) { w.Entry(wire.Entry{Path: "l", Kind: wire.KindLink}) }, "link"},
		"below a link": {func(w *wire.Writer) {
			w.Entry(wire.Entry{Path: "l", Kind: wire.KindLink, Target: "/"})
			entry("l/x")(w)
		}, "without its folder"},
		"content that nobody knows": {func(w *wire.Writer) {
			w.Entry(wire.Entry{Path: "f", Kind: wire.KindFile, Same: true, Stamp: "x"})
		}, "said to be known"},
		"too large": {func(w *wire.Writer) {
			w.Entry(wire.Entry{Path: "f", Kind: wire.KindFile})
			for range 9 {
				w.Frame(wire.FrameData, bytes.Repeat([]byte{0}, wire.MaxFrame))
			}
		}, "larger than the free disk space"},
		"content of nothing": {func(w *wire.Writer) { w.Frame(wire.FrameData, []byte("x")) }, "malformed"},
		"a file in a file": {func(w *wire.Writer) {
			w.Entry(wire.Entry{Path: "f", Kind: wire.KindFile})
			entry("g")(w)
		}, "malformed"},
		"frame of the host": {func(w *wire.Writer) { w.Frame(wire.FrameKnown, nil) }, "malformed"},
		"breaks off":        {func(w *wire.Writer) { entry("a")(w); w.Flush(); panic("stop") }, "unexpected EOF"},
		"escapes":           {func(w *wire.Writer) { w.End(errEscapes{}); panic("stop") }, "evil [31m"},
		"huge frame":        {func(w *wire.Writer) { w.Flush(); panic("E\xff\xff\xff\xff") }, "4294967295"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := wire.NewWriter(&b)
			func() {
				defer func() {
					if raw, _ := recover().(string); raw == "" {
						w.End(nil)
					} else if raw != "stop" {
						b.WriteString(raw)
					}
				}()
				tc.send(w)
			}()
			put(t, answer, b.String())
			r.helper, r.budget = script, 8<<20
			_, err := r.Diff(within(t), r.c, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\x00") {
				t.Errorf("error %q", err)
			}
		})
	}
	// None of it did any harm.
	r.helper, r.budget = honest, 0
	same(t, "changes", r.changes(), "")

	put(t, script, "#!/bin/sh\necho 'msb-guest runs inside' >&2; exit 2\n")
	r.helper = script
	if _, err := r.Diff(within(t), r.c, nil); err == nil || !strings.Contains(err.Error(), "msb restart") {
		t.Errorf("an older guest: %v", err)
	}
	r.helper = "/no/such/program"
	if _, err := r.Diff(within(t), r.c, nil); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("no helper: %v", err)
	}
}

type errEscapes struct{}

func (errEscapes) Error() string { return "evil\x1b[31m" }

// What was being brought in when it broke off comes again.
func TestInterruptedBring(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/file", "1")
	r := newRig(t)
	honest := r.helper
	script := t.TempDir() + "/helper"
	put(t, script, "#!/bin/sh\nmkdir -p "+r.tree+"; echo half > "+r.tree+"/file; echo died >&2; exit 1\n")
	must(t, os.Chmod(script, 0o755))
	r.helper = script
	if _, err := r.Bring(within(t), r.c, dir, Options{}); err == nil || !strings.Contains(err.Error(), "died") {
		t.Errorf("error %v", err)
	}
	if _, err := r.Diff(within(t), r.c, nil); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	r.helper = honest
	if err := r.Snapshot(within(t), r.c, Snapshot{}); err == nil {
		t.Error("half a project became a baseline")
	}
	r.bring(dir, Options{})
	same(t, "file", get(t, r.tree+"/file"), "1")
	same(t, "changes", r.changes(), "")
}

func TestGitNames(t *testing.T) {
	for _, p := range []string{".git", ".GIT/x", "a/.git", "a/.git/b", ".git ", ".git.", ".git. .", "git~1", "GIT~1/a", ".git:x", "a\\.git", ".git\\a", ".g\u200cit"} {
		if checkPath(p) == nil {
			t.Errorf("%q is accepted", p)
		}
	}
	for _, p := range []string{".gitignore", ".github/x", "git", "a.git", ".gitmodules", ".git-x", "x.git/y"} {
		if err := checkPath(p); err != nil {
			t.Error(err)
		}
	}
}
