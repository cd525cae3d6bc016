package turn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// ShutdownTimeout bounds the guest's farewell in Close.
const ShutdownTimeout = 3 * time.Second

var (
	// ErrTurnActive reports a call that has to wait for the end of a turn.
	ErrTurnActive = errors.New("turn already in progress")
	// ErrSessionClosed reports a session whose guest has gone.
	ErrSessionClosed = errors.New("session closed")
)

// Recorded is what an earlier run noted about a session's guest; zero for a
// new session.
type Recorded struct {
	Protocol int
	ImageID  string
}

// Options configures a Session.
type Options struct {
	ID         string // the session's id, 32 hex digits
	Capability string // the secret that the guest must know, 64 hex digits
	Recorded   Recorded
	Model      turnrpc.GuestModel // selected at first

	// What the guest may ask for. Each may be nil: the call then fails, and
	// without a gate every approval is a denial.
	Provider NewProvider
	MCP      MCP
	Gate     *approval.Gate

	CommandUser string // who runs the model's commands, shown in approvals
	Log         *slog.Logger
}

// Session is a connection to a turn agent that has said hello. It is safe for
// concurrent use; one turn runs at a time.
type Session struct {
	o          Options
	probe      bool
	conn       *turnrpc.Conn
	hello      turnrpc.Hello
	extensions map[string]int
	provider   Provider
	log        *slog.Logger

	ctx   context.Context // ends with the connection
	end   context.CancelFunc
	work  sync.WaitGroup // read loop, guest calls, busy answers
	slots *turnrpc.Slots
	busy  chan string   // ids to answer CodeBusy
	next  atomic.Uint64 // counter of calls, turns and notifications

	cancels   chan string   // ids of turns to cancel
	exclusive chan struct{} // held by a turn

	mu     sync.Mutex
	model  turnrpc.GuestModel
	active *activeTurn
	calls  map[string]context.CancelFunc // MCP calls under way, by their id
}

// Open greets the guest of a new session, of which nothing is recorded. rwc
// belongs to the session from here on, also when Open fails; closing it must
// end its reads and writes.
func Open(ctx context.Context, rwc io.ReadWriteCloser, o Options) (*Session, error) {
	o.Recorded = Recorded{}
	return start(ctx, rwc, o, false)
}

// Resume greets the guest of a session that Options.Recorded describes. One
// recorded below version 4 is ErrGuestTooOld before anything is sent.
func Resume(ctx context.Context, rwc io.ReadWriteCloser, o Options) (*Session, error) {
	if err := CheckResume(o.Recorded); err != nil {
		rwc.Close()
		return nil, err
	}
	return start(ctx, rwc, o, false)
}

// Probe greets a guest of any version up to ours. The session can look at
// files; it runs no turns on an old guest.
func Probe(ctx context.Context, rwc io.ReadWriteCloser, o Options) (*Session, error) {
	return start(ctx, rwc, o, true)
}

// CheckResume refuses a session that was recorded with a guest that is too
// old. It is checked before anything is started.
func CheckResume(r Recorded) error {
	if r.Protocol < turnrpc.Version {
		return fmt.Errorf("the session was recorded with an old guest: %w; its transcript stays readable",
			tooOld(turnrpc.Normalize(r.Protocol)))
	}
	return nil
}

func start(ctx context.Context, rwc io.ReadWriteCloser, o Options, probe bool) (*Session, error) {
	g := greeting{id: o.ID, capability: o.Capability, recorded: o.Recorded, probe: probe}
	hello, common, err := g.greet(ctx, rwc)
	if err != nil {
		rwc.Close()
		return nil, err
	}
	s := &Session{
		o: o, probe: probe, hello: hello, extensions: common, log: o.Log,
		slots: turnrpc.NewSlots(), busy: make(chan string, turnrpc.MaxGuestCalls), cancels: make(chan string, 8),
		exclusive: make(chan struct{}, 1), model: o.Model, calls: make(map[string]context.CancelFunc),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.conn = turnrpc.NewConn(rwc, s.frame)
	if o.Provider != nil {
		s.provider = o.Provider(s.selected, s.providerEvent)
	}
	s.work.Go(func() {
		err := s.conn.Serve()
		s.log.Debug("turn RPC ended", "session", o.ID, "err", err)
		s.end()
	})
	s.work.Go(s.answerBusy)
	s.work.Go(s.sendCancels)
	return s, nil
}

// ID is the session's id.
func (s *Session) ID() string { return s.o.ID }

// ImageID is what the guest says it was made from.
func (s *Session) ImageID() string { return s.hello.ImageID }

// Extensions are the additions that both sides know.
func (s *Session) Extensions() map[string]int { return maps.Clone(s.extensions) }

// Capabilities says what the guest can do.
func (s *Session) Capabilities() Capabilities {
	v := s.hello.Protocol
	return Capabilities{
		Protocol: v, Cancel: v >= 2, RichEvents: v >= 2, TurnOptions: v >= 2,
		Approvals: v >= 4, MCPBroker: v >= 4,
		ToolStarted: s.has(turnrpc.ExtToolStarted), Output: s.has(turnrpc.ExtOutput), DenialReason: s.has(turnrpc.ExtDenialReason),
	}
}

func (s *Session) has(extension string) bool { return s.extensions[extension] > 0 }

// Greeted is the conversation that the guest had recovered when it said hello.
func (s *Session) Greeted() []turnrpc.AgentEvent {
	return turnrpc.TrimHistory(s.hello.History, turnrpc.MaxHistory)
}

// Done is closed when the guest has gone.
func (s *Session) Done() <-chan struct{} { return s.conn.Done() }

// Err is a *turnrpc.LostError after Done, else nil.
func (s *Session) Err() error { return s.conn.Err() }

// Close asks the guest to shut down, for at most ShutdownTimeout, ends the
// connection and waits for all that was under way.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), ShutdownTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.conn.Close() })() // also when it takes nothing
	err := s.conn.Call(ctx, s.nextID(), turnrpc.MethodShutdown, turnrpc.OK{OK: true}, nil)
	s.conn.Close()
	s.end()
	if s.provider != nil {
		s.provider.Close()
	}
	s.work.Wait()
	if s.o.MCP != nil {
		s.o.MCP.Close()
	}
	var lost *turnrpc.LostError
	if errors.As(err, &lost) { // it had gone before, or was faster than its answer
		return nil
	}
	return err
}

func (s *Session) nextID() string { return turnrpc.HostCallID(s.next.Add(1)) }

// selected names the model profile of the session.
func (s *Session) selected() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model.Name
}

// providerEvent sends a piece of a model's answer; it blocks while the guest
// is slow.
func (s *Session) providerEvent(e turnrpc.ProviderEvent) error {
	return s.conn.Notify(s.ctx, turnrpc.NotificationID(s.next.Add(1)), turnrpc.MethodProviderEvent, e)
}
