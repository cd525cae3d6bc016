package fusefs

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/semaphore"
)

// pathFS is the backend for a guest that has only the contract's file
// operations: by path, with whole seconds, without links and inode numbers.
type pathFS struct {
	fuse.RawFileSystem
	*base

	tree    *tree
	handles *handles
	paths   *semaphore.Weighted // see sharePaths
}

func newPathFS(b *base) *pathFS {
	return &pathFS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		base:          b,
		tree:          newTree(b.opts.Root),
		handles:       newHandles(),
		paths:         semaphore.NewWeighted(everyPath),
	}
}

func (s *pathFS) String() string { return "msb" }

func (s *pathFS) Init(server *fuse.Server) { s.base.Init(server) }

func (s *pathFS) mounted(device *os.File) { device.Close() }

func (s *pathFS) adapt(o *fuse.MountOptions) { o.DisableXAttrs = true }

// everyPath is all of pathFS.paths.
const everyPath = 1 << 30

// sharePaths keeps paths as they are while a request uses one. It waits no
// longer than the request may take, as a rename could hang in the guest.
func (s *pathFS) sharePaths(ctx context.Context) (unlock func(), err error) {
	return s.lockPaths(ctx, 1)
}

// ownPaths is for the request that changes paths: nobody else uses one.
func (s *pathFS) ownPaths(ctx context.Context) (unlock func(), err error) {
	return s.lockPaths(ctx, everyPath)
}

func (s *pathFS) lockPaths(ctx context.Context, n int64) (func(), error) {
	if err := s.paths.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { s.paths.Release(n) }, nil
}

// drainAll waits until all written data is in the guest.
func (s *pathFS) drainAll(ctx context.Context) error {
	for _, n := range s.tree.snapshot() {
		if err := n.queue.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkRoot asks the guest for the directory to mount.
func (s *pathFS) checkRoot(ctx context.Context) error {
	root := s.opts.Root
	c, err := s.link.get()
	if err != nil {
		return fmt.Errorf("mount: the sandbox closed the connection")
	}
	ctx, stop := context.WithTimeout(ctx, s.opts.NameTimeout)
	defer stop()
	e, err := c.FS().Stat(ctx, root, true)
	if err != nil {
		return fmt.Errorf("guest directory %s: %w", root, err)
	}
	f, errno := check(e)
	if errno != 0 {
		return fmt.Errorf("guest directory %s: the guest's answer makes no sense", root)
	}
	if f.kind() != syscall.S_IFDIR {
		return fmt.Errorf("guest directory %s: is not a directory", root)
	}
	if e, err := c.FS().Stat(ctx, root, false); err == nil && e.Kind != "dir" {
		real, err := c.FS().RealPath(ctx, root)
		if err != nil {
			return fmt.Errorf("guest directory %s: %w", root, err)
		}
		s.opts.Root = cleanAbs(real)
		s.tree = newTree(s.opts.Root)
		s.symlinks.root = s.opts.Root
	}
	return nil
}
