package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"msb/protocol/turnrpc"
)

// handle takes a frame from the read loop. It never waits: for a model, a tool, a file or the host.
func (a *agent) handle(f *turnrpc.Frame) {
	switch {
	case f.Method == turnrpc.MethodProviderEvent:
		a.providerEvent(f)
	case f.IsResponse():
		// The answer to a call that was given up.
	case f.Method == turnrpc.MethodCancelTurn:
		var p turnrpc.CancelTurn
		if err := f.DecodeParams(&p); err != nil {
			a.reply(turnrpc.Fail(f.ID, turnrpc.CodeGuest, err.Error()))
			return
		}
		if p.ID != "" {
			a.cancelTurn(p.ID)
		}
		ok, _ := turnrpc.Respond(f.ID, turnrpc.OK{OK: true})
		a.reply(ok)
	case f.Method == turnrpc.MethodUserTurn:
		if err := a.startTurn(f); err != nil {
			a.reply(turnrpc.Fail(f.ID, turnrpc.CodeGuest, err.Error()))
		}
	default:
		a.call(f)
	}
}

// method serves a call of the host.
type method func(a *agent, ctx context.Context, f *turnrpc.Frame) (any, error)

var methods = map[string]method{
	turnrpc.MethodGetContext:   (*agent).getContext,
	turnrpc.MethodSetModel:     (*agent).setModel,
	turnrpc.MethodArchiveChunk: (*agent).archiveChunk,
	turnrpc.MethodExportPatch:  (*agent).exportPatch,
	turnrpc.MethodQuiesce:      (*agent).quiesce,
	turnrpc.MethodSetTime:      (*agent).setTime,
	turnrpc.MethodListFiles:    (*agent).hostListFiles,
	turnrpc.MethodReadFile:     (*agent).hostReadFile,
	turnrpc.MethodSearch:       (*agent).hostSearch,
	turnrpc.MethodApplyPatch:   (*agent).hostApplyPatch,
	turnrpc.MethodRunCommand:   (*agent).hostRunCommand,
	turnrpc.MethodShutdown:     (*agent).shutdown,
}

// call serves a call beside the read loop.
func (a *agent) call(f *turnrpc.Frame) {
	m := methods[f.Method]
	if m == nil {
		a.reply(turnrpc.Fail(f.ID, turnrpc.CodeGuest, fmt.Sprintf("unknown method %q", clip(f.Method, 128))))
		return
	}
	select {
	case a.slots <- struct{}{}:
	default:
		a.reply(turnrpc.Fail(f.ID, turnrpc.CodeBusy, "too many concurrent host calls"))
		return
	}
	a.work.Go(func() {
		defer func() { <-a.slots }()
		if f.Method != turnrpc.MethodQuiesce {
			a.thaw()
		}
		result, err := contained(func() (any, error) { return m(a, a.ctx, f) })
		if err != nil {
			code := turnrpc.CodeGuest
			if errors.Is(err, context.Canceled) {
				code = turnrpc.CodeCanceled
			}
			_ = a.conn.Fail(a.ctx, f.ID, code, err.Error())
			return
		}
		_ = a.conn.Respond(a.ctx, f.ID, turnrpc.CodeGuest, result)
		if f.Method == turnrpc.MethodShutdown {
			a.conn.Close()
		}
	})
}

// contained turns a panic into an error: one bad call must not end the session.
func contained[T any](f func() (T, error)) (result T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v\n%s", p, clip(string(debug.Stack()), 2048))
		}
	}()
	return f()
}

func (a *agent) getContext(context.Context, *turnrpc.Frame) (any, error) {
	return turnrpc.Context{History: a.history.Trimmed()}, nil
}

// setModel selects the model of the next streams. Secrets are of versions 1 and 2, and dropped.
func (a *agent) setModel(_ context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.SetModel
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.model = p.Model
	a.mu.Unlock()
	return turnrpc.OK{OK: true}, nil
}

// shutdownPatience is how long a turn may take to end before the agent does.
const shutdownPatience = 2 * time.Second

func (a *agent) shutdown(ctx context.Context, _ *turnrpc.Frame) (any, error) {
	a.mu.Lock()
	a.closing = true
	t := a.turn
	a.mu.Unlock()
	if t != nil {
		t.cancel()
		select {
		case <-t.ended:
		case <-time.After(shutdownPatience):
		case <-ctx.Done():
		}
	}
	if err := a.history.Save(); err != nil {
		a.log.Error("save the conversation", "err", err)
	}
	return turnrpc.OK{OK: true}, nil
}

// quiesce stops the file system for a snapshot. It goes on with the next call, or after half a minute.
func (a *agent) quiesce(ctx context.Context, _ *turnrpc.Frame) (any, error) {
	a.mu.Lock()
	busy := a.turn != nil
	a.mu.Unlock()
	if busy {
		return nil, errors.New("a turn is in progress: its files change; cancel it or wait for its end")
	}
	dir, err := a.cfg.Tree.OpenDir(ctx, ".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := a.cfg.Machine.Freeze(dir); err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.frozen = true
	a.mu.Unlock()
	return turnrpc.Frozen{Frozen: true}, nil
}

// thaw ends a quiesce: a host that goes on asking has taken its snapshot.
func (a *agent) thaw() {
	a.mu.Lock()
	frozen := a.frozen
	a.frozen = false
	a.mu.Unlock()
	if frozen {
		if err := a.cfg.Machine.Thaw(); err != nil {
			a.log.Error("thaw the file system", "err", err)
		}
	}
}

// setTime follows the host's clock; a machine whose clock is not its own keeps it, which is no error.
func (a *agent) setTime(_ context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.SetTime
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	if err := a.cfg.Machine.SetClock(time.UnixMicro(p.UnixMicro)); err != nil {
		a.log.Info("the clock was not set", "err", err)
	}
	return turnrpc.OK{OK: true}, nil
}

// clip cuts s to n bytes, between characters, and a mark.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
