package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// source is a project on the host.
type source struct {
	kind   string
	dir    string // absolute
	head   string
	branch string // full name of the reference, "": detached
	format string
	paths  []string // of files, folders included where they are known
	// absent are tracked files that a sparse checkout leaves out.
	absent  []string
	ignore  []byte
	skipped []Skipped
}

func (s *source) skip(path string, why error) {
	if len(s.skipped) < maxSkipped {
		s.skipped = append(s.skipped, Skipped{Path: path, Why: why.Error()})
	}
}

// find looks at a folder on the host: the git work tree that it is in, or else
// the folder itself.
func find(ctx context.Context, dir string) (*source, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, err
	}
	if st, err := os.Stat(abs); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", dir)
	}
	s := &source{kind: KindFolder, dir: abs, format: "sha1"}
	g := hostGit{dir: abs}
	out, err := g.run(ctx, "rev-parse", "--is-inside-work-tree", "--show-object-format")
	var failed *gitError
	switch {
	case errors.As(err, &failed) && strings.Contains(failed.said, "not a git repository"):
		return s, nil
	case err != nil:
		return nil, err
	}
	inside, format, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if inside != "true" {
		return nil, fmt.Errorf("%s is inside a git repository but not in its work tree; give the work tree", dir)
	}
	top, err := g.run(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	s.kind, s.format, s.dir = KindGit, format, strings.TrimSuffix(string(top), "\n")
	return s, s.describe(ctx)
}

// list finds the files to bring. Folders are added to those that are found in
// git, which knows none.
func (s *source) list(ctx context.Context, t *hostTree) error {
	if s.kind == KindFolder {
		var err error
		s.paths, err = t.walk(s.skip)
		return err
	}
	paths, err := s.gitFiles(ctx, s.dir, "", 0)
	s.paths = withFolders(paths)
	return err
}

// describe reads what the repository is at.
func (s *source) describe(ctx context.Context) error {
	g := hostGit{dir: s.dir}
	if out, err := g.run(ctx, "symbolic-ref", "-q", "HEAD"); err == nil {
		s.branch = strings.TrimSpace(string(out))
	}
	if out, err := g.run(ctx, "rev-parse", "-q", "--verify", "HEAD^{commit}"); err == nil {
		s.head = strings.TrimSpace(string(out))
	} else if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	exclude, err := g.run(ctx, "rev-parse", "--git-path", "info/exclude")
	if err != nil {
		return err
	}
	path := strings.TrimSuffix(string(exclude), "\n")
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	global := ""
	if out, err := g.run(ctx, "config", "--type=path", "--get", "core.excludesFile"); err == nil {
		global = strings.TrimSuffix(string(out), "\n")
	} else if dir, err := os.UserConfigDir(); err == nil {
		global = filepath.Join(dir, "git", "ignore")
	}
	for _, p := range []string{global, path} {
		if b := readSome(p, 512<<10); len(b) > 0 {
			s.ignore = append(append(s.ignore, b...), '\n')
		}
	}
	return nil
}

func readSome(path string, most int64) []byte {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return b
}

// maxNested is how deep repositories may be inside each other.
const maxNested = 16

// gitFiles lists the tracked files and those that are not ignored, of the
// submodules and of other repositories inside too.
func (s *source) gitFiles(ctx context.Context, dir, prefix string, depth int) ([]string, error) {
	g, done, err := privateIndex(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer done()
	staged, err := g.run(ctx, "ls-files", "-z", "--cached", "--stage", "-t")
	if err != nil {
		return nil, err
	}
	others, err := g.run(ctx, "ls-files", "-z", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	var found, nested []string
	last := ""
	for entry := range strings.SplitSeq(string(staged), "\x00") {
		// "TAG MODE OBJECT STAGE<tab>PATH"
		info, path, ok := strings.Cut(entry, "\t")
		if !ok || path == last { // conflicts are named up to three times
			continue
		}
		last = path
		tag, mode, _ := strings.Cut(info, " ")
		switch {
		case strings.HasPrefix(mode, "160000"):
			nested = append(nested, path)
		case tag == "S" && prefix == "":
			s.absent = append(s.absent, path)
			found = append(found, prefix+path)
		default:
			found = append(found, prefix+path)
		}
	}
	for path := range strings.SplitSeq(string(others), "\x00") {
		if strings.HasSuffix(path, "/") {
			nested = append(nested, strings.TrimSuffix(path, "/"))
		} else if path != "" {
			found = append(found, prefix+path)
		}
	}
	for _, path := range nested {
		inner := filepath.Join(dir, path)
		if _, err := os.Lstat(filepath.Join(inner, ".git")); err != nil {
			found = append(found, prefix+path) // a submodule that is not checked out: an empty folder
			continue
		}
		if depth >= maxNested {
			s.skip(prefix+path, errors.New("too many repositories inside each other"))
			continue
		}
		more, err := s.gitFiles(ctx, inner, prefix+path+"/", depth+1)
		var failed *gitError
		if errors.As(err, &failed) {
			s.skip(prefix+path, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(append(found, prefix+path), more...)
	}
	if len(found) > maxEntries {
		return nil, fmt.Errorf("the work tree has more than %d files", maxEntries)
	}
	return found, nil
}

// hostGit is a repository of the user's. It is only asked.
type hostGit struct {
	dir   string
	index string // a private copy of its index, "": its own
}

func (g hostGit) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "core.fsmonitor=false", "-c", "core.quotePath=true", "--no-pager"}, args...)...)
	cmd.Dir = g.dir
	cmd.Env = environ()
	if g.index != "" {
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+g.index)
	}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (g hostGit) run(ctx context.Context, args ...string) ([]byte, error) {
	return output(ctx, g.command(ctx, args...))
}

// privateIndex copies the index of a repository, so that nothing that is asked
// can change it.
func privateIndex(ctx context.Context, dir string) (g hostGit, done func(), err error) {
	g = hostGit{dir: dir}
	out, err := g.run(ctx, "rev-parse", "--show-toplevel", "--git-path", "index")
	if err != nil {
		return g, nil, err
	}
	top, path, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
	if real, err := filepath.EvalSymlinks(dir); err != nil || real != top {
		return g, nil, &gitError{what: "rev-parse", said: fmt.Sprintf("%s is no repository of its own", dir)}
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	temp, err := os.MkdirTemp("", "msb-index-")
	if err != nil {
		return g, nil, err
	}
	done = func() { os.RemoveAll(temp) }
	g.index = filepath.Join(temp, "index")
	in, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return g, done, nil // nothing was ever added
	}
	if err == nil {
		err = os.WriteFile(g.index, bytes.Clone(in), 0o600)
	}
	if err != nil {
		done()
		return g, nil, err
	}
	return g, done, nil
}
