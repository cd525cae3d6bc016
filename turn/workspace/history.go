package workspace

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// history makes, below dir, the .git folder that the sandbox gets: the commits
// that lead to HEAD and the tags on them, or HEAD alone, the branch, an index,
// and a configuration that says nothing about the host. It has no remotes and
// no hooks.
func (s *source) history(ctx context.Context, dir string, alone bool) error {
	if err := initRepo(ctx, dir, s.format); err != nil {
		return err
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
	if s.format != "sha1" {
		config = strings.Replace(config, "= 0", "= 1", 1) + "[extensions]\n\tobjectFormat = " + s.format + "\n"
	}
	write := func(name, content string) error {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(content), 0o644)
	}
	if err := write("config", config); err != nil {
		return err
	}
	if err := write("info/exclude", string(s.ignore)); err != nil {
		return err
	}
	head := s.head + "\n"
	if s.branch != "" {
		head = "ref: " + s.branch + "\n"
	}
	if err := write("HEAD", head); err != nil {
		return err
	}
	if s.head == "" {
		return nil
	}
	tags, err := s.pack(ctx, dir, alone)
	if err != nil {
		return fmt.Errorf("copy the history: %w", err)
	}
	if s.branch != "" {
		if err := write(s.branch, s.head+"\n"); err != nil {
			return err
		}
	}
	if tags != "" {
		if err := write("packed-refs", "# pack-refs with:  sorted \n"+tags); err != nil {
			return err
		}
	}
	r := repo{dir: dir}
	if _, err := r.run(ctx, "read-tree", "HEAD"); err != nil {
		return fmt.Errorf("make an index: %w", err)
	}
	if len(s.absent) > 0 {
		cmd := r.command(ctx, "-c", "core.bare=false", "--work-tree="+dir, "update-index", "-z", "--skip-worktree", "--stdin")
		cmd.Stdin = strings.NewReader(strings.Join(s.absent, "\x00") + "\x00")
		// A file that was added and left out is not in this index.
		output(ctx, cmd)
	}
	return nil
}

// pack copies the objects and returns the tags, as lines of packed-refs.
func (s *source) pack(ctx context.Context, dir string, alone bool) (tags string, err error) {
	g := hostGit{dir: s.dir}
	revs := s.head + "\n"
	shallow := ""
	if alone {
		shallow = s.head + "\n"
		revs = "--shallow " + s.head + "\n" + revs
	} else {
		out, err := g.run(ctx, "for-each-ref", "--merged", "HEAD", "--format=%(objectname) %(refname)", "refs/tags")
		if err != nil {
			return "", err
		}
		tags = string(out)
		for line := range strings.Lines(tags) {
			id, _, _ := strings.Cut(line, " ")
			revs += id + "\n"
		}
		if shallow, err = s.shallow(ctx); err != nil {
			return "", err
		}
	}
	from := g.command(ctx, "pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset")
	from.Stdin = strings.NewReader(revs)
	var said bytes.Buffer
	from.Stderr = &said
	to := repo{dir: dir}.command(ctx, "index-pack", "--stdin")
	if to.Stdin, err = from.StdoutPipe(); err != nil {
		return "", err
	}
	var toSaid bytes.Buffer
	to.Stderr = &toSaid
	if err := from.Start(); err != nil {
		return "", failure(ctx, from, err, "")
	}
	toErr := to.Run()
	if toErr != nil {
		from.Process.Kill() // nobody reads what it writes
	}
	fromErr := from.Wait()
	if fromErr != nil && (said.Len() > 0 || toErr == nil) {
		return "", failure(ctx, from, fromErr, said.String())
	}
	if toErr != nil {
		return "", failure(ctx, to, toErr, toSaid.String())
	}
	if shallow != "" {
		if err := os.WriteFile(filepath.Join(dir, "shallow"), []byte(shallow), 0o644); err != nil {
			return "", err
		}
	}
	return tags, nil
}

// shallow returns the commits whose parents the repository does not have.
func (s *source) shallow(ctx context.Context) (string, error) {
	g := hostGit{dir: s.dir}
	out, err := g.run(ctx, "rev-parse", "--git-path", "shallow")
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(string(out), "\n")
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return "", nil
	}
	return string(b), err
}
