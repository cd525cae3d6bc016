package watch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

const (
	// maxPending is how many changes wait for a host that does not take them; more are lost.
	maxPending = 16 << 10
	// messageBytes bounds one message of events, so that it is a small one by the agent's measure.
	messageBytes = 48 << 10
	// gather is how long changes wait for company after others were sent.
	gather = 2 * time.Millisecond
	// ownRest is how long nothing is read after changes that are all the mount's own.
	ownRest = 3 * time.Millisecond
)

// feed is one watch.
type feed struct {
	svc  *Service
	id   uint32
	node uint64

	group *group
	who   Client        // whose changes are not told, as the host knows them
	since atomic.Uint64 // by the actors' clock, when nothing was left unread

	mu      sync.Mutex
	begun   bool // group is there
	order   []agent.WatchEvent
	places  map[place]int // in order
	lost    bool
	seq     uint64 // of the last message sent
	seen    uint64 // by the host
	asked   uint64 // how often somebody wanted to know that everything is read
	read    uint64 // asked, as it was when everything was read last
	moved   chan struct{}
	slow    bool // the host let somebody wait in vain, and has not caught up since
	ended   bool
	why     unix.Errno
	message string

	wake chan struct{} // cap 1: there is something to send
	stop chan struct{} // closed when the feed ends
	done chan struct{} // closed when nothing of it runs any more
}

// place is what changes are gathered by.
type place struct {
	dir, node uint64
	name      string
}

