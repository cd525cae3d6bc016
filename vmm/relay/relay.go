package relay

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Options say how a relay serves.
type Options struct {
	Log *slog.Logger // nil = nowhere
	// Shield keeps messages from the guest that would make it exit: types it does not know. For guests that
	// are not our own.
	Shield bool
	// Stall is how long a client may take no byte before it is disconnected; 0 = 5 s.
	Stall time.Duration
	// OnShutdown is called when a client has asked for shutdown. It must not block.
	OnShutdown func()
	// Output sees every message of a command to its client (id and envelope). It must neither block nor keep
	// the bytes.
	Output func(id uint32, envelope []byte)
	// Tap learns what crosses between clients and the guest, when it wants to; nil: nobody does.
	Tap Tap
}

// Relay serves a booted guest. Its methods may be called concurrently.
type Relay struct {
	guest     *Guest
	opts      Options
	log       *slog.Logger
	pool      *pool
	sched     *scheduler
	shield    bool
	leased    bool // the guest takes range leases
	strictIDs bool // an id may open something only once

	mu        sync.RWMutex
	slots     [frame.MaxClients]slot
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]struct{}
	closed    bool
	pause     string

	waiting  atomic.Int64 // bytes in all outboxes
	activity atomic.Uint64

	life     sync.Mutex // one request of the lifecycle channel at a time
	replies  chan reply
	expected atomic.Bool

	done   chan struct{}
	finish sync.Once
	err    error // valid after done
	work   sync.WaitGroup
}

// errGuest is why a client is disconnected when it is the guest that broke the rules of its operation.
var errGuest = errors.New("guest broke the protocol of the operation")

// ErrClosed is what Err returns after Close.
var ErrClosed = errors.New("relay closed")

// New starts to relay a booted guest. The relay owns its ports from here.
func New(g *Guest, o Options) *Relay {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Stall <= 0 {
		o.Stall = 5 * time.Second
	}
	exact := agent.InputWatch.AvailableTo(g.Generation, g.Ready.Extensions)
	gated := g.Ready.BarrierVersion != nil && *g.Ready.BarrierVersion == agent.BarrierVersion
	r := &Relay{
		guest: g, opts: o, log: o.Log, pool: g.pool, shield: o.Shield,
		leased:    g.Ready.RelayLease != nil && g.Ready.RelayLease.MaxFormat >= 1,
		strictIDs: g.Dual(),
		sched:     newScheduler(newGate(gated), exact, g.Dual()),
		listeners: map[net.Listener]struct{}{},
		conns:     map[net.Conn]struct{}{},
		replies:   make(chan reply, 1),
		done:      make(chan struct{}),
	}
	if exact {
		r.sendLifecycle(agent.InputWatch, agent.InputWatchPayload{})
	}
	r.start(r.readControl)
	r.start(func() error { return r.sched.write(controlPort, g.controlPort) })
	if g.Dual() {
		r.start(r.readBulk)
		r.start(func() error { return r.sched.write(bulkPort, g.bulkPort) })
	}
	r.work.Go(r.watchHangups)
	return r
}

// start runs a part of the link; the first that ends takes the others with it.
func (r *Relay) start(part func() error) {
	r.work.Add(1)
	go func() {
		defer r.work.Done()
		r.end(part())
	}()
}

// end breaks the link to the guest.
func (r *Relay) end(err error) {
	r.finish.Do(func() {
		if err == nil {
			err = ErrClosed
		}
		r.err = err
		r.guest.controlPort.Close()
		if r.guest.Dual() {
			r.guest.bulkPort.Close()
		}
		r.mu.Lock()
		r.closed = true
		for l := range r.listeners {
			l.Close()
		}
		for c := range r.conns {
			c.Close()
		}
		for k := range r.slots {
			if c := r.slots[k].client; c != nil {
				c.close(err)
			}
			if t := r.slots[k].timer; t != nil {
				t.Stop()
			}
		}
		r.mu.Unlock()
		r.sched.close()
		close(r.done)
	})
}

// Done is closed when the link to the guest is gone. All clients are disconnected then.
func (r *Relay) Done() <-chan struct{} { return r.done }

// Err says why, after Done; io.EOF when the guest closed its port.
func (r *Relay) Err() error { return r.err }

// Close disconnects everybody and waits until nothing of the relay is left.
func (r *Relay) Close() error {
	r.end(ErrClosed)
	r.work.Wait()
	return nil
}

