// Package files is the view of a sandbox's files: a tree, and the beginning of
// the file under the cursor.
package files

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/protocol/agent"
	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/theme"
	"msb/vmm/store"
)

// Msg is something that the tree asked for.
type Msg struct {
	tree    *Tree
	path    string
	entries []entry
	lines   []string
	preview bool
	err     error
}

// Tree is the view. It belongs to one sandbox.
type Tree struct {
	theme  *theme.Theme
	source Source
	root   string
	dirs   map[string][]entry // that were read
	open   map[string]bool
	failed map[string]string
	rows   []row
	at     int
	top    int
	height int

	shown  string // path of the preview
	lines  []string
	scroll int
	asked  string
}

type row struct {
	entry
	depth int
}

// New returns a tree without a source.
func New(t *theme.Theme) *Tree {
	return &Tree{theme: t, dirs: map[string][]entry{}, open: map[string]bool{}, failed: map[string]string{}}
}

// SetTheme changes the colours.
func (t *Tree) SetTheme(th *theme.Theme) { t.theme = th }

// Ready tells whether the tree has a source.
func (t *Tree) Ready() bool { return t.source != nil }

// Close is for symmetry: the tree holds no connection.
func (t *Tree) Close(*sync.WaitGroup) {}

// Start reads the workspace, or where there is none the user's home.
func (t *Tree) Start(ctx context.Context, s Source) tea.Cmd {
	t.source = s
	return func() tea.Msg {
		var err error
		for _, root := range []string{"/work/repo", "/home/dev", "/"} {
			var l []entry
			if l, err = list(ctx, s, root); err == nil {
				return Msg{tree: t, path: root, entries: l}
			}
		}
		return Msg{tree: t, path: "/", err: err}
	}
}

// Refresh reads again what is open.
func (t *Tree) Refresh(ctx context.Context) tea.Cmd {
	if t.source == nil || t.root == "" {
		return nil
	}
	cmds := []tea.Cmd{t.read(ctx, t.root)}
	for dir := range t.open {
		cmds = append(cmds, t.read(ctx, dir))
	}
	t.shown = ""
	return tea.Batch(cmds...)
}

func (t *Tree) read(ctx context.Context, dir string) tea.Cmd {
	s := t.source
	return func() tea.Msg {
		l, err := list(ctx, s, dir)
		return Msg{tree: t, path: dir, entries: l, err: err}
	}
}

// Got takes what was asked for.
func (t *Tree) Got(ctx context.Context, m Msg) tea.Cmd {
	if m.tree != t {
		return nil
	}
	if m.preview {
		if m.path == t.asked {
			t.shown, t.lines, t.scroll = m.path, m.lines, 0
			if m.err != nil {
				t.lines = []string{foreign.Text(m.err.Error())}
			}
		}
		return nil
	}
	delete(t.failed, m.path)
	if m.err != nil {
		t.failed[m.path] = foreign.Text(m.err.Error())
	}
	if t.root == "" {
		t.root = m.path
	}
	t.dirs[m.path] = m.entries
	t.lay()
	return t.look(ctx)
}

// lay makes the rows from what is open.
func (t *Tree) lay() {
	t.rows = nil
	t.walk(t.root, 0)
	t.at = max(0, min(t.at, len(t.rows)-1))
}

func (t *Tree) walk(dir string, depth int) {
	for _, e := range t.dirs[dir] {
		t.rows = append(t.rows, row{e, depth})
		if e.kind == agent.KindDir && t.open[e.path] && depth < 40 {
			t.walk(e.path, depth+1)
		}
	}
}

// look asks for the preview of the file under the cursor.
func (t *Tree) look(ctx context.Context) tea.Cmd {
	e, ok := t.current()
	if !ok || e.path == t.shown {
		return nil
	}
	t.asked = e.path
	if e.kind == agent.KindDir {
		t.shown, t.lines = e.path, nil
		return nil
	}
	s := t.source
	return func() tea.Msg {
		lines, err := preview(ctx, s, e)
		return Msg{tree: t, path: e.path, lines: lines, preview: true, err: err}
	}
}

func (t *Tree) current() (entry, bool) {
	if t.at >= len(t.rows) {
		return entry{}, false
	}
	return t.rows[t.at].entry, true
}

// Key is a key for the tree.
func (t *Tree) Key(ctx context.Context, k tea.KeyPressMsg) tea.Cmd {
	page := max(t.height-2, 1)
	switch k.String() {
	case "up", "k":
		t.at--
	case "down", "j":
		t.at++
	case "pgup", "ctrl+b":
		t.at -= page
	case "pgdown", "ctrl+f":
		t.at += page
	case "home", "g":
		t.at = 0
	case "end", "G":
		t.at = len(t.rows)
	case "ctrl+d", "J":
		t.scroll = min(t.scroll+page/2+1, max(len(t.lines)-1, 0))
		return nil
	case "ctrl+u", "K":
		t.scroll = max(t.scroll-page/2-1, 0)
		return nil
	case "r":
		return t.Refresh(ctx)
	case "enter", "right", "l", "space":
		if e, ok := t.current(); ok && e.kind == agent.KindDir {
			if t.open[e.path] && k.String() != "right" {
				delete(t.open, e.path)
				t.lay()
				return nil
			}
			t.open[e.path] = true
			t.lay()
			return t.read(ctx, e.path)
		}
		return nil
	case "left", "h":
		e, ok := t.current()
		if !ok {
			return nil
		}
		if e.kind == agent.KindDir && t.open[e.path] {
			delete(t.open, e.path)
		} else if parent := path.Dir(e.path); parent != t.root {
			for i, r := range t.rows {
				if r.path == parent {
					t.at = i
				}
			}
		} else if up := path.Dir(t.root); up != t.root {
			t.root, t.at = up, 0
			return t.read(ctx, up)
		}
		t.lay()
	}
	t.at = max(0, min(t.at, len(t.rows)-1))
	return t.look(ctx)
}