func newFeed(s *Service, id uint32, node uint64) *feed {
	return &feed{
		svc: s, id: id, node: node,
		places: map[place]int{},
		moved:  make(chan struct{}),
		wake:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
}

// run serves the feed until it ends.
func (f *feed) run() {
	defer close(f.done)
	f.svc.actors.watch(1)
	f.since.Store(f.svc.actors.mark())
	err := f.begin()
	if err == nil {
		var reader sync.WaitGroup
		reader.Go(f.readAll)
		err = f.svc.out.Send(f.id, agent.WatchStarted, agent.WatchStartedPayload{Dev: f.group.dev})
		for err == nil && f.next() {
			err = f.send()
		}
		f.end(unix.EPIPE, "")
		f.group.file.Close() // ends a read that waits
		reader.Wait()
		f.group.close()
		f.who.Watched(-1)
	}
	f.svc.forget(f)
	f.svc.actors.watch(-1)
	_ = f.svc.out.Send(f.id, agent.WatchEnded, agent.WatchEndedPayload{Errno: uint32(f.why), Message: f.message})
}

// begin opens the source of the changes.
func (f *feed) begin() error {
	dir, who, err := f.svc.files.Directory(port.Owner(f.id), f.node)
	if err == nil {
		who.Watched(1)
		if f.group, err = newGroup(dir); err != nil {
			who.Watched(-1)
		}
	}
	if err != nil {
		errno := unix.EIO
		errors.As(err, &errno)
		f.end(errno, fmt.Sprintf("the file system cannot be watched: %v", err))
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.who, f.begun = who, true
	return nil
}

// end stops the feed; the first reason counts.
func (f *feed) end(why unix.Errno, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	f.ended, f.why, f.message = true, why, message
	close(f.stop)
	f.movedLocked()
}

// movedLocked wakes those who wait for the host or the reader.
func (f *feed) movedLocked() {
	close(f.moved)
	f.moved = make(chan struct{})
}

// next waits until there is something to send and the host can take it; false is the end.
func (f *feed) next() bool {
	pulse := time.NewTimer(agent.WatchPulse * time.Millisecond)
	defer pulse.Stop()
	due := false
	for {
		f.mu.Lock()
		some := len(f.order) > 0 || f.lost || due
		room := f.seq-f.seen < agent.WatchWindow
		moved := f.moved
		f.mu.Unlock()
		if some && room {
			return true
		}
		select {
		case <-f.stop:
			return false
		case <-f.wake:
		case <-moved:
		case <-pulse.C:
			due = true
		}
	}
}

// send sends one message and waits a moment for more to come together.
func (f *feed) send() error {
	f.mu.Lock()
	p := agent.WatchEventsPayload{Lost: f.lost}
	size := 0
	for _, e := range f.order {
		if size += len(e.Name) + 32; len(p.Events) == agent.MaxWatchEvents || size > messageBytes {
			break
		}
		p.Events = append(p.Events, e)
	}
	f.lost = false
	f.order = f.order[len(p.Events):]
	f.places = map[place]int{}
	if len(f.order) == 0 {
		f.order = nil
	}
	for i, e := range f.order {
		f.places[placeOf(&e)] = i
	}
	f.seq++
	p.Seq = f.seq
	f.movedLocked()
	f.mu.Unlock()
	err := f.svc.out.Send(f.id, agent.WatchEvents, p)
	if err != nil || len(p.Events) == 0 {
		return err
	}
	timer := time.NewTimer(gather)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.stop:
	}
	return nil
}

func placeOf(e *agent.WatchEvent) place { return place{e.Dir, e.Node, string(e.Name)} }

// readAll takes what the kernel tells.
func (f *feed) readAll() {
	var mark uint64
	asking := func() { mark = f.svc.actors.mark() }
	nothing := func() { f.since.Store(mark) }
	for {
		f.mu.Lock()
		asked, read, ended := f.asked, f.read, f.ended
		f.mu.Unlock()
		if ended {
			return
		}
		b, err := f.group.read(asked == read, asking, nothing)
		switch {
		case errors.Is(err, errInterrupted):
			_ = f.group.file.SetReadDeadline(time.Time{})
		case err != nil:
			f.end(unix.EIO, "reading the changes of the file system: "+err.Error())
			return
		case len(b) == 0:
			f.mu.Lock()
			f.read = asked
			f.movedLocked()
			f.mu.Unlock()
		default:
			alone := f.svc.actors.alone(f.who, f.since.Load())
			news := false
			f.group.each(b, func(c change) { news = f.take(c, alone) || news })
			if news {
				f.signal()
				continue
			}
			// A mount that works hard would wake this goroutine with each of its own changes.
			rest := time.NewTimer(ownRest)
			select {
			case <-rest.C:
			case <-f.stop:
			}
			rest.Stop()
		}
	}
}

func (f *feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// take notes a change, and tells whether the host is to hear of it.
func (f *feed) take(c change, alone bool) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch at := placeOf(&c.WatchEvent); {
	case c.overflow:
		f.loseLocked()
		return true
	case c.own && alone, !f.who.Knows(f.group.dev, c.Dir) && !f.who.Knows(f.group.dev, c.Node):
		return false
	case len(f.order) >= maxPending:
		f.loseLocked()
	default:
		if i, ok := f.places[at]; ok {
			f.order[i].Change |= c.Change
			return true
		}
		f.places[at] = len(f.order)
		f.order = append(f.order, c.WatchEvent)
	}
	return true
}

func (f *feed) loseLocked() {
	f.lost, f.order, f.places = true, nil, map[place]int{}
}

// acknowledge notes what the host has seen.
func (f *feed) acknowledge(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq > f.seen && seq <= f.seq {
		f.seen = seq
		f.slow = f.slow && f.seen < f.seq
		f.movedLocked()
	}
}

// settle waits until the host has seen every change up to now, or late is closed. It does not wait for a host that was
// late the last time and has not caught up.
func (f *feed) settle(late <-chan struct{}) {
	f.mu.Lock()
	if !f.begun || f.ended || f.slow {
		f.mu.Unlock()
		return
	}
	f.asked++
	asked := f.asked
	f.mu.Unlock()
	_ = f.group.file.SetReadDeadline(time.Now()) // wakes the reader
	told := false
	var last uint64 // the message with the last change, once told
	for {
		f.mu.Lock()
		if !told && f.read >= asked && len(f.order) == 0 && !f.lost {
			told, last = true, f.seq
		}
		over := f.ended || told && f.seen >= last
		moved := f.moved
		f.mu.Unlock()
		if over {
			return
		}
		select {
		case <-moved:
		case <-late:
			f.mu.Lock()
			f.slow = f.seen < f.seq
			f.mu.Unlock()
			return
		}
	}
}
