package socket

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"

	"msb/turn"
	"msb/turn/approval"
)

// peer is one client's connection.
type peer struct {
	s   *Server
	c   *net.UnixConn
	who turn.Credentials
	out lineWriter
	ctx context.Context // ends with the connection
	end context.CancelFunc

	mu     sync.Mutex
	next   uint64
	subs   map[uint64]*sub
	calls  map[uint64]context.CancelFunc // requests under way
	leases []lease
	gone   bool
}

type lease struct{ session, turn string }

// sub is a subscription to events or a watch over approvals. What it holds
// back is read from where it is, when the client asks for more.
type sub struct {
	ctx   context.Context
	end   func()
	token chan struct{} // held by the one next that runs
	next  func(ctx context.Context) (batch, error)
}

func newPeer(s *Server, c *net.UnixConn, who turn.Credentials) *peer {
	p := &peer{s: s, c: c, who: who, out: lineWriter{w: c}, subs: make(map[uint64]*sub), calls: make(map[uint64]context.CancelFunc)}
	p.ctx, p.end = context.WithCancel(s.ctx)
	return p
}

// run reads requests until the connection ends, and leaves nothing behind.
func (p *peer) run() {
	defer context.AfterFunc(p.ctx, func() { p.c.Close() })()
	var work sync.WaitGroup
	slots := make(chan struct{}, maxRequests)
	in := bufio.NewReaderSize(p.c, 64<<10)
	for {
		line, err := readLine(in, maxRequest)
		if err != nil {
			if err == errLine {
				p.out.write(response{Error: &Error{Code: "bad_request", Message: fmt.Sprintf("a request has more than %d bytes", maxRequest)}})
			}
			break
		}
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			p.out.write(response{Error: errorOf(fmt.Errorf("%w: %v", ErrRequest, err))})
			break // what follows cannot be told apart
		}
		if q.Method == methodAbandon {
			p.abandon(q)
			continue
		}
		ctx, cancel := context.WithCancel(p.ctx)
		p.mu.Lock()
		_, twice := p.calls[q.ID]
		if !twice {
			p.calls[q.ID] = cancel
		}
		p.mu.Unlock()
		if twice {
			cancel()
			p.out.write(response{ID: q.ID, Error: errorOf(fmt.Errorf("%w: id %d is in use", ErrRequest, q.ID))})
			continue
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			r := p.answer(ctx, q)
			p.mu.Lock()
			delete(p.calls, q.ID)
			p.mu.Unlock()
			cancel()
			if p.out.write(r) != nil {
				p.end()
			}
		})
	}
	p.end()
	work.Wait()
	p.mu.Lock()
	p.gone = true
	subs, leases := p.subs, p.leases
	p.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
	for _, l := range leases {
		p.s.engine.Cancel(l.session, l.turn)
	}
}

