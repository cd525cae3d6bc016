package files

import (
	"context"
	"sync"
)

const (
	maxIO         = 64 // streams that read a file at the same moment, and that write one
	maxIOPerOwner = 8
	maxLarge      = 4 // answers above largeAnswer that are built at the same moment
)

// owner is what one client has in the service.
type owner struct {
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup // its operations and streams
	reads  gate
	writes gate

	// guarded by Service.mu
	streams int
	queue   []task
	running int
	waiting bool // in schedule.waiting

	// guarded by handleTable.mu
	handles int
	closed  bool
}

// gate bounds what streams do at the same moment, for one client and for all: the buffers of reads, and the threads
// that can be stuck in a file system that hangs.
type gate struct{ own, all chan struct{} }

func newGate(all chan struct{}) gate {
	return gate{own: make(chan struct{}, maxIOPerOwner), all: all}
}

// enter waits for a place. It fails when stop closes first.
func (g gate) enter(stop <-chan struct{}) bool {
	select {
	case g.own <- struct{}{}:
	case <-stop:
		return false
	}
	select {
	case g.all <- struct{}{}:
		return true
	case <-stop:
		<-g.own
		return false
	}
}

func (g gate) leave() {
	<-g.all
	<-g.own
}
