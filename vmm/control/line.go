package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"msb/protocol/control"
)

var (
	errLineTooLong = fmt.Errorf("%w: longer than %d bytes", control.ErrRequest, maxLine)
	errBusy        = &control.Error{Code: control.CodeBusy, Message: "the runtime has too many requests waiting; try again", Effect: control.EffectNone}
)

// serveLine reads one JSON request, answers it and ends.
func (s *Server) serveLine(ctx context.Context, c net.Conn, r *bufio.Reader) error {
	line, held, err := s.readLine(c, r)
	defer func() { s.lines.give(held) }()
	var reply control.Reply
	switch {
	case errors.Is(err, control.ErrRequest), err == errBusy:
		reply.Error = lineText(err)
	case err != nil:
		return errGone
	case len(bytes.TrimSpace(line)) == 0:
		return nil // a probe
	default:
		request, err := control.ParseRequest(line)
		if err != nil {
			reply.Error = lineText(err)
			break
		}
		if reply, err = s.enqueueLine(ctx, request); err != nil {
			return err
		}
	}
	return s.sendLine(c, reply)
}

// readLine reads up to the end of the line or of the stream, without limit but
// memory. held is what it has taken of the budget.
func (s *Server) readLine(c net.Conn, r *bufio.Reader) (line []byte, held int, err error) {
	whole := time.Now().Add(6 * s.opts.Stall)
	for {
		deadline := time.Now().Add(s.opts.Stall)
		if deadline.After(whole) {
			deadline = whole
		}
		c.SetReadDeadline(deadline)
		if _, err = r.Peek(1); err != nil {
			if err == io.EOF {
				return line, held, nil
			}
			return nil, held, err
		}
		piece, _ := r.Peek(r.Buffered())
		end := bytes.IndexByte(piece, '\n')
		if end >= 0 {
			piece = piece[:end]
		}
		if len(line)+len(piece) > maxLine {
			return nil, held, errLineTooLong
		}
		if grown := len(line) + len(piece); grown > freeLine+held {
			more := max(grown-freeLine-held, min(held, maxLine/4), freeLine)
			if !s.lines.take(more) {
				return nil, held, errBusy
			}
			held += more
		}
		line = append(line, piece...)
		r.Discard(len(piece))
		if end >= 0 {
			return line, held, nil
		}
	}
}

// enqueueLine has a request carried out in its turn.
func (s *Server) enqueueLine(ctx context.Context, request control.Request) (control.Reply, error) {
	if request.Op == control.OpPauseState {
		return control.Reply{OK: true, Paused: s.backend.Paused()}, nil // never waits
	}
	done := make(chan control.Reply, 1)
	if !s.queue.push(&lane{}, func(ctx context.Context) { done <- s.performLine(ctx, request) }) {
		return control.Reply{Error: lineText(errBusy)}, nil
	}
	select {
	case reply := <-done:
		return reply, nil
	case <-ctx.Done():
		return control.Reply{}, ctx.Err()
	}
}

func (s *Server) performLine(ctx context.Context, request control.Request) (reply control.Reply) {
	err := s.guarded(request.Op, func() error {
		b := s.backend
		switch request.Op {
		case control.OpCapabilities:
			caps := b.Capabilities(ctx)
			reply.Capabilities = &caps
			reply.ControlProtocols = []string{control.ProtocolJSON, control.ProtocolCBOR}
		case control.OpMemoryState:
			return memoryReply(&reply)(b.MemoryState(ctx))
		case control.OpMemoryTarget:
			return memoryReply(&reply)(b.SetMemoryTarget(ctx, *request.TotalMiB))
		case control.OpCPUState:
			return cpuReply(&reply)(b.CPUState(ctx))
		case control.OpCPUTarget:
			return cpuReply(&reply)(b.SetCPUTarget(ctx, *request.Online))
		case control.OpSecretsUpdate:
			if r := b.UpdateSecrets(ctx, request.Changes); r.Error != nil {
				return fmt.Errorf("change %d: %s", r.AppliedCount, r.Error.Message)
			}
		case control.OpPause:
			return b.Pause(ctx)
		case control.OpResume:
			return b.Resume(ctx)
		case control.OpMetrics:
			m, err := b.Metrics(ctx)
			if err != nil {
				return err
			}
			reply.Metrics = &m
		default:
			return fmt.Errorf("%w: unknown operation %q", control.ErrRequest, cut(request.Op, 64))
		}
		return nil
	})
	if err != nil {
		return control.Reply{Error: lineText(err)}
	}
	reply.OK = true
	return reply
}

func memoryReply(r *control.Reply) func(control.MemoryState, error) error {
	return func(m control.MemoryState, err error) error {
		r.Memory = &m
		return err
	}
}

func cpuReply(r *control.Reply) func(control.CPUState, error) error {
	return func(c control.CPUState, err error) error {
		r.CPU = &c
		return err
	}
}

// lineText is err as JSON reports it: without the code.
func lineText(err error) string {
	var e *control.Error
	if errors.As(err, &e) {
		return cut(e.Message, maxMessage)
	}
	return cut(err.Error(), maxMessage)
}

func (s *Server) sendLine(c net.Conn, reply control.Reply) error {
	b, err := control.AppendLine(nil, reply)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(s.opts.Stall))
	if _, err := c.Write(b); err != nil {
		return errGone
	}
	// A client that is still writing would lose the reply with the connection.
	if u, ok := c.(*net.UnixConn); ok && u.CloseWrite() == nil && reply.Error != "" {
		c.SetReadDeadline(time.Now().Add(min(s.opts.Stall, time.Second)))
		_, _ = io.Copy(io.Discard, io.LimitReader(c, maxLine)) // its own end, whatever it is, is ours too
	}
	return nil
}
