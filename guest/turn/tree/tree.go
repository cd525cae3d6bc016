// Package tree reads and changes the files of a workspace for somebody who must not get out of it. Every path is
// resolved by the kernel beneath the workspace's folder, with openat2: no link, whoever made it and whenever, leads
// outside. The work is done on threads of its own, which can have the file rights of another user.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrClosed reports a use after Close.
var ErrClosed = errors.New("the workspace is closed")

// Tree is a workspace. It is safe for concurrent use; as many operations run at once as it has threads.
type Tree struct {
	dir  string
	jobs chan func()
	done chan struct{}
	wg   sync.WaitGroup
}

// New returns the tree of the folder dir, which need not exist yet. Each of its threads calls become once, before
// anything else; that is where a thread takes the file rights of the workspace's owner. Threads are never given back
// to other goroutines.
func New(dir string, threads int, become func() error) (*Tree, error) {
	t := &Tree{dir: dir, jobs: make(chan func()), done: make(chan struct{})}
	ready := make(chan error, threads)
	for range threads {
		t.wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if become != nil {
				if err := become(); err != nil {
					ready <- err
					return
				}
			}
			ready <- nil
			for {
				select {
				case job := <-t.jobs:
					job()
				case <-t.done:
					return
				}
			}
		})
	}
	var failed error
	for range threads {
		failed = errors.Join(failed, <-ready)
	}
	if failed != nil {
		t.Close()
		return nil, fmt.Errorf("prepare the threads for the workspace: %w", failed)
	}
	return t, nil
}

// Dir is the workspace's folder.
func (t *Tree) Dir() string { return t.dir }

// Close ends the threads when their operations have ended.
func (t *Tree) Close() {
	close(t.done)
	t.wg.Wait()
}

// Root is the open folder of the workspace. It is valid during the operation that it was given to, on that
// operation's goroutine only.
type Root struct{ fd int }

// Do runs f on one of the tree's threads. When ctx ends first, Do returns and f, which gets the same ctx, ends by
// itself; so f must share nothing with the caller but what it returns. f must not start goroutines that touch files.
func Do[T any](ctx context.Context, t *Tree, f func(ctx context.Context, r *Root) (T, error)) (T, error) {
	return do(ctx, t, unix.O_PATH, f)
}

func do[T any](ctx context.Context, t *Tree, flags int, f func(ctx context.Context, r *Root) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	job := func() {
		var a answer
		fd, err := unix.Open(t.dir, flags|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			a.err = fmt.Errorf("open the workspace %s: %w", t.dir, err)
		} else {
			a.value, a.err = f(ctx, &Root{fd: fd})
			unix.Close(fd)
		}
		answers <- a
	}
	var none T
	select {
	case t.jobs <- job:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-t.done:
		return none, ErrClosed
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Ensure makes the workspace's folder if it is missing and its parent allows that to the tree's threads.
func (t *Tree) Ensure(ctx context.Context) error {
	made := make(chan error, 1)
	job := func() {
		err := unix.Mkdir(t.dir, 0o755)
		if err == unix.EEXIST {
			err = nil
		}
		made <- err
	}
	select {
	case t.jobs <- job:
		if err := <-made; err != nil {
			return fmt.Errorf("make the workspace %s: %w", t.dir, err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beneath is how every path is resolved.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

// open opens a path below the root. A path that leads outside is an error that says so.
func (r *Root) open(path string, flags int, mode uint32, resolve uint64) (int, error) {
	if err := checkPath(path); err != nil {
		return -1, err
	}
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Mode: uint64(mode), Resolve: beneath | resolve}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(r.fd, path, &how)
		switch {
		case err == nil:
			return fd, nil
		case err == unix.EINTR:
		case err == unix.EAGAIN && try < 100: // the folders moved while the kernel looked
		case err == unix.EXDEV:
			return -1, &PathError{Path: path, Err: errOutside}
		case err == unix.ELOOP && resolve&unix.RESOLVE_NO_SYMLINKS != 0:
			return -1, &PathError{Path: path, Err: errLink}
		default:
			return -1, &PathError{Path: path, Err: err}
		}
	}
}

// PathError is an error about a path of the workspace.
type PathError struct {
	Path string
	Err  error
}

// Error names the path, cut if it is long.
func (e *PathError) Error() string { return clip(e.Path, 256) + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *PathError) Unwrap() error { return e.Err }

var (
	errOutside = errors.New("it is outside the workspace")
	errLink    = errors.New("a part of it is a symbolic link")
	errNUL     = errors.New("it holds a NUL byte")
	errKind    = errors.New("it is not a regular file")
	errNotDir  = errors.New("it is not a folder")
)

func checkPath(path string) error {
	switch {
	case strings.IndexByte(path, 0) >= 0:
		return &PathError{Path: path, Err: errNUL}
	case strings.HasPrefix(path, "/"):
		return &PathError{Path: path, Err: errOutside}
	}
	return nil
}

// Local turns a path as people and models write it into one relative to the workspace: blank and "." are the
// workspace itself, and an absolute path counts when it begins with the workspace's.
func (t *Tree) Local(path string) string {
	if path == "" {
		return "."
	}
	if rest, ok := strings.CutPrefix(path, t.dir); ok && (rest == "" || rest[0] == '/') {
		path = strings.TrimLeft(rest, "/")
		if path == "" {
			return "."
		}
	}
	return path
}

// OpenDir opens a folder, to be somebody's working directory. The descriptor can only be a place to start from.
func (t *Tree) OpenDir(ctx context.Context, path string) (*os.File, error) {
	return Do(ctx, t, func(_ context.Context, r *Root) (*os.File, error) {
		fd, err := r.open(t.Local(path), unix.O_PATH|unix.O_DIRECTORY, 0, 0)
		if errors.Is(err, unix.ENOTDIR) {
			err = &PathError{Path: path, Err: errNotDir}
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), path), nil
	})
}

// openFile opens a regular file for reading. Nothing else is ever opened: not even for a moment, as the opening of a
// device or a pipe can have effects.
func (r *Root) openFile(path string, resolve uint64) (int, *unix.Stat_t, error) {
	var before, after unix.Stat_t
	probe, err := r.open(path, unix.O_PATH, 0, resolve)
	if err != nil {
		return -1, nil, err
	}
	err = unix.Fstat(probe, &before)
	unix.Close(probe)
	if err != nil {
		return -1, nil, &PathError{Path: path, Err: err}
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, nil, &PathError{Path: path, Err: errKind}
	}
	fd, err := r.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0, resolve)
	if err != nil {
		return -1, nil, err
	}
	if err := unix.Fstat(fd, &after); err != nil || after.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, nil, &PathError{Path: path, Err: errKind}
	}
	return fd, &after, nil
}

// clip cuts s to n bytes and a mark.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// fdReader reads a descriptor until ctx ends.
type fdReader struct {
	ctx context.Context
	fd  int
}

func (r fdReader) Read(p []byte) (int, error) {
	for {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := unix.Read(r.fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
