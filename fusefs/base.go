package fusefs

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/semaphore"
)

// bulkLimit is how many data operations run at once; the sandbox refuses a
// client's 65th.
const bulkLimit = 48

// backend answers the kernel's requests with what one kind of guest offers. What
// it does not implement answers ENOSYS, and the kernel then falls back or says
// EOPNOTSUPP.
type backend interface {
	fuse.RawFileSystem
	// checkRoot finds the directory to mount.
	checkRoot(ctx context.Context) error
	// drainAll waits until all written data is in the guest.
	drainAll(ctx context.Context) error
	// adapt adds what the backend needs of the kernel.
	adapt(o *fuse.MountOptions)
	// mounted is called when the mount is there, with a connection to the kernel
	// that it may keep, nil when there is none.
	mounted(device *os.File)
	common() *base
}

// base is what every backend has: the connection, the bounds, the background
// work and the translation of ids and symlinks.
type base struct {
	opts      Options
	log       *slog.Logger
	ids       identity
	symlinks  symlinks
	link      *link
	deadlines deadlines

	bulk  *semaphore.Weighted // data operations
	dirty *semaphore.Weighted // bytes written and not yet in the guest
	ahead atomic.Int64        // bytes read ahead

	readersMu sync.Mutex
	readers   map[*readAhead]struct{}

	ctx    context.Context // ends with the mount
	cancel context.CancelFunc
	work   sync.WaitGroup // background goroutines
	mu     sync.Mutex
	closed bool
	server *fuse.Server
}

func newBase(dir string, l *link, o Options) *base {
	s := &base{
		opts:     o,
		log:      o.Logger,
		ids:      newIdentity(o),
		symlinks: symlinks{dir: dir, root: o.Root, mode: o.Symlinks},
		link:     l,
		bulk:     semaphore.NewWeighted(bulkLimit),
		dirty:    semaphore.NewWeighted(dirtyLimit),
		readers:  map[*readAhead]struct{}{},
	}
	s.deadlines.s = s
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.spawn(func() { l.run(s.ctx) })
	return s
}

func (s *base) common() *base { return s }

// Init is called before the first request.
func (s *base) Init(server *fuse.Server) { s.server = server }

// spawn runs f in a goroutine that close waits for; after close it returns
// false and does nothing.
func (s *base) spawn(f func()) bool {
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
func (s *base) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// forgetPages makes the kernel drop its copy of a file: what it holds did not
// reach the guest. In the background, as the kernel waits for requests that are
// under way.
func (s *base) forgetPages(id uint64) {
	s.spawn(func() { s.server.InodeNotify(id, 0, 0) })
}

// forgetAttr makes the kernel ask for the attributes again.
func (s *base) forgetAttr(id uint64) {
	s.server.InodeNotify(id, -1, 0)
}
