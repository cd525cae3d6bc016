package fusefs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/semaphore"
)

// bulkLimit is how many data operations run at once; the sandbox refuses a
// client's 65th.
const bulkLimit = 48

// fileSystem answers the kernel's requests. What it does not implement answers
// ENOSYS, and the kernel then falls back or says EOPNOTSUPP.
type fileSystem struct {
	fuse.RawFileSystem

	opts     Options
	log      *slog.Logger
	ids      identity
	symlinks symlinks
	link     *link
	tree     *tree
	handles  *handles

	paths *semaphore.Weighted // see sharePaths

	bulk  *semaphore.Weighted // data operations
	dirty *semaphore.Weighted // bytes written and not yet in the guest
	ahead atomic.Int64        // bytes read ahead

	ctx    context.Context // ends with the mount
	cancel context.CancelFunc
	work   sync.WaitGroup // background goroutines
	mu     sync.Mutex
	closed bool
	server *fuse.Server
}

func newFileSystem(dir string, l *link, o Options) *fileSystem {
	s := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		opts:          o,
		log:           o.Logger,
		ids:           newIdentity(o),
		symlinks:      symlinks{dir: dir, root: o.Root},
		link:          l,
		tree:          newTree(o.Root),
		handles:       newHandles(),
		paths:         semaphore.NewWeighted(everyPath),
		bulk:          semaphore.NewWeighted(bulkLimit),
		dirty:         semaphore.NewWeighted(dirtyLimit),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.spawn(func() { l.run(s.ctx) })
	return s
}

func (s *fileSystem) String() string { return "msb" }

// Init is called before the first request.
func (s *fileSystem) Init(server *fuse.Server) { s.server = server }

// everyPath is all of fileSystem.paths.
const everyPath = 1 << 30

// sharePaths keeps paths as they are while a request uses one. It waits no
// longer than the request may take, as a rename could hang in the guest.
func (s *fileSystem) sharePaths(ctx context.Context) (unlock func(), err error) {
	return s.lockPaths(ctx, 1)
}

// ownPaths is for the request that changes paths: nobody else uses one.
func (s *fileSystem) ownPaths(ctx context.Context) (unlock func(), err error) {
	return s.lockPaths(ctx, everyPath)
}

func (s *fileSystem) lockPaths(ctx context.Context, n int64) (func(), error) {
	if err := s.paths.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { s.paths.Release(n) }, nil
}

// spawn runs f in a goroutine that close waits for; after close it returns
// false and does nothing.
func (s *fileSystem) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		f()
	}()
	return true
}

// close ends all work and the connection.
func (s *fileSystem) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// drainAll waits until all written data is in the guest.
func (s *fileSystem) drainAll(ctx context.Context) error {
	for _, n := range s.tree.snapshot() {
		if err := n.queue.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// forgetPages makes the kernel drop its copy of a file: what it holds did not
// reach the guest. In the background, as the kernel waits for requests that are
// under way.
func (s *fileSystem) forgetPages(n *node) {
	s.spawn(func() { s.server.InodeNotify(n.id, 0, 0) })
}

// forgetAttr makes the kernel ask for the attributes again.
func (s *fileSystem) forgetAttr(n *node) {
	s.server.InodeNotify(n.id, -1, 0)
}
