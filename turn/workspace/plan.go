package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	wire "msb/protocol/worktree"
)

// ErrRefused reports a patch that does what no patch from a sandbox may do.
var ErrRefused = errors.New("patch refused")

// ConflictError reports files of the host that a patch does not fit.
type ConflictError struct {
	Paths []string // may be hostile
	Why   string
}

func (e *ConflictError) Error() string {
	quoted := make([]string, 0, len(e.Paths))
	for _, p := range e.Paths {
		if len(quoted) == 10 {
			quoted = append(quoted, fmt.Sprintf("and %d more", len(e.Paths)-10))
			break
		}
		quoted = append(quoted, fmt.Sprintf("%q", p))
	}
	return fmt.Sprintf("the patch does not fit %s: %s; nothing was changed", strings.Join(quoted, ", "), e.Why)
}

// Plan is a patch that fits a folder of the host, before it is applied. What
// it does was worked out in the private repository, by git, from copies of the
// files concerned; nothing in the folder has been touched.
type Plan struct {
	Dir     string
	Summary Summary
	// Notable are files that programs on the host take orders from.
	Notable []string

	repo   repo
	before Manifest // the files concerned, as they are on the host
	after  Manifest
}

// Plan reads a patch for a folder of the host, the one that the workspace was
// brought from or another. A patch that leaves the folder, reaches into .git,
// makes links that lead out, goes through a link or changes a submodule is
// ErrRefused; one that does not fit is a *ConflictError.
func (w *Workspace) Plan(ctx context.Context, dir string, patch io.Reader) (*Plan, error) {
	unlock, err := w.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	format := "sha1"
	if s, err := w.load(); err == nil {
		format = s.Baseline.Format
	} else if !errors.Is(err, ErrNone) {
		return nil, err
	}
	r, err := w.open(ctx, format)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	t, err := openHost(dir)
	if err != nil {
		return nil, fmt.Errorf("apply a patch: %w", err)
	}
	defer t.Close()
	temp, err := os.MkdirTemp(w.dir, ".apply-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	f, err := os.Create(filepath.Join(temp, "patch"))
	if err != nil {
		return nil, err
	}
	hints, err := copyPatch(f, patch)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{Dir: dir, repo: r}
	if p.before, err = p.read(ctx, t, hints, format); err != nil {
		return nil, err
	}
	if err := p.work(ctx, filepath.Join(temp, "index"), f.Name()); err != nil {
		if !errors.Is(err, ErrRefused) {
			err = errors.Join(p.refusal(t, hints), err)
		}
		return nil, err
	}
	if err := p.check(ctx, t); err != nil {
		return nil, err
	}
	return p, nil
}

// refusal is why a patch that git could not apply would have been refused: it
// names a path that none may have.
func (p *Plan) refusal(t *hostTree, named []string) error {
	for _, name := range named {
		err := checkPath(name)
		if err == nil {
			err = p.reachable(t, name)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	return nil
}

// read copies the files that a patch may concern into the private repository.
func (p *Plan) read(ctx context.Context, t *hostTree, paths []string, format string) (Manifest, error) {
	i, err := newImporter(ctx, p.repo, format)
	if err != nil {
		return nil, err
	}
	defer i.abandon()
	m := make(Manifest)
	for _, path := range paths {
		if checkPath(path) != nil {
			continue // git is going to miss it; it is refused anyway
		}
		st, absent, err := t.lstat(path)
		if absent {
			continue
		}
		if err != nil {
			return nil, err
		}
		f := File{Mode: st.Mode & 0o777}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := t.readlink(path)
			if err != nil {
				return nil, err
			}
			f.Kind = wire.KindLink
			if f.ID, err = i.text(target); err != nil {
				return nil, err
			}
		case unix.S_IFREG:
			f.Kind = wire.KindFile
			in, st, err := t.regular(path)
			if err != nil {
				return nil, err
			}
			f.ID, _, err = i.blob(st.Size, in)
			in.Close()
			if err != nil {
				return nil, err
			}
		default:
			continue // a folder; what is neither is a conflict later
		}
		m[path] = f
	}
	// A path that is a file and one below it cannot both be.
	for path := range m {
		for up := parent(path); up != ""; up = parent(up) {
			if m[up].Kind != 0 {
				delete(m, path)
			}
		}
	}
	if err := i.tree("refs/msb/host", m); err != nil {
		return nil, err
	}
	return m, i.finish()
}

func parent(p string) string {
	if p = path.Dir(p); p == "." || p == "/" {
		return ""
	}
	return p
}

// work applies the patch to an index that nobody sees, and reads what came of
// it.
func (p *Plan) work(ctx context.Context, index, patch string) error {
	git := func(args ...string) ([]byte, error) {
		cmd := p.repo.command(ctx, args...)
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+index)
		return output(ctx, cmd)
	}
	if _, err := git("read-tree", "refs/msb/host"); err != nil {
		return err
	}
	if st, err := os.Stat(patch); err != nil || st.Size() == 0 {
		p.after = p.before // git takes no empty patch
		return err
	}
	if _, err := git("apply", "--cached", "--3way", "--whitespace=nowarn", patch); err != nil {
		var failed *gitError
		if !errors.As(err, &failed) {
			return err
		}
		return p.misfit(git, failed)
	}
	unmerged, err := git("ls-files", "-u", "-z")
	if err != nil {
		return err
	}
	if len(unmerged) > 0 {
		return p.misfit(git, &gitError{what: "apply", said: "both changed the same lines"})
	}
	id, err := git("write-tree")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	tree := strings.TrimSpace(string(id))
	if p.Summary, err = p.repo.changes(ctx, "refs/msb/host", tree); err != nil {
		return err
	}
	listed, err := p.repo.run(ctx, "ls-tree", "-r", "-z", "--long", tree)
	if err != nil {
		return err
	}
	p.after = make(Manifest)
	for line := range strings.SplitSeq(string(listed), "\x00") {
		// "MODE TYPE ID SIZE<tab>PATH"
		info, path, ok := strings.Cut(line, "\t")
		part := strings.Fields(info)
		if !ok || len(part) != 4 {
			continue
		}
		f := File{ID: part[2]}
		switch part[0] {
		case "100644":
			f.Kind, f.Mode = wire.KindFile, 0o644
		case "100755":
			f.Kind, f.Mode = wire.KindFile, 0o755
		case "120000":
			f.Kind, f.Mode = wire.KindLink, 0o777
		default:
			return fmt.Errorf("%w: it changes the submodule %q", ErrRefused, path)
		}
		p.after[path] = f
	}
	return nil
}

// misfit says what git could not do.
func (p *Plan) misfit(git func(...string) ([]byte, error), failed *gitError) error {
	c := &ConflictError{Why: "both sides changed it"}
	if unmerged, err := git("ls-files", "-u", "-z"); err == nil {
		for line := range strings.SplitSeq(string(unmerged), "\x00") {
			if _, path, ok := strings.Cut(line, "\t"); ok && !slices.Contains(c.Paths, path) {
				c.Paths = append(c.Paths, path)
			}
		}
	}
	if len(c.Paths) > 0 {
		return c
	}
	said := tame(failed.said)
	if strings.Contains(failed.said, "invalid path") || strings.Contains(failed.said, "beyond a symbolic link") {
		return fmt.Errorf("%w: %s", ErrRefused, said)
	}
	return fmt.Errorf("the patch does not fit; nothing was changed: %s", said)
}

// check refuses what a patch from a sandbox may not do, whatever git thinks of
// it, and finds what is worth a look.
func (p *Plan) check(ctx context.Context, t *hostTree) error {
	objects, err := p.repo.objects(ctx)
	if err != nil {
		return err
	}
	defer objects.close()
	for _, c := range p.Summary.Changes {
		for _, name := range []string{c.Path, c.From} {
			if name == "" {
				continue
			}
			if err := checkPath(name); err != nil {
				return fmt.Errorf("%w: %w", ErrRefused, err)
			}
			if err := p.reachable(t, name); err != nil {
				return fmt.Errorf("%w: %w", ErrRefused, err)
			}
		}
		if c.OldMode == "160000" || c.NewMode == "160000" {
			return fmt.Errorf("%w: it changes the submodule %q", ErrRefused, c.Path)
		}
		f, stays := p.after[c.Path]
		if stays && f.Kind == wire.KindLink {
			target, err := objects.text(f.ID, wire.MaxPath)
			if err != nil {
				return err
			}
			if leaves(c.Path, target) {
				return fmt.Errorf("%w: the link %q would lead out of the folder, to %q", ErrRefused, c.Path, target)
			}
		}
		if stays && notable(c) {
			p.Notable = append(p.Notable, c.Path)
		}
		if _, was := p.before[c.Path]; stays && !was {
			// Something that is no file could be in the place of a new one.
			if _, absent, err := t.lstat(c.Path); !absent && !p.empties(c.Path) {
				if err == nil {
					err = errors.New("a folder, or something that is no file, is there")
				}
				return &ConflictError{Paths: []string{c.Path}, Why: err.Error()}
			}
		}
	}
	return nil
}

// reachable refuses a path that goes through a link which the patch leaves.
func (p *Plan) reachable(t *hostTree, name string) error {
	for up := parent(name); up != ""; up = parent(up) {
		if _, was := p.before[up]; was && p.after != nil {
			if _, stays := p.after[up]; !stays {
				continue
			}
		}
		st, absent, err := t.lstat(up)
		switch {
		case errors.Is(err, unix.ELOOP):
			return fmt.Errorf("path %q goes through a link", name)
		case absent:
			continue
		case err != nil:
			return err
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			return fmt.Errorf("path %q goes through the link %q", name, up)
		}
	}
	return nil
}

// empties tells whether the patch removes files below a path.
func (p *Plan) empties(dir string) bool {
	for name := range p.before {
		if _, stays := p.after[name]; !stays && strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return false
}

// leaves tells whether a link leads out of the tree that it is in. Every part
// of the way counts: a link on it could lead further.
func leaves(link, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return true
	}
	depth := strings.Count(link, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			if depth--; depth < 0 {
				return true
			}
		case isGitName(part):
			return true
		default:
			depth++
		}
	}
	return false
}

// notable files make programs on the host do things when they are next run.
func notable(c Change) bool {
	base := strings.ToLower(path.Base(c.Path))
	switch base {
	case "makefile", "gnumakefile", "justfile", "package.json", "setup.py", "conftest.py", "pyproject.toml", "cmakelists.txt", "build.rs",
		"build.gradle", "rakefile", "dockerfile", "vagrantfile", "configure":
		return true
	}
	for part := range strings.SplitSeq(c.Path, "/") {
		// Settings of editors, shells, git, and services that build.
		if strings.HasPrefix(part, ".") && part != ".gitignore" {
			return true
		}
	}
	return c.NewMode == "100755" && c.OldMode != "100755" || c.NewMode == "120000"
}
