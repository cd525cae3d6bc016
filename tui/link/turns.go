// Package link holds the connections of the workstation. Each has an owner that
// is waited for; what arrives is handed on as messages, many events at a time,
// and a screen that is busy slows the sender down.
package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/approval"
	"msb/turn/socket"
)

// Messages of a Turns. Box is the sandbox that they are about.
type (
	// UpMsg says that the turn engine answers.
	UpMsg struct {
		Box    string
		Status socket.Status
	}
	// DownMsg says that it does not (any more).
	DownMsg struct {
		Box string
		Err error
	}
	// EventsMsg are events of the session that is followed.
	EventsMsg struct {
		Box, Session string
		Events       []turn.Event
	}
	// RequestsMsg are all requests that wait.
	RequestsMsg struct {
		Box  string
		List []approval.Request
	}
)

const (
	redial       = time.Second
	callTimeout  = 10 * time.Second
	startTimeout = 3 * time.Minute // a turn agent may have to be started
	// Of one message.
	maxBatch      = 512
	maxBatchBytes = 512 << 10
	batchWait     = 12 * time.Millisecond
)

// ErrDown says that the turn engine cannot be reached now.
var ErrDown = errors.New("the sandbox does not answer; is it running?")

// Turns keeps a connection to the turn.sock of one sandbox. Its methods may be
// called concurrently; those that talk block and belong into commands.
type Turns struct {
	box, path string
	send      func(tea.Msg)
	ctx       context.Context
	end       context.CancelFunc
	work      sync.WaitGroup

	mu     sync.Mutex
	client *socket.Client
	unfol  context.CancelFunc // ends the session that is followed
}

// Open starts to connect; send hands messages on and may block.
func Open(box, path string, send func(tea.Msg)) *Turns {
	t := &Turns{box: box, path: path, send: send}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.work.Go(t.run)
	return t
}

// Close ends the connection; turns go on.
func (t *Turns) Close() {
	t.end()
	t.work.Wait()
}

// run dials again and again.
func (t *Turns) run() {
	told := ""
	for t.ctx.Err() == nil {
		err := t.session()
		if t.ctx.Err() != nil {
			return
		}
		if err.Error() != told {
			told = err.Error()
			t.send(DownMsg{t.box, err})
		}
		select {
		case <-t.ctx.Done():
		case <-time.After(redial):
		}
	}
}

// session is one connection.
func (t *Turns) session() error {
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	c, err := socket.Dial(ctx, t.path)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(t.ctx, func() { c.Close() })
	defer stop()
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	watch, err := c.Approvals(ctx, true)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.client = c
	t.mu.Unlock()
	t.send(UpMsg{t.box, status})
	for {
		list, err := watch.Next(t.ctx)
		if err != nil {
			t.mu.Lock()
			t.client = nil
			t.mu.Unlock()
			return fmt.Errorf("the connection to the sandbox is lost: %w", err)
		}
		t.send(RequestsMsg{t.box, list})
	}
}

func (t *Turns) use() (*socket.Client, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return nil, ErrDown
	}
	return t.client, nil
}

// Follow delivers the events of a session after from; the one followed before
// is left. It returns at once.
func (t *Turns) Follow(session string, from uint64) {
	ctx, cancel := context.WithCancel(t.ctx)
	t.mu.Lock()
	if t.unfol != nil {
		t.unfol()
	}
	t.unfol = cancel
	c := t.client
	t.mu.Unlock()
	if c == nil || t.ctx.Err() != nil {
		cancel()
		return
	}
	t.work.Go(func() {
		defer cancel()
		t.follow(ctx, c, session, from)
	})
}

func (t *Turns) follow(ctx context.Context, c *socket.Client, session string, from uint64) {
	sub, err := c.Subscribe(ctx, session, from)
	if err != nil {
		return // the connection is gone and will be made anew, or the session is
	}
	events := make(chan turn.Event, 64)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(events)
		for {
			e, err := sub.Next(ctx)
			if err != nil {
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	})
	defer reader.Wait()
	defer sub.Close()
	for e := range events {
		batch, size := []turn.Event{e}, len(e.Text)
		wait := time.NewTimer(batchWait)
	fill:
		for len(batch) < maxBatch && size < maxBatchBytes {
			select {
			case e, ok := <-events:
				if !ok {
					break fill
				}
				batch, size = append(batch, e), size+len(e.Text)+len(e.ToolArgs)
			case <-wait.C:
				break fill
			}
		}
		wait.Stop()
		if ctx.Err() != nil {
			return
		}
		t.send(EventsMsg{t.box, session, batch})
	}
}

