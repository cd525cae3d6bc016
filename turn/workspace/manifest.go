package workspace

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	wire "msb/protocol/worktree"
)

// File is a file of a tree, by its content.
type File struct {
	Kind  byte   `json:"k"` // of package protocol/worktree: dir, file or link
	Mode  uint32 `json:"m"` // permissions
	ID    string `json:"o,omitempty"`
	Size  int64  `json:"s,omitempty"`
	Stamp string `json:"-"` // the guest's word for the content
}

// gitMode is the mode of a file in a git tree.
func (f File) gitMode() string {
	switch {
	case f.Kind == wire.KindLink:
		return "120000"
	case f.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// same tells whether git sees no difference.
func (f File) same(g File) bool {
	if f.Kind == wire.KindDir || g.Kind == wire.KindDir {
		return f.Kind == g.Kind
	}
	return f.ID == g.ID && f.gitMode() == g.gitMode()
}

// Manifest is a tree: its files by path.
type Manifest map[string]File

// sorted returns the paths, parents first.
func (m Manifest) sorted() []string {
	paths := make([]string, 0, len(m))
	for p := range m {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths
}

// maxEntries bounds the files of a tree, maxNames the bytes of their paths.
const (
	maxEntries = 1 << 20
	maxNames   = 256 << 20
)

// builder makes a manifest of entries that may be hostile.
type builder struct {
	Manifest
	names int
}

func newBuilder() *builder { return &builder{Manifest: make(Manifest)} }

// add adds a file whose folders were added before.
func (b *builder) add(path string, f File) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if _, twice := b.Manifest[path]; twice {
		return fmt.Errorf("path %q comes twice", path)
	}
	if i := strings.LastIndexByte(path, '/'); i >= 0 && b.Manifest[path[:i]].Kind != wire.KindDir {
		return fmt.Errorf("path %q comes without its folder", path)
	}
	if b.names += len(path); len(b.Manifest) >= maxEntries || b.names > maxNames {
		return fmt.Errorf("the tree has more than %d files, or %d bytes of names", maxEntries, maxNames)
	}
	b.Manifest[path] = f
	return nil
}

// checkPath refuses paths that must not be in a tree: those that leave it, and
// those of git's own files, under every name that some file system takes for
// theirs.
func checkPath(path string) error {
	if err := wire.CheckPath(path); err != nil {
		return err
	}
	for part := range strings.SplitSeq(path, "/") {
		if isGitName(part) {
			return fmt.Errorf("path %q is inside git's own files", path)
		}
	}
	return nil
}

// isGitName tells whether a name is ".git", or is so to a file system that
// folds case, drops ignorable characters or trailing dots and spaces, or has
// short names and streams.
func isGitName(name string) bool {
	name, _, _ = strings.Cut(name, ":")
	name = strings.TrimRight(name, ". ")
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name)
	if i := strings.LastIndexByte(name, '\\'); i >= 0 {
		return isGitName(name[i+1:]) || isGitName(name[:i])
	}
	return strings.EqualFold(name, ".git") || strings.EqualFold(name, "git~1")
}

// line is a file in a stored manifest.
type line struct {
	Path []byte `json:"p"`
	File
	RawStamp []byte `json:"t,omitempty"`
}

func (w *Workspace) manifestPath(name string) string {
	return filepath.Join(w.dir, "trees", name+".gz")
}

// store keeps a manifest.
func (w *Workspace) store(name string, m Manifest) (err error) {
	path := w.manifestPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("keep the list of files: %w", err)
		}
	}()
	buf := bufio.NewWriter(f)
	z, _ := gzip.NewWriterLevel(buf, gzip.BestSpeed)
	enc := json.NewEncoder(z)
	for _, p := range m.sorted() {
		f := m[p]
		stamp := f.Stamp
		f.Stamp = ""
		if err = enc.Encode(line{Path: []byte(p), File: f, RawStamp: []byte(stamp)}); err != nil {
			return err
		}
	}
	if err = z.Close(); err != nil {
		return err
	}
	if err = buf.Flush(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// tree reads a manifest that was kept.
func (w *Workspace) tree(name string) (Manifest, error) {
	f, err := os.Open(w.manifestPath(name))
	if err != nil {
		return nil, fmt.Errorf("list of files: %w", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("list of files %s: %w", name, err)
	}
	m := make(Manifest)
	for dec := json.NewDecoder(z); ; {
		var l line
		err := dec.Decode(&l)
		if err == io.EOF {
			return m, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list of files %s: %w", name, err)
		}
		l.Stamp = string(l.RawStamp)
		m[string(l.Path)] = l.File
	}
}
