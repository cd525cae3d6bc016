package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
	"msb/protocol/agent"
)

// nodeFS is the backend for a guest that serves msb.fs: by node handle and
// single names, with everything that Linux knows of a file.
//
// The guest's nodes and handles belong to a session, which ends with the last
// connection that shares it. Each session is an epoch here; what was got in an
// earlier one is found again by name and recognized by inode number and time of
// birth, or is stale.
type nodeFS struct {
	fuse.RawFileSystem
	*base

	inodes   *inodes
	opens    *openTable
	farewell farewell
	watch    watch

	session struct {
		sync.Mutex
		epoch uint64
		name  []byte // for further connections
	}
	lastStat struct {
		sync.Mutex
		known bool
		out   fuse.StatfsOut
	}
}

func newNodeFS(b *base) *nodeFS {
	s := &nodeFS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		base:          b,
		inodes:        newInodes(),
		opens:         newOpenTable(),
	}
	s.farewell.init(s)
	s.watch.init(s)
	return s
}

func (s *nodeFS) String() string { return "msb" }

func (s *nodeFS) Init(server *fuse.Server) { s.base.Init(server) }

func (s *nodeFS) mounted(device *os.File) {
	s.watch.notes = notifier{s.server, device}
	if !s.watch.wanted() || !s.spawn(s.watch.run) {
		s.watch.notes.close()
	}
}

func (s *nodeFS) adapt(o *fuse.MountOptions) {
	o.EnableLocks = true
	o.ExtraCapabilities |= capKillPriv
}

// checkRoot begins the first session.
func (s *nodeFS) checkRoot(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, s.opts.NameTimeout)
	defer stop()
	c := s.link.current()
	if c == nil {
		return fmt.Errorf("mount: the sandbox closed the connection")
	}
	if err := s.join(ctx, c); err != nil {
		return err
	}
	s.link.setJoin(s.join)
	return nil
}

// join makes a fresh connection share the session, or begins another one when
// that has ended.
func (s *nodeFS) join(ctx context.Context, c *agentclient.Client) error {
	nodes, err := c.Nodes()
	if err != nil {
		return fmt.Errorf("the sandbox does not serve this mount any more: %w", err)
	}
	s.session.Lock()
	defer s.session.Unlock()
	if s.session.name != nil {
		_, err := nodes.Do(ctx, &agent.NodeJoin{Session: s.session.name})
		if err == nil {
			s.useDirect(nodes)
			return nil
		}
		if !errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	results, err := nodes.Do(ctx, &agent.NodeAttach{Path: []byte(s.opts.Root)}, &agent.NodeSession{})
	if err != nil {
		return fmt.Errorf("guest directory %s: %w", s.opts.Root, err)
	}
	root := results[0].(*agent.NodeEntryResult)
	if checkAttr(&root.Attr) != 0 {
		return fmt.Errorf("guest directory %s: the guest's answer makes no sense", s.opts.Root)
	}
	if root.Attr.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return fmt.Errorf("guest directory %s: is not a directory", s.opts.Root)
	}
	if s.session.epoch == 0 {
		s.realRoot(ctx, c)
	}
	s.session.name = results[1].(*agent.NodeBytesResult).Data
	s.session.epoch++
	s.inodes.attach(root, s.session.epoch)
	s.useDirect(nodes)
	return nil
}

// useDirect opens the short way for a connection that has joined the session.
func (s *nodeFS) useDirect(nodes *agentclient.Nodes) {
	if s.opts.Direct != nil {
		nodes.UseDirect(s.session.name, s.opts.Direct)
	}
}

// realRoot finds where the mounted directory really is, so that absolute
// symlinks into it are recognized.
func (s *nodeFS) realRoot(ctx context.Context, c *agentclient.Client) {
	if real, err := c.FS().RealPath(ctx, s.opts.Root); err == nil {
		s.symlinks.root = cleanAbs(real)
	}
}

// conn is a connection and the epoch that it belongs to.
type conn struct {
	*agentclient.Nodes
	epoch uint64
}

func (s *nodeFS) conn() (conn, error) {
	for {
		before := s.epoch()
		c, err := s.link.get()
		if err != nil {
			return conn{}, err
		}
		nodes, err := c.Nodes()
		if err != nil {
			return conn{}, syscall.ENOTCONN
		}
		if s.epoch() == before {
			return conn{nodes, before}, nil
		}
	}
}

func (s *nodeFS) epoch() uint64 {
	s.session.Lock()
	defer s.session.Unlock()
	return s.session.epoch
}

// retryPause is how long to wait when the guest has too much to do.
const retryPause = 5 * time.Millisecond

// do runs operations, again when the guest was too busy to begin.
func (s *nodeFS) do(ctx context.Context, c conn, ops ...agent.NodeOp) ([]agent.NodeResult, error) {
	for {
		results, err := c.Do(ctx, ops...)
		if err == nil || len(results) > 0 || !overloaded(err) {
			return results, err
		}
		timer := time.NewTimer(retryPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// overloaded tells whether the guest refused a request before it did anything: a
// lock that another one holds is EAGAIN without words.
func overloaded(err error) bool {
	var refused *agentclient.NodeError
	return errors.As(err, &refused) && refused.Errno == syscall.EAGAIN && refused.Message != ""
}

// as is the same connection for operations of who; nil is the guest's root.
func (c conn) as(who *agent.NodeIdentity) conn {
	if who != nil {
		c.Nodes = c.Nodes.As(who)
	}
	return c
}

// drainAll waits until all written data is in the guest.
func (s *nodeFS) drainAll(ctx context.Context) error {
	for _, n := range s.inodes.snapshot() {
		if err := n.queue.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}
