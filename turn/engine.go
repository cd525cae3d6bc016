package turn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// EngineOptions configures an Engine. Store, Gate, Dial and Model are needed.
type EngineOptions struct {
	Sandbox string
	Store   *Store
	Gate    *approval.Gate
	// Dial starts a turn agent with this configuration and connects to it.
	Dial func(ctx context.Context, c turnrpc.GuestConfig) (io.ReadWriteCloser, error)
	// Model describes a model profile; "" is the default one. Nothing secret
	// may be in the answer.
	Model  func(profile string) (turnrpc.GuestModel, error)
	Models func() []string // names of the profiles
	// Provider and MCP make the brokers of a session; nil: none.
	Provider NewProvider
	MCP      func() (MCP, error)
	// BeforeTurn runs before the guest gets a prompt, e.g. to remember the
	// state of the workspace; the title is that of the turn. An error ends the
	// turn.
	BeforeTurn  func(ctx context.Context, i Info) error
	CommandUser string // see Options
	PinImage    bool   // a session can only be resumed with the image it was recorded with
	Log         *slog.Logger
}

// Engine runs the sessions of one sandbox. It is safe for concurrent use.
type Engine struct {
	o   EngineOptions
	log *slog.Logger
	ctx context.Context // ends with Close
	end context.CancelFunc

	mu          sync.Mutex
	live        map[string]*live
	transcripts map[string]*shared
	closed      bool
	work        sync.WaitGroup // turns, and watchers of guests
}

// shared is a transcript that is open as long as someone uses it.
type shared struct {
	*Transcript
	users int
}

// NewEngine returns an engine with no open session.
func NewEngine(o EngineOptions) *Engine {
	e := &Engine{o: o, log: o.Log, live: make(map[string]*live), transcripts: make(map[string]*shared)}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.ctx, e.end = context.WithCancel(context.Background())
	return e
}

// Sandbox is the name of the sandbox.
func (e *Engine) Sandbox() string { return e.o.Sandbox }

// Gate is the gate that all approvals go through.
func (e *Engine) Gate() *approval.Gate { return e.o.Gate }

// Models lists the names of the model profiles.
func (e *Engine) Models() []string {
	if e.o.Models == nil {
		return nil
	}
	return e.o.Models()
}

// Open makes a new session and starts its guest.
func (e *Engine) Open(ctx context.Context, name, model string) (Info, error) {
	m, err := e.o.Model(model)
	if err != nil {
		return Info{}, err
	}
	r, err := e.o.Store.Create(name, m.Name)
	if err != nil {
		return Info{}, err
	}
	info, err := e.start(ctx, r, m)
	if err != nil {
		// Nothing happened in it.
		if _, rmErr := e.o.Store.Remove(r.ID); rmErr != nil {
			err = errors.Join(err, rmErr)
		}
	}
	return info, err
}

// Resume starts the guest of an existing session; model "" keeps the recorded
// one. A session that is open is returned as it is.
func (e *Engine) Resume(ctx context.Context, ref, model string) (Info, error) {
	r, err := e.o.Store.Find(ref)
	if err != nil {
		return Info{}, err
	}
	if r.Protocol != 0 {
		if err := CheckResume(Recorded{Protocol: r.Protocol}); err != nil {
			return Info{}, fmt.Errorf("resume session %s: %w", r.ID[:8], err)
		}
	}
	if model == "" {
		model = r.Model
	}
	m, err := e.o.Model(model)
	if err != nil {
		return Info{}, fmt.Errorf("resume session %s: %w", r.ID[:8], err)
	}
	info, err := e.start(ctx, r, m)
	if err == nil && info.Model != m.Name {
		return e.SetModel(ctx, r.ID, m.Name)
	}
	return info, err
}

// start makes a session live, or waits for the one who does.
func (e *Engine) start(ctx context.Context, r Record, m turnrpc.GuestModel) (Info, error) {
	l := &live{e: e, id: r.ID, record: r, state: StateOpening, ready: make(chan struct{})}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return Info{}, fmt.Errorf("sandbox %s is stopping: %w", e.o.Sandbox, ErrSessionClosed)
	}
	other := e.live[r.ID]
	if other == nil {
		e.live[r.ID] = l
		e.work.Add(1) // the watcher, or this attempt
	}
	e.mu.Unlock()
	if other != nil {
		select {
		case <-other.ready:
			return other.info(), other.failed
		case <-ctx.Done():
			return Info{}, ctx.Err()
		}
	}
	err := l.open(ctx, m)
	if err != nil {
		l.failed = err
		l.release()
		e.work.Done()
	} else {
		go l.watch()
	}
	close(l.ready)
	return l.info(), err
}

// find returns the live session of a reference.
func (e *Engine) find(ref string) (*live, error) {
	r, err := e.o.Store.Find(ref)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	l := e.live[r.ID]
	e.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("session %s has no guest: %w; resume it first", r.ID[:8], ErrSessionClosed)
	}
	select {
	case <-l.ready:
	default:
		return nil, fmt.Errorf("session %s is being opened: %w", r.ID[:8], ErrSessionClosed)
	}
	return l, nil
}

