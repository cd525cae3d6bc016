package turn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"msb/protocol/turnrpc"
)

// ErrHostTooOld reports a host below protocol 4: it would drop the agent's calls without a word.
var ErrHostTooOld = errors.New("host protocol too old")

// helloTimeout bounds the wait for the host's answer to hello.
const helloTimeout = 30 * time.Second

// agent is a session's agent.
type agent struct {
	cfg  Config
	log  *slog.Logger
	conn *turnrpc.Conn
	now  func() time.Time

	extensions map[string]int // what the host listed, too
	history    *conversation
	tokens     tokens
	calls      atomic.Uint64 // ids of calls to the host
	mcpCalls   atomic.Uint64

	work    sync.WaitGroup // everything that the connection started
	slots   chan struct{}  // calls of the host under way
	replies chan *turnrpc.Frame

	ctx  context.Context // ends with the connection
	stop context.CancelFunc

	mu      sync.Mutex
	model   turnrpc.GuestModel
	turn    *turn // the one under way
	streams map[string]*stream
	closing bool // shutdown came
	frozen  bool // the file system is, until the next call

	archive archive
}

// hostCalls is how many calls of the host, turns included, may be under way.
const hostCalls = 16

// Serve says hello on rwc and serves the host until it says shutdown or closes the connection, which are no errors.
// Closing rwc must end a Read and a Write that are under way.
func Serve(ctx context.Context, rwc io.ReadWriteCloser, cfg Config) error {
	a := &agent{
		cfg:     cfg,
		log:     cfg.Log,
		now:     time.Now,
		model:   cfg.Guest.Model,
		slots:   make(chan struct{}, hostCalls),
		replies: make(chan *turnrpc.Frame, 4*hostCalls),
		streams: make(map[string]*stream),
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Guest.Secrets) > 0 || len(cfg.Guest.MCPServers) > 0 {
		rwc.Close()
		return ErrSecrets
	}
	var err error
	if a.history, err = openConversation(cfg.State, a.log); err != nil {
		rwc.Close()
		return err
	}
	a.ctx, a.stop = context.WithCancel(ctx)
	defer a.stop()
	if err := a.hello(rwc); err != nil {
		rwc.Close()
		return err
	}
	a.conn = turnrpc.NewConn(rwc, a.handle)
	end := context.AfterFunc(a.ctx, func() { a.conn.Close() })
	defer end()
	a.work.Go(a.sendReplies)
	err = a.conn.Serve()
	a.stop()
	a.work.Wait()
	a.archive.close()
	if errors.Is(err, io.EOF) || errors.Is(err, turnrpc.ErrClosed) {
		return nil
	}
	return err
}

// hello is the first exchange. It is over before anything else is read, so that no call comes before what was agreed.
func (a *agent) hello(rwc io.ReadWriteCloser) error {
	ctx, cancel := context.WithTimeoutCause(a.ctx, helloTimeout, fmt.Errorf("no answer to hello in %v", helloTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { rwc.Close() })
	r, err := a.exchange(rwc)
	if !stop() {
		err = context.Cause(ctx)
	}
	switch {
	case err != nil:
		return fmt.Errorf("the host did not accept the session: %w", err)
	case !r.Accepted:
		return fmt.Errorf("the host refused the session: %q", clip(r.Message, 512))
	case r.Protocol < turnrpc.Version:
		return fmt.Errorf("%w: it speaks protocol %d, and this guest needs %d for models, MCP and approvals: upgrade the host (make build) and start the session again",
			ErrHostTooOld, turnrpc.Normalize(r.Protocol), turnrpc.Version)
	}
	a.extensions = turnrpc.CommonExtensions(turnrpc.Extensions(), r.Extensions)
	return nil
}

func (a *agent) exchange(rwc io.ReadWriter) (turnrpc.HelloResult, error) {
	var r turnrpc.HelloResult
	call, err := turnrpc.Call(turnrpc.HelloID, turnrpc.MethodHello, turnrpc.Hello{
		SessionID:  a.cfg.Guest.SessionID,
		Capability: a.cfg.Guest.Capability,
		ImageID:    a.cfg.ImageID,
		Protocol:   turnrpc.Version,
		GuestReady: true,
		History:    a.history.Trimmed(),
		Extensions: turnrpc.Extensions(),
	})
	if err != nil {
		return r, err
	}
	b, err := turnrpc.Append(nil, call)
	if err != nil {
		return r, err
	}
	if _, err := rwc.Write(b); err != nil {
		return r, err
	}
	f, err := turnrpc.Read(rwc)
	if err != nil {
		return r, err
	}
	if f.ID != turnrpc.HelloID || !f.IsResponse() {
		return r, fmt.Errorf("the host began with %q, id %q, and not with the answer to hello", clip(f.Method, 64), clip(f.ID, 64))
	}
	return r, f.Decode(turnrpc.MethodHello, &r)
}

// hostKnows tells whether the host listed an extension.
func (a *agent) hostKnows(extension string) bool { return a.extensions[extension] > 0 }

// sendReplies sends what the read loop must not wait for.
func (a *agent) sendReplies() {
	for {
		select {
		case f := <-a.replies:
			_ = a.conn.Send(a.ctx, f) // a lost connection ends everything anyway
		case <-a.ctx.Done():
			return
		case <-a.conn.Done():
			return
		}
	}
}

// reply queues an answer from the read loop. A host that asks without ever reading the answers is cut off.
func (a *agent) reply(f *turnrpc.Frame) {
	select {
	case a.replies <- f:
	default:
		a.log.Error("the host sends calls and does not read the answers")
		a.conn.Close()
	}
}