// Guest is what the relay serves.
func (r *Relay) Guest() *Guest { return r.guest }

// Serve accepts clients until the listener fails or the relay ends. It closes the listener.
func (r *Relay) Serve(l net.Listener) error {
	defer l.Close()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	r.listeners[l] = struct{}{}
	r.work.Add(1)
	r.mu.Unlock()
	defer r.work.Done()
	for {
		conn, err := l.Accept()
		if err != nil {
			r.mu.RLock()
			closed := r.closed
			r.mu.RUnlock()
			if closed {
				return ErrClosed
			}
			if wait, temporary := pauseFor(err); temporary {
				r.log.Warn("accept", "error", err)
				select {
				case <-time.After(wait):
					continue
				case <-r.done:
					return ErrClosed
				}
			}
			return fmt.Errorf("agent socket: %w", err)
		}
		r.ServeConn(conn)
	}
}

// ServeConn serves one client in the background. It closes conn.
func (r *Relay) ServeConn(conn net.Conn) { r.serveConn(conn, false) }

// ServeQuietly is ServeConn for a client of the runtime's own, which looks after the sandbox and does not use it:
// nothing of it counts as activity.
func (r *Relay) ServeQuietly(conn net.Conn) { r.serveConn(conn, true) }

func (r *Relay) serveConn(conn net.Conn, quiet bool) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		conn.Close()
		return
	}
	r.conns[conn] = struct{}{}
	r.work.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.work.Done()
		r.serve(conn, quiet)
		r.mu.Lock()
		delete(r.conns, conn)
		r.mu.Unlock()
	}()
}

func (r *Relay) serve(conn net.Conn, quiet bool) {
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		r.log.Warn("client refused", "error", err)
		return
	}
	c := r.join(conn, quiet)
	if c == nil {
		r.log.Warn("client refused: every range of ids is taken or being cleaned", "limit", frame.MaxClients)
		return
	}
	c.lane = r.sched.addLane(c.slot)
	if r.leased {
		lease := newPacket(frame.AppendLease(nil, frame.Lease{Event: frame.LeaseConnected, Start: c.start, End: c.end, Incarnation: c.inc}))
		lease.after = func() { r.sched.openLane(c.lane) }
		r.sched.pushHost(lease)
	} else {
		r.sched.openLane(c.lane)
	}
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		if err := c.out.run(conn, r.opts.Stall); err != nil {
			c.close(err)
		}
	}()
	err := c.read()
	c.close(err)
	writer.Wait()
	r.leave(c)
	if why := c.why.Load(); *why != nil && !errors.Is(*why, io.EOF) {
		r.log.Warn("client disconnected", "slot", c.slot, "error", *why)
	}
}

// Activity grows with everything that counts as use of the sandbox: what clients send except ping, and
// what the guest sends to them except pong, touched and errors.
func (r *Relay) Activity() uint64 { return r.activity.Load() }

// Execs is how many commands clients have running.
func (r *Relay) Execs() int {
	n := 0
	for _, c := range r.clients() {
		c.mu.Lock()
		n += len(c.open.execs())
		c.mu.Unlock()
	}
	return n
}

// Stats is what a relay holds now.
type Stats struct {
	Clients  int
	Sessions int   // open operations of all clients
	Waiting  int64 // bytes that wait to be read by clients
}

// Stats counts.
func (r *Relay) Stats() Stats {
	s := Stats{Waiting: r.waiting.Load()}
	for _, c := range r.clients() {
		c.mu.Lock()
		s.Clients++
		s.Sessions += len(c.open.open)
		c.mu.Unlock()
	}
	return s
}

func (r *Relay) clients() (all []*client) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for k := range r.slots {
		if c := r.slots[k].client; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// Pause makes the relay answer new sessions with core.error until Resume; why is the answer's text.
func (r *Relay) Pause(why string) {
	r.mu.Lock()
	r.pause = why
	r.mu.Unlock()
}

// Resume ends Pause.
func (r *Relay) Resume() { r.Pause("") }

// CanFreeze returns ErrNoFreeze for a guest that Freeze would refuse.
func (r *Relay) CanFreeze() error {
	if r.guest.Generation < 9 || r.guest.Ready.BarrierVersion == nil || *r.guest.Ready.BarrierVersion != agent.BarrierVersion {
		return ErrNoFreeze
	}
	return nil
}

func (r *Relay) paused() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pause
}