// Current is the path under the cursor, as the guest calls it.
func (t *Tree) Current() (string, bool) {
	e, ok := t.current()
	return e.path, ok
}

// Folder is the folder that is under the cursor, or that holds what is.
func (t *Tree) Folder() string {
	e, ok := t.current()
	switch {
	case !ok:
		return t.root
	case e.kind == agent.KindDir:
		return e.path
	}
	return path.Dir(e.path)
}

// OnHost is where the file under the cursor is on this machine, through a
// mount. What the guest could make lead elsewhere is refused.
func (t *Tree) OnHost(mounts []store.Mount) (string, error) {
	e, ok := t.current()
	if !ok {
		return "", fmt.Errorf("no file is chosen")
	}
	if e.kind != agent.KindFile {
		return "", fmt.Errorf("%s is a %s; only files are opened", foreign.Text(e.name), foreign.Text(e.kind))
	}
	for _, m := range mounts {
		rel, err := filepath.Rel(m.GuestPath, e.path)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		root, err := os.OpenRoot(m.Dir)
		if err != nil {
			return "", fmt.Errorf("open the mount: %w", err)
		}
		defer root.Close()
		at := ""
		for part := range strings.SplitSeq(rel, "/") {
			at = filepath.Join(at, part)
			st, err := root.Lstat(at)
			if err != nil {
				return "", fmt.Errorf("open through the mount: %w", err)
			}
			if st.Mode()&fs.ModeSymlink != 0 {
				return "", fmt.Errorf("%s is a link; a link of the sandbox is not followed on this machine", foreign.Text(at))
			}
		}
		return filepath.Join(m.Dir, rel), nil
	}
	return "", fmt.Errorf("no mount shows this file: `msb mount` first")
}

// View draws the tree, and the preview where there is room.
func (t *Tree) View(w, h int) []string {
	t.height = h
	tw := w
	if w >= 60 {
		tw = max(24, w*2/5)
	}
	th := h
	if w < 60 && h >= 12 {
		th = h * 3 / 5
	}
	t.top = max(min(t.top, t.at), t.at-th+2)
	t.top = max(t.top, 0)
	head := t.theme.Bold.Render(" " + foreign.Text(t.root))
	if why := t.failed[t.root]; why != "" {
		head = t.theme.Fail.Render(" " + why)
	} else if t.root == "" {
		head = t.theme.Dim.Render(" reading …")
	}
	left := []string{head}
	for i := t.top; i < len(t.rows) && len(left) < th; i++ {
		r := t.rows[i]
		mark, size := "  ", ""
		switch r.kind {
		case agent.KindDir:
			mark = "▸ "
			if t.open[r.path] {
				mark = "▾ "
			}
		case agent.KindFile:
			size = Size(r.size)
		default:
			size = foreign.Text(r.kind)
		}
		line := pane.Split(" "+strings.Repeat("  ", min(r.depth, 12))+mark+foreign.Text(r.name), " "+size+" ", tw-1)
		if why := t.failed[r.path]; why != "" {
			line = pane.Fit(line, tw-1)
		}
		switch {
		case i == t.at:
			line = t.theme.Sel.Render(line)
		case r.kind == agent.KindDir:
			line = t.theme.Accent.Render(line)
		}
		left = append(left, line)
	}
	if len(t.rows) == 0 && t.root != "" && t.failed[t.root] == "" {
		left = append(left, t.theme.Dim.Render("   empty"))
	}
	right := t.previewLines()
	if w < 60 {
		out := pane.Block(left, w, th)
		if h > th {
			out = append(out, t.theme.Dim.Render(strings.Repeat("─", w)))
			out = append(out, right[min(t.scroll, len(right)):]...)
		}
		return pane.Block(out, w, h)
	}
	bar := make([]string, h)
	for i := range bar {
		bar[i] = t.theme.Dim.Render("│") + " "
	}
	return pane.Beside(pane.Block(left, tw, h), bar, pane.Block(right[min(t.scroll, len(right)):], w-tw-2, h))
}

func (t *Tree) previewLines() []string {
	e, ok := t.current()
	if !ok {
		return nil
	}
	about := foreign.Text(e.name) + t.theme.Dim.Render(fmt.Sprintf("  %s  %s  %s", Size(e.size), fs.FileMode(e.mode&0o777), modified(e.time)))
	lines := []string{about, ""}
	if t.shown == e.path {
		return append(lines, t.lines...)
	}
	return append(lines, t.theme.Dim.Render("reading …"))
}

func modified(sec int64) string {
	if sec <= 0 {
		return ""
	}
	return time.Unix(sec, 0).Format("2006-01-02 15:04")
}

// Size is a number of bytes for people.
func Size(n uint64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1000*1000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1000*1000*1000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}