// Range reads events of the past, those after after up to and with upTo.
func (t *Turns) Range(session string, after, upTo uint64) ([]turn.Event, error) {
	c, err := t.use()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	sub, err := c.Subscribe(ctx, session, after)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	var list []turn.Event
	for {
		e, err := sub.Next(ctx)
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		if e.Seq > upTo {
			return list, nil
		}
		list = append(list, e)
		if e.Seq == upTo {
			return list, nil
		}
	}
}

// Output reads what a call printed back from the transcript, at most limit bytes;
// whole is false when there is more.
func (t *Turns) Output(session, id, name string, after, upTo uint64, limit int) (text string, whole bool, err error) {
	c, err := t.use()
	if err != nil {
		return "", false, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, startTimeout)
	defer cancel()
	sub, err := c.Subscribe(ctx, session, after)
	if err != nil {
		return "", false, err
	}
	defer sub.Close()
	var b strings.Builder
	for {
		e, err := sub.Next(ctx)
		if err == io.EOF || err == nil && e.Seq > upTo {
			return b.String(), true, nil
		}
		if err != nil {
			return b.String(), false, err
		}
		// The result of a call that was heard while it ran says it again, shortened for the model.
		if e.ToolID == id && e.Tool == name && (e.Kind == turnrpc.EventOutput || e.Kind == turnrpc.EventTool && b.Len() == 0) {
			if b.Len()+len(e.Text) > limit {
				b.WriteString(e.Text[:limit-b.Len()])
				return b.String(), false, nil
			}
			b.WriteString(e.Text)
		}
		if e.Seq == upTo {
			return b.String(), true, nil
		}
	}
}

func with[T any](t *Turns, limit time.Duration, f func(context.Context, *socket.Client) (T, error)) (T, error) {
	c, err := t.use()
	if err != nil {
		var none T
		return none, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	return f(ctx, c)
}

func none(f func(context.Context, *socket.Client) error) func(context.Context, *socket.Client) (struct{}, error) {
	return func(ctx context.Context, c *socket.Client) (struct{}, error) { return struct{}{}, f(ctx, c) }
}

// Sessions lists the sessions, last used first.
func (t *Turns) Sessions() ([]turn.Info, error) {
	return with(t, callTimeout, func(ctx context.Context, c *socket.Client) ([]turn.Info, error) { return c.Sessions(ctx) })
}

// Resume opens a session, a new one for "".
func (t *Turns) Resume(session, model string) (turn.Info, error) {
	return with(t, startTimeout, func(ctx context.Context, c *socket.Client) (turn.Info, error) {
		return c.Open(ctx, socket.OpenParams{Session: session, Model: model})
	})
}

// Ask starts a turn.
func (t *Turns) Ask(session, text string) (socket.Started, error) {
	return with(t, callTimeout, func(ctx context.Context, c *socket.Client) (socket.Started, error) {
		return c.StartTurn(ctx, socket.TurnParams{Session: session, Text: text, Rich: true})
	})
}

// Stop cancels a turn.
func (t *Turns) Stop(session, name string) error {
	_, err := with(t, callTimeout, none(func(ctx context.Context, c *socket.Client) error { return c.CancelTurn(ctx, session, name) }))
	return err
}

// Answer answers a request.
func (t *Turns) Answer(id string, a approval.Answer) error {
	_, err := with(t, callTimeout, none(func(ctx context.Context, c *socket.Client) error { return c.Answer(ctx, id, a) }))
	return err
}

// SetModel selects the model of a session.
func (t *Turns) SetModel(session, profile string) error {
	_, err := with(t, callTimeout, none(func(ctx context.Context, c *socket.Client) error { return c.SetModel(ctx, session, profile) }))
	return err
}

// Leave ends a session's agent; the session can be resumed.
func (t *Turns) Leave(session string) error {
	_, err := with(t, callTimeout, none(func(ctx context.Context, c *socket.Client) error { return c.CloseSession(ctx, session) }))
	return err
}

// Rename names a session.
func (t *Turns) Rename(session, name string) error {
	_, err := with(t, callTimeout, none(func(ctx context.Context, c *socket.Client) error { return c.Rename(ctx, session, name) }))
	return err
}

// Rules lists what is remembered.
func (t *Turns) Rules() ([]approval.Rule, error) {
	return with(t, callTimeout, func(ctx context.Context, c *socket.Client) ([]approval.Rule, error) { return c.Rules(ctx) })
}

// RemoveRule forgets a rule.
func (t *Turns) RemoveRule(id string) error {
	_, err := with(t, callTimeout, none(func(ctx context.Context, c *socket.Client) error { return c.RemoveRule(ctx, id) }))
	return err
}

// Patch asks the guest for what it changed.
func (t *Turns) Patch(session string) (turnrpc.PatchResult, error) {
	return with(t, callTimeout, func(ctx context.Context, c *socket.Client) (turnrpc.PatchResult, error) {
		return c.ExportPatch(ctx, session)
	})
}
