// Package watch is the guest agent's service of msb.fs.watch: it tells a host that mounts the guest's files what others
// change in them, so that the host may keep names, attributes and data for long and still be right.
//
// The changes come from fanotify, for the whole file system at once, with the directory and name of each. Those that
// the mount itself makes are left out. What a program changes through a shared mapping is told when it closes or unmaps
// the file: the kernel says nothing before.
package watch

import (
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

const (
	maxFeeds         = 64 // fanotify groups are few
	maxFeedsPerOwner = 4
	// closeGrace is how long Close waits for feeds to end.
	closeGrace = time.Second
)

// Files finds what a client names.
type Files interface {
	// Directory opens a directory that a client knows as node.
	Directory(owner uint32, node uint64) (fd int, client Client, err error)
}

// Client is whose host watches, and the actor of what that changes.
type Client interface {
	// Watched counts those who watch for it.
	Watched(n int)
	// Knows tells whether its host has heard of a file: others' changes are not told, unless in a directory that it
	// has heard of.
	Knows(dev, ino uint64) bool
}

// Service serves msb.fs.watch to all clients. Its methods may be called by any goroutine; none but Settle and Close
// waits.
type Service struct {
	out    port.Out
	files  Files
	actors *Actors

	mu     sync.Mutex
	feeds  map[uint32]*feed
	closed bool
	wg     sync.WaitGroup
}

// New returns a Service that sends on out. actors has to hear of every change that the agent makes.
func New(out port.Out, files Files, actors *Actors) *Service {
	return &Service{out: out, files: files, actors: actors, feeds: map[uint32]*feed{}}
}

// Request begins a watch.
func (s *Service) Request(id uint32, p agent.WatchRequestPayload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.feeds[id] != nil {
		return // the first one has the id
	}
	mine := 0
	for other := range s.feeds {
		if port.Owner(other) == port.Owner(id) {
			mine++
		}
	}
	if len(s.feeds) >= maxFeeds || mine >= maxFeedsPerOwner {
		s.refuse(id, unix.EMFILE, "too many watches are open")
		return
	}
	f := newFeed(s, id, p.Node)
	s.feeds[id] = f
	s.wg.Go(f.run)
}

func (s *Service) refuse(id uint32, errno unix.Errno, message string) {
	_ = s.out.Send(id, agent.WatchEnded, agent.WatchEndedPayload{Errno: uint32(errno), Message: message})
}

// Seen takes the host's word that it has acted on events.
func (s *Service) Seen(id uint32, seq uint64) {
	if f := s.feed(id); f != nil {
		f.acknowledge(seq)
	}
}

// Cancel ends a watch.
func (s *Service) Cancel(id uint32) {
	if f := s.feed(id); f != nil {
		f.end(unix.ECANCELED, "")
	}
}

func (s *Service) feed(id uint32) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feeds[id]
}

func (s *Service) forget(f *feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.feeds, f.id)
	oldest := uint64(math.MaxUint64)
	for _, other := range s.feeds {
		oldest = min(oldest, other.since.Load())
	}
	s.actors.sweep(oldest)
}

func (s *Service) all() []*feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*feed, 0, len(s.feeds))
	for _, f := range s.feeds {
		all = append(all, f)
	}
	return all
}

// Settle returns when every host that watches has seen every change up to now, or after patience: who hears afterwards
// that a command has ended can look at what it did.
func (s *Service) Settle(patience time.Duration) {
	all := s.all()
	if len(all) == 0 {
		return
	}
	late := make(chan struct{})
	timer := time.AfterFunc(patience, func() { close(late) })
	defer timer.Stop()
	for _, f := range all {
		f.settle(late)
	}
}

// CloseOwner ends the watches of one client. The returned channel is closed when nothing of them runs or sends any more.
func (s *Service) CloseOwner(owner uint32) <-chan struct{} {
	done := make(chan struct{})
	var ending []*feed
	for _, f := range s.all() {
		if port.Owner(f.id) == owner {
			f.end(unix.ECANCELED, "")
			ending = append(ending, f)
		}
	}
	if len(ending) == 0 {
		close(done)
		return done
	}
	s.wg.Go(func() {
		defer close(done)
		for _, f := range ending {
			<-f.done
		}
	})
	return done
}

// Close ends everything and waits for it, but no longer than a second.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, f := range s.all() {
		f.end(unix.ECANCELED, "")
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}
