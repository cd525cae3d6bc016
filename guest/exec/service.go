// Package exec runs the commands of core.exec: with pipes or a terminal, as any user, each in a session and process
// group of its own.
package exec

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

// Config is what commands start from.
type Config struct {
	Out    port.Out
	Reaper *Reaper

	User       string         // default user, NAME|UID[:GROUP|GID]; "" = root
	Cwd        string         // default working directory; "" = /
	Env        []string       // environment under every command, see BaseEnv
	Rlimits    []agent.Rlimit // limits of every command; a request's own win
	Restricted bool           // no_new_privs and no CAP_SYS_ADMIN
	Workload   *Workload      // cgroup of all commands; nil = none
}

// Service owns the running commands. Request, Open, Stdin, Credit, Resize, Signal and CloseOwner come from one goroutine and never
// block on a command; the rest may be called by anyone.
type Service struct {
	cfg      Config
	accounts Accounts
	spawner  spawner
	pumps    sync.WaitGroup
	latched  atomic.Bool
	output   atomic.Uint64
	running  atomic.Int64

	mu       sync.Mutex
	sessions map[uint32]*session   // by id: who gets input
	all      map[*session]struct{} // with those whose id was taken over by a later request
	closed   bool
}

// New returns a Service. Close ends it.
func New(cfg Config) *Service {
	s := &Service{
		cfg:      cfg,
		sessions: make(map[uint32]*session),
		all:      make(map[*session]struct{}),
	}
	s.spawner.restricted = cfg.Restricted
	return s
}

// Request starts a command. A second request on an active id starts a second command, which takes the id's input over.
func (s *Service) Request(id uint32, r agent.ExecRequestPayload) { s.begin(newSession(s, id), r) }

func (s *Service) begin(ses *session, r agent.ExecRequestPayload) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.sessions[ses.id] = ses
	s.all[ses] = struct{}{}
	s.running.Add(1)
	s.pumps.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.pumps.Done()
		ses.run(&r)
		s.forget(ses)
	}()
}

// Stdin takes input for a command. Input for an unknown id is dropped.
func (s *Service) Stdin(in port.Input) {
	if ses := s.session(in.ID); ses != nil {
		ses.stdin.push(in)
		return
	}
	in.Release()
}

// Resize sets the size of a command's terminal.
func (s *Service) Resize(id uint32, rows, cols uint16) {
	if ses := s.session(id); ses != nil {
		ses.resize(rows, cols)
	}
}

// Signal sends a signal to a command's process group; invalid numbers are ignored.
func (s *Service) Signal(id uint32, signal int32) {
	if signal <= 0 || signal > 64 {
		return
	}
	if ses := s.session(id); ses != nil {
		ses.signal(unix.Signal(signal))
	}
}

// Has tells whether id is an active command.
func (s *Service) Has(id uint32) bool { return s.session(id) != nil }

// Active is the number of commands that have not ended.
func (s *Service) Active() int { return int(s.running.Load()) }

// OutputBytes counts what commands have printed so far.
func (s *Service) OutputBytes() uint64 { return s.output.Load() }

// Latch makes new commands fail while the workload is frozen.
func (s *Service) Latch(on bool) { s.latched.Store(on) }

// CloseOwner kills the commands of a client that is gone; nothing more is sent for them. quiet is closed when the last
// of them has ended.
func (s *Service) CloseOwner(owner uint32) (quiet <-chan struct{}) {
	return s.abort(func(ses *session) bool { return port.Owner(ses.id) == owner })
}

// Abort kills one command without an answer to its client.
func (s *Service) Abort(id uint32) {
	s.abort(func(ses *session) bool { return ses.id == id })
}

func (s *Service) abort(match func(*session) bool) <-chan struct{} {
	var hit []*session
	s.mu.Lock()
	for ses := range s.all {
		if match(ses) {
			hit = append(hit, ses)
			if s.sessions[ses.id] == ses {
				delete(s.sessions, ses.id)
			}
		}
	}
	s.mu.Unlock()
	quiet := make(chan struct{})
	for _, ses := range hit {
		ses.abort()
	}
	go func() {
		for _, ses := range hit {
			<-ses.ended
		}
		close(quiet)
	}()
	return quiet
}

// Terminate sends SIGTERM to every command's process group and refuses new ones.
func (s *Service) Terminate() {
	s.mu.Lock()
	s.closed = true
	all := make([]*session, 0, len(s.all))
	for ses := range s.all {
		all = append(all, ses)
	}
	s.mu.Unlock()
	for _, ses := range all {
		ses.signal(unix.SIGTERM)
	}
}

// Close kills what still runs and waits until every goroutine of the service has ended.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	<-s.abort(func(*session) bool { return true })
	s.pumps.Wait()
	s.spawner.close()
}

func (s *Service) session(id uint32) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

func (s *Service) forget(ses *session) {
	s.mu.Lock()
	if s.sessions[ses.id] == ses {
		delete(s.sessions, ses.id)
	}
	delete(s.all, ses)
	s.mu.Unlock()
	s.running.Add(-1)
	ses.stdin.close()
	close(ses.ended)
}
