// Package transfer copies files between the host and sandboxes, in any direction: trees, modes, times and symlinks.
//
// A guest is hostile. Its file names are checked before they are used, and on the host nothing below the destination
// is ever reached through a symlink.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"
)

// Info is what is copied of a file besides its content.
type Info struct {
	Name         string
	Mode         fs.FileMode // type and permission bits
	Size         int64
	Atime, Mtime time.Time
}

// Source is where files come from. Paths are the user's own, extended by names that List returned.
type Source interface {
	Stat(ctx context.Context, path string, follow bool) (Info, error)
	List(ctx context.Context, path string) ([]Info, error)
	Readlink(ctx context.Context, path string) (string, error)
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	Join(dir, name string) string
	Base(path string) string
}

// Dir is an open directory at the destination.
type Dir interface {
	// Enter makes the directory name (or takes the one that is there) and opens it.
	Enter(ctx context.Context, info Info) (Dir, error)
	// File makes or replaces the regular file info.Name.
	File(ctx context.Context, info Info, content io.Reader) error
	Symlink(ctx context.Context, info Info, target string) error
	// Finish gives the directory the mode and times of info, if there is one, and closes it.
	Finish(ctx context.Context, info *Info) error
}

// Report is told of every piece that was copied; files counts those begun.
type Report func(name string, bytes int64, files int)

// Copier copies one source to one destination.
type Copier struct {
	From   Source
	Report Report               // may be nil
	Warn   func(string, ...any) // of what is left out; required

	files   int
	skipped int
}

// maxDepth bounds the nesting of directories: a guest can pretend to have any.
const maxDepth = 500

// ErrSkipped is returned when something was left out: special files, and what could not be read or named.
var ErrSkipped = errors.New("not everything could be copied")

// Copy copies src as to/name. The destination directory is finished whatever happens.
func (c *Copier) Copy(ctx context.Context, src string, info Info, to Dir) error {
	if err := c.node(ctx, src, info, to, 0); err != nil {
		return err
	}
	if c.skipped > 0 {
		return fmt.Errorf("%w: %d files were left out", ErrSkipped, c.skipped)
	}
	return nil
}

// Contents copies what is in the directory src into to.
func (c *Copier) Contents(ctx context.Context, src string, to Dir) error {
	if err := c.children(ctx, src, to, 0); err != nil {
		return err
	}
	if c.skipped > 0 {
		return fmt.Errorf("%w: %d files were left out", ErrSkipped, c.skipped)
	}
	return nil
}

func (c *Copier) node(ctx context.Context, src string, info Info, to Dir, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch info.Mode.Type() {
	case fs.ModeDir:
		return c.dir(ctx, src, info, to, depth)
	case fs.ModeSymlink:
		target, err := c.From.Readlink(ctx, src)
		if err != nil {
			return &sourceError{err}
		}
		if target == "" || strings.IndexByte(target, 0) >= 0 || len(target) > 4095 {
			return fmt.Errorf("symlink %q has an impossible target", src)
		}
		return to.Symlink(ctx, info, target)
	case 0:
		return c.file(ctx, src, info, to)
	}
	c.leaveOut(src, "it is neither a file nor a directory nor a symlink")
	return nil
}

func (c *Copier) leaveOut(src, why string) {
	c.skipped++
	c.Warn("%s: left out, %s", src, why)
}

// passed says whether the failure to read one entry of a directory costs that entry only, and if so leaves it out: the
// rest of a tree is not lost to one file that vanished, is closed to us or has a name that cannot be said.
func (c *Copier) passed(src string, err error) bool {
	switch {
	case !errors.As(err, new(*sourceError)):
		return false
	case strings.Contains(path.Base(src), "\uFFFD"):
		// The protocol carries UTF-8 only; in other names the guest puts this where their bytes were.
		c.leaveOut(src, "its name is not UTF-8")
	case errors.Is(err, fs.ErrNotExist):
		c.leaveOut(src, "it is gone")
	case errors.Is(err, fs.ErrPermission):
		c.leaveOut(src, "permission denied")
	default:
		return false
	}
	return true
}

// sourceError is a failure of the source to give the first bit of a file, a symlink or a directory.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

func (c *Copier) dir(ctx context.Context, src string, info Info, to Dir, depth int) (err error) {
	if depth >= maxDepth {
		return fmt.Errorf("%s: more than %d directories deep", src, maxDepth)
	}
	sub, err := to.Enter(ctx, info)
	if err != nil {
		return err
	}
	err = c.children(ctx, src, sub, depth+1)
	if ferr := sub.Finish(ctx, &info); err == nil {
		err = ferr
	}
	return err
}

func (c *Copier) children(ctx context.Context, src string, to Dir, depth int) error {
	entries, err := c.From.List(ctx, src)
	if err != nil {
		return &sourceError{err}
	}
	for _, e := range entries {
		if err := CheckName(e.Name); err != nil {
			return fmt.Errorf("%s: %w", src, err)
		}
		from := c.From.Join(src, e.Name)
		if !utf8.ValidString(e.Name) {
			c.leaveOut(from, "its name is not UTF-8")
			continue
		}
		if err := c.node(ctx, from, e, to, depth); err != nil && !c.passed(from, err) {
			return err
		}
	}
	return nil
}

func (c *Copier) file(ctx context.Context, src string, info Info, to Dir) error {
	r, err := c.From.Open(ctx, src)
	if err != nil {
		return &sourceError{err}
	}
	defer r.Close()
	c.files++
	c.report(info.Name, 0)
	return to.File(ctx, info, &counted{Reader: r, count: func(n int64) { c.report(info.Name, n) }})
}

func (c *Copier) report(name string, n int64) {
	if c.Report != nil {
		c.Report(name, n, c.files)
	}
}

// counted reports what passes through it, both when it is read and when it writes itself.
type counted struct {
	io.Reader
	count func(int64)
}

func (r *counted) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.count(int64(n))
	return n, err
}

func (r *counted) WriteTo(w io.Writer) (int64, error) {
	dst := &countedWriter{w: w, count: r.count}
	if wt, ok := r.Reader.(io.WriterTo); ok {
		return wt.WriteTo(dst)
	}
	return io.CopyBuffer(dst, struct{ io.Reader }{r.Reader}, make([]byte, 256<<10))
}

type countedWriter struct {
	w     io.Writer
	count func(int64)
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.count(int64(n))
	return n, err
}

// CheckName refuses a directory entry that is no plain file name.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..", strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("impossible file name %q: nothing was written for it", name)
	case len(name) > 255:
		return fmt.Errorf("file name of %d bytes: nothing was written for it", len(name))
	}
	return nil
}

// Contentful says whether the user asked for the contents of a directory (DIR/.) and not for the directory.
func Contentful(p string) bool { return p == "." || strings.HasSuffix(p, "/.") }

func slashBase(p string) string { return path.Base(path.Clean("/" + p)) }
