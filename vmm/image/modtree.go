package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// moduleTree is a copy or a part of /lib/modules/<version>.
type moduleTree struct {
	dir        string
	paths      map[string]string // module name → path below dir
	builtin    map[string]bool
	hasBuiltin bool // there is a modules.builtin
}

// maxModule bounds an unpacked module: far above any real one.
const maxModule = 64 << 20

var moduleFile = regexp.MustCompile(`\.ko(\.(xz|zst|gz))?$`)

// openModuleTree reads which modules there are. dir "" is the tree of a kernel without modules.
func openModuleTree(dir string) (*moduleTree, error) {
	t := &moduleTree{paths: map[string]string{}, builtin: map[string]bool{}}
	if dir == "" {
		return t, nil
	}
	real, err := filepath.EvalSymlinks(dir) // a walk does not start at a link
	if err != nil {
		return nil, fmt.Errorf("modules directory: %w", err)
	}
	t.dir = real
	list, err := os.ReadFile(filepath.Join(real, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("modules directory: %w", err)
	}
	t.hasBuiltin = err == nil
	for line := range strings.SplitSeq(string(list), "\n") {
		if name := moduleName(line); name != "" {
			t.builtin[name] = true
		}
	}
	if err := t.index(); err != nil {
		return nil, fmt.Errorf("modules directory %s: %w", dir, err)
	}
	return t, nil
}

// index finds the modules: from modules.dep, which knows which of two files of one name counts, else by looking.
func (t *moduleTree) index() error {
	dep, err := os.ReadFile(filepath.Join(t.dir, "modules.dep"))
	if err == nil {
		for line := range strings.SplitSeq(string(dep), "\n") {
			path, _, ok := strings.Cut(line, ":")
			if ok && moduleFile.MatchString(path) && filepath.IsLocal(path) {
				t.paths[moduleName(path)] = path
			}
		}
		if len(t.paths) > 0 {
			return nil
		}
	}
	return filepath.WalkDir(t.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || !moduleFile.MatchString(d.Name()) {
			return nil
		}
		rel, err := filepath.Rel(t.dir, path)
		if err != nil {
			return err
		}
		// updates/ holds what replaces a module of the kernel's own.
		name := moduleName(rel)
		if _, ok := t.paths[name]; !ok || strings.HasPrefix(rel, "updates/") {
			t.paths[name] = rel
		}
		return nil
	})
}

// read returns the module's contents, unpacked.
func (t *moduleTree) read(ctx context.Context, name string) ([]byte, error) {
	path := filepath.Join(t.dir, t.paths[name])
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("kernel module: %w", err)
	}
	defer f.Close()
	out := &limitedBuffer{max: maxModule}
	if err := decompress(ctx, out, f); err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", path, err)
	}
	return out.Bytes(), nil
}

// limitedBuffer is a buffer that refuses to grow past max.
type limitedBuffer struct {
	bytes.Buffer
	max int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.max {
		return 0, fmt.Errorf("larger than %d MiB", b.max>>20)
	}
	return b.Buffer.Write(p)
}
