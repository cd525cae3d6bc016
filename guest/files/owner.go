package files

import (
	"context"
	"sync"
)

const (
	maxIO         = 64 // streams that read or write a file at the same moment
	maxIOPerOwner = 8
	maxLarge      = 4 // answers above largeAnswer that are built at the same moment
)

// owner is what one client has in the service.
type owner struct {
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup // its operations and streams
	io     chan struct{}  // permits for stream I/O

	// guarded by Service.mu
	streams int
	queue   []task
	running int
	waiting bool // in schedule.waiting

	// guarded by handleTable.mu
	handles int
	closed  bool
}

// acquire takes a permit for one file read or write of a stream. It bounds the threads that can be stuck in a file
// system that hangs, for one client and for all. It fails when stop closes first.
func (s *Service) acquire(o *owner, stop <-chan struct{}) bool {
	select {
	case o.io <- struct{}{}:
	case <-stop:
		return false
	}
	select {
	case s.io <- struct{}{}:
		return true
	case <-stop:
		<-o.io
		return false
	}
}

func (s *Service) surrender(o *owner) {
	<-s.io
	<-o.io
}