func (p *peer) abandon(q request) {
	var a abandonParams
	if json.Unmarshal(q.Params, &a) != nil {
		return
	}
	p.mu.Lock()
	cancel := p.calls[a.Request]
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// answer serves a request. A panic is the failure of that request.
func (p *peer) answer(ctx context.Context, q request) (r response) {
	r.ID = q.ID
	defer func() {
		if x := recover(); x != nil {
			p.s.log.Error("panic in a request", "method", q.Method, "panic", x, "stack", string(debug.Stack()))
			r.Result, r.Error = nil, &Error{Code: "failed", Message: "internal error; see the runtime's log"}
		}
	}()
	result, err := p.serve(ctx, q)
	if err == nil {
		r.Result, err = json.Marshal(result)
	}
	if err != nil {
		r.Result, r.Error = nil, errorOf(err)
	}
	return r
}

// decode decodes params strictly: a field that is not known could be a limit
// that the client believes in.
func decode(q request, v any) error {
	if len(q.Params) == 0 {
		return fmt.Errorf("%w: %s needs params", ErrRequest, q.Method)
	}
	if err := strict(q.Params, v); err != nil {
		return fmt.Errorf("%w: %s: %v", ErrRequest, q.Method, err)
	}
	return nil
}

type none struct{}

func (p *peer) serve(ctx context.Context, q request) (any, error) {
	e := p.s.engine
	var ref refParams
	switch q.Method {
	case methodShow, methodClose, methodRename, methodRemove, methodModel, methodPatch, methodCancel, methodEvents:
		if err := decode(q, &ref); err != nil {
			return nil, err
		}
	}
	switch q.Method {
	case methodStatus:
		list, err := e.List()
		return Status{Sandbox: e.Sandbox(), Sessions: list, Pending: len(e.Gate().Pending()), Models: e.Models()}, err
	case methodSessions:
		return e.List()
	case methodShow:
		return e.Show(ref.Session)
	case methodOpen:
		return p.open(ctx, q)
	case methodClose:
		return none{}, e.CloseSession(ref.Session)
	case methodRename:
		return e.Rename(ref.Session, ref.Name)
	case methodRemove:
		return none{}, e.Remove(ref.Session)
	case methodModel:
		return e.SetModel(ctx, ref.Session, ref.Model)
	case methodPatch:
		s, err := e.Session(ref.Session)
		if err != nil {
			return nil, err
		}
		return s.ExportPatch(ctx)
	case methodStart:
		return p.startTurn(q)
	case methodCancel:
		return none{}, e.Cancel(ref.Session, ref.Turn)
	case methodEvents:
		return p.subscribe(ref)
	case methodApprovals, methodPending, methodAnswer, methodRules, methodRemRule:
		return p.approvals(q)
	case methodNext, methodEnd:
		var s subParams
		if err := decode(q, &s); err != nil {
			return nil, err
		}
		if q.Method == methodEnd {
			p.unsubscribe(s.Sub)
			return none{}, nil
		}
		return p.nextOf(ctx, s.Sub)
	}
	return nil, fmt.Errorf("%w: unknown method %.64q", ErrRequest, q.Method)
}

func (p *peer) open(ctx context.Context, q request) (any, error) {
	var o OpenParams
	if err := decode(q, &o); err != nil {
		return nil, err
	}
	if o.Session == "" {
		return p.s.engine.Open(ctx, o.Name, o.Model)
	}
	return p.s.engine.Resume(ctx, o.Session, o.Model)
}

func (p *peer) startTurn(q request) (any, error) {
	var t TurnParams
	if err := decode(q, &t); err != nil {
		return nil, err
	}
	info, err := p.s.engine.Show(t.Session)
	if err != nil {
		return nil, err
	}
	name, from, err := p.s.engine.StartTurn(info.ID, t.Text, turn.TurnOptions{
		MaxTurns: t.MaxTurns, Timeout: t.Timeout, RichEvents: t.Rich, Policy: t.Policy,
	})
	if err != nil {
		return nil, err
	}
	if t.Lease {
		p.mu.Lock()
		if len(p.leases) >= maxRequests { // those of old turns do nothing any more
			p.leases = p.leases[1:]
		}
		p.leases = append(p.leases, lease{info.ID, name})
		p.mu.Unlock()
	}
	return Started{Turn: name, From: from}, nil
}

func (p *peer) approvals(q request) (any, error) {
	gate := p.s.engine.Gate()
	switch q.Method {
	case methodPending:
		return gate.Pending(), nil
	case methodRules:
		return gate.Rules(), nil
	case methodRemRule:
		var id idParams
		if err := decode(q, &id); err != nil {
			return nil, err
		}
		return none{}, gate.RemoveRule(id.ID, p.name(""))
	case methodAnswer:
		var a answerParams
		if err := decode(q, &a); err != nil {
			return nil, err
		}
		a.By = p.name(a.By)
		return none{}, gate.Answer(a.ID, a.Answer)
	default:
		var w watchParams
		if err := decode(q, &w); err != nil {
			return nil, err
		}
		return p.watch(w)
	}
}

// name says who the client is: what it calls itself, and what the kernel says.
func (p *peer) name(self string) string {
	kernel := fmt.Sprintf("uid %d, pid %d", p.who.UID, p.who.PID)
	if self == "" {
		return kernel
	}
	return fmt.Sprintf("%.64q (%s)", self, kernel)
}

func (p *peer) subscribe(ref refParams) (any, error) {
	r, done, err := p.s.engine.Events(ref.Session, ref.From)
	if err != nil {
		return nil, err
	}
	return p.add(func(ctx context.Context) (batch, error) {
		var b batch
		e, err := r.Next(ctx)
		size := 0
		for more := true; err == nil && more; {
			b.Events = append(b.Events, e)
			size += len(e.Text) + len(e.ToolArgs) + len(e.Err) + 512
			if len(b.Events) == batchEvents || size >= batchBytes {
				break
			}
			e, more, err = r.TryNext()
		}
		return b, err
	}, done)
}

func (p *peer) watch(w watchParams) (any, error) {
	gate := p.s.engine.Gate()
	release := func() {}
	if w.Approver {
		release = gate.Attach()
	}
	changed := make(chan struct{})
	close(changed) // the first list comes at once
	var seen <-chan struct{} = changed
	return p.add(func(ctx context.Context) (batch, error) {
		select {
		case <-seen:
		case <-ctx.Done():
			return batch{}, ctx.Err()
		}
		var list []approval.Request
		list, seen = gate.Watch()
		return batch{Requests: list}, nil
	}, release)
}

// maxSubs bounds the subscriptions and watches of a client.
const maxSubs = 128

func (p *peer) add(next func(context.Context) (batch, error), done func()) (any, error) {
	ctx, cancel := context.WithCancel(p.ctx)
	s := &sub{ctx: ctx, token: make(chan struct{}, 1), next: next}
	s.end = sync.OnceFunc(func() {
		cancel()
		s.token <- struct{}{} // a next that runs has ended; none comes after
		done()
	})
	p.mu.Lock()
	full := p.gone || len(p.subs) >= maxSubs
	if !full {
		p.next++
		p.subs[p.next] = s
	}
	id := p.next
	p.mu.Unlock()
	if full {
		s.end()
		return nil, fmt.Errorf("%w: %d subscriptions are open", ErrRequest, maxSubs)
	}
	return subParams{Sub: id}, nil
}

func (p *peer) unsubscribe(id uint64) {
	p.mu.Lock()
	s := p.subs[id]
	delete(p.subs, id)
	p.mu.Unlock()
	if s != nil {
		s.end()
	}
}

// nextOf waits for what a subscription has. Its end is no error.
func (p *peer) nextOf(ctx context.Context, id uint64) (batch, error) {
	p.mu.Lock()
	s := p.subs[id]
	p.mu.Unlock()
	if s == nil {
		return batch{}, fmt.Errorf("%w: no subscription %d", ErrRequest, id)
	}
	select {
	case s.token <- struct{}{}:
	default:
		return batch{}, fmt.Errorf("%w: subscription %d is being read already", ErrRequest, id)
	}
	defer func() { <-s.token }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	b, err := s.next(ctx)
	switch {
	case err == nil || len(b.Events) > 0:
		return b, nil // an error comes again
	case errors.Is(err, io.EOF), s.ctx.Err() != nil:
		return batch{End: true}, nil
	case ctx.Err() != nil:
		return batch{}, ctx.Err()
	}
	return batch{End: true, Err: err.Error()}, nil
}
