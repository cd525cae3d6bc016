package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"msb/protocol/agent"
	"msb/tui/theme"
	"msb/vmm/store"
)

// fake is a hostile sandbox: it says what it likes.
type fake map[string][]agent.Entry

func (f fake) List(_ context.Context, dir string) ([]agent.Entry, error) {
	l, ok := f[dir]
	if !ok {
		return nil, fmt.Errorf("no such folder \x1b[2J%s", dir)
	}
	return l, nil
}

func (f fake) Read(_ context.Context, file string, limit int) ([]byte, error) {
	if strings.HasSuffix(file, ".bin") {
		return []byte("\x00\x1b[2Jabc"), nil
	}
	return []byte("package main\n\x1b]0;x\a// \u202eevil\nfunc main() {}\n"), nil
}

func (f fake) run(t *Tree, cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch m := cmd().(type) {
	case Msg:
		f.run(t, t.Got(context.Background(), m))
	case tea.BatchMsg:
		for _, c := range m {
			f.run(t, c)
		}
	}
}

func hostile() fake {
	return fake{"/work/repo": {
		{Path: "/work/repo/src", Kind: agent.KindDir}, {Path: "/work/repo/main.go", Kind: agent.KindFile, Size: 50, Mode: 0o644},
		{Path: "/work/repo/..", Kind: agent.KindDir}, {Path: "/work/repo/", Kind: agent.KindDir}, {Path: "../../etc/passwd", Kind: agent.KindFile},
		{Path: "/work/repo/a\x1b[2J\n you  b", Kind: agent.KindFile}, {Path: "/work/repo/link", Kind: "symlink"}, {Path: "/work/repo/x.bin", Kind: agent.KindFile, Size: 9},
		{Path: "/work/repo/odd", Kind: "\x1b[31mkind"}, {Path: "/work/repo/gone", Kind: agent.KindDir},
	}, "/work/repo/src": {{Path: "/work/repo/src/store.go", Kind: agent.KindFile, Size: 2000}}}
}

func TestTree(t *testing.T) {
	f, tree := hostile(), New(theme.New(true))
	f.run(tree, tree.Start(context.Background(), f))
	key := func(k string) {
		p := tea.KeyPressMsg{Code: rune(k[0]), Text: k}
		if k == "enter" {
			p = tea.KeyPressMsg{Code: tea.KeyEnter}
		}
		f.run(tree, tree.Key(context.Background(), p))
	}
	screen := func() string {
		for _, z := range [][2]int{{100, 20}, {40, 12}, {60, 30}} {
			lines := tree.View(z[0], z[1])
			if len(lines) != z[1] {
				t.Fatalf("%d lines of %d", len(lines), z[1])
			}
			for _, l := range lines {
				if ansi.StringWidth(l) != z[0] {
					t.Fatalf("%q is %d wide", l, ansi.StringWidth(l))
				}
			}
		}
		s := ansi.Strip(strings.Join(tree.View(100, 20), "\n"))
		if strings.ContainsAny(s, "\x1b\a\u202e") {
			t.Fatalf("%q", s)
		}
		return s
	}
	if s := screen(); !strings.Contains(s, "▸ src") || !strings.Contains(s, `a\x1b[2J\n you  b`) || strings.Contains(s, "etc") {
		t.Error(s)
	}
	for range tree.rows {
		if e, _ := tree.current(); e.name == "src" {
			break
		}
		key("j")
	}
	key("enter")
	if s := screen(); !strings.Contains(s, "store.go") {
		t.Error(s)
	}
	key("enter")
	for range len(tree.rows) + 2 {
		if e, _ := tree.current(); e.name == "main.go" {
			break
		}
		key("j")
	}
	if s := screen(); !strings.Contains(s, `\x1b]0;x\a// \u202eevil`) || !strings.Contains(s, "func main() {}") {
		t.Error(s)
	}
	for range tree.rows {
		key("j")
		screen()
	}
	tree.at = 0
	for i, r := range tree.rows {
		if r.name == "gone" {
			tree.at = i
		}
	}
	key("enter")
	screen()
}

// Nothing of the sandbox makes this machine open a file that is not below the mount.
func TestOnHost(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "mount")
	os.MkdirAll(filepath.Join(mount, "sub"), 0o755)
	os.WriteFile(filepath.Join(mount, "main.go"), nil, 0o644)
	os.WriteFile(filepath.Join(dir, "secret"), nil, 0o644)
	os.Symlink("../secret", filepath.Join(mount, "evil"))
	os.Symlink("..", filepath.Join(mount, "dir"))
	mounts := []store.Mount{{Dir: "/nonexistent", GuestPath: "/other"}, {Dir: mount, GuestPath: "/work/repo"}}
	for _, tc := range []struct {
		path, kind string
		ok         bool
	}{
		{"/work/repo/main.go", agent.KindFile, true}, {"/work/repo/evil", agent.KindFile, false}, {"/work/repo/dir/secret", agent.KindFile, false},
		{"/work/repo/main.go", "symlink", false}, {"/etc/passwd", agent.KindFile, false}, {"/work/repo/none", agent.KindFile, false},
	} {
		tree := New(theme.New(true))
		tree.rows = []row{{entry: entry{name: filepath.Base(tc.path), path: tc.path, kind: tc.kind}}}
		got, err := tree.OnHost(mounts)
		if (err == nil) != tc.ok || tc.ok && got != filepath.Join(mount, "main.go") {
			t.Errorf("%s: %q %v", tc.path, got, err)
		}
	}
}