// List returns all sessions, last used first.
func (e *Engine) List() ([]Info, error) {
	records, err := e.o.Store.List()
	list := make([]Info, 0, len(records))
	for _, r := range records {
		list = append(list, e.infoOf(r))
	}
	return list, err
}

// Show returns one session.
func (e *Engine) Show(ref string) (Info, error) {
	r, err := e.o.Store.Find(ref)
	if err != nil {
		return Info{}, err
	}
	return e.infoOf(r), nil
}

func (e *Engine) infoOf(r Record) Info {
	e.mu.Lock()
	l, t := e.live[r.ID], e.transcripts[r.ID]
	e.mu.Unlock()
	if l != nil {
		return l.info()
	}
	info := Info{Record: r, State: StateClosed}
	if t != nil {
		info.Seq, info.Bytes = t.Seq(), t.Size()
	} else if st, err := os.Stat(e.o.Store.TranscriptPath(r.ID)); err == nil {
		info.Bytes = st.Size()
	}
	return info
}

// Rename names a session.
func (e *Engine) Rename(ref, name string) (Info, error) {
	r, err := e.o.Store.Find(ref)
	if err != nil {
		return Info{}, err
	}
	e.mu.Lock()
	l := e.live[r.ID]
	e.mu.Unlock()
	if l != nil {
		return l.rename(name)
	}
	r, err = e.o.Store.Rename(r.ID, name)
	if err != nil {
		return Info{}, err
	}
	return e.infoOf(r), nil
}

// Remove removes a session that is not open.
func (e *Engine) Remove(ref string) error {
	r, err := e.o.Store.Remove(ref)
	if err != nil {
		return err
	}
	e.o.Gate.Forget(r.ID)
	e.mu.Lock()
	t := e.transcripts[r.ID]
	e.mu.Unlock()
	if t != nil {
		t.Close() // its readers get io.EOF
	}
	return nil
}

// CloseSession ends a session's turn and guest. It can be resumed.
func (e *Engine) CloseSession(ref string) error {
	l, err := e.find(ref)
	if errors.Is(err, ErrSessionClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	return l.close()
}

// StartTurn starts a turn and returns its name and the event before it. The
// turn goes on until it ends, Cancel, or the end of the session.
func (e *Engine) StartTurn(ref, text string, o TurnOptions) (name string, from uint64, err error) {
	l, err := e.find(ref)
	if err != nil {
		return "", 0, err
	}
	if o.Policy != nil {
		if err := o.Policy.Check(); err != nil {
			return "", 0, err
		}
	}
	return l.startTurn(text, o)
}

// Cancel cancels the turn under way, or only the one of that name. It is no
// error when there is none.
func (e *Engine) Cancel(ref, turn string) error {
	l, err := e.find(ref)
	if err != nil {
		if errors.Is(err, ErrSessionClosed) {
			return nil
		}
		return err
	}
	l.cancelTurn(turn)
	return nil
}

// SetModel selects the model profile of the next turns.
func (e *Engine) SetModel(ctx context.Context, ref, profile string) (Info, error) {
	l, err := e.find(ref)
	if err != nil {
		return Info{}, err
	}
	m, err := e.o.Model(profile)
	if err != nil {
		return Info{}, err
	}
	if err := l.setModel(ctx, m); err != nil {
		return Info{}, err
	}
	return l.info(), nil
}

// Session is the connection of an open session, for calls to its guest.
func (e *Engine) Session(ref string) (*Session, error) {
	l, err := e.find(ref)
	if err != nil {
		return nil, err
	}
	return l.session, nil
}

// Events returns a reader of a session's events after seq from, open or not.
// Events of a later resume follow too. The caller must call close.
func (e *Engine) Events(ref string, from uint64) (r *Reader, close func(), err error) {
	record, err := e.o.Store.Find(ref)
	if err != nil {
		return nil, nil, err
	}
	t, release, err := e.transcript(record.ID)
	if err != nil {
		return nil, nil, err
	}
	r, err = t.Read(from)
	if err != nil {
		release()
		return nil, nil, err
	}
	return r, sync.OnceFunc(func() { r.Close(); release() }), nil
}

// transcript opens a session's transcript, once for all who use it.
func (e *Engine) transcript(id string) (*Transcript, func(), error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.transcripts[id]
	if t == nil || t.Closed() {
		opened, err := OpenTranscript(e.o.Store.TranscriptPath(id))
		if err != nil {
			return nil, nil, err
		}
		t = &shared{Transcript: opened}
		e.transcripts[id] = t
	}
	t.users++
	return t.Transcript, sync.OnceFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if t.users--; t.users == 0 {
			if e.transcripts[id] == t {
				delete(e.transcripts, id)
			}
			t.Close()
		}
	}), nil
}

// Close ends all sessions and waits for them.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	var all []*live
	for _, l := range e.live {
		all = append(all, l)
	}
	e.mu.Unlock()
	e.end()
	var closing sync.WaitGroup
	for _, l := range all {
		closing.Go(func() {
			<-l.ready
			l.close()
		})
	}
	closing.Wait()
	e.work.Wait()
}

// newCapability makes the secret of one start of a guest.
func newCapability() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
