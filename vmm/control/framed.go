package control

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"msb/protocol/control"
	"msb/protocol/frame"
	"msb/protocol/record"
)

// session is one framed connection after its welcome.
type session struct {
	s    *Server
	c    net.Conn
	r    *bufio.Reader
	lane *lane
	held budget // bytes of its requests that are under way

	generation uint8
	maxFrame   int
	maxFlight  int

	out chan reply // room for every request that may be in flight: a job never waits

	jobs   sync.WaitGroup // requests in the queue or being carried out
	broken atomic.Bool    // no reply is written any more

	mu     sync.Mutex
	flight map[uint32]int // id → bytes held
}

type reply struct {
	id   uint32
	wire []byte
}

// serveFramed runs the handshake and then requests until the client goes or
// breaks a rule.
func (s *Server) serveFramed(ctx context.Context, c net.Conn, r *bufio.Reader) error {
	x := &session{s: s, c: c, r: r, lane: &lane{}, held: budget{limit: maxConnBytes}, flight: map[uint32]int{}}
	if err := x.handshake(); err != nil {
		return err
	}
	x.out = make(chan reply, x.maxFlight)
	var writer sync.WaitGroup
	writer.Go(x.write)
	err := x.read()
	if err == io.EOF {
		// It has said all it wanted and may still read.
		err = nil
		x.finish(ctx)
	} else {
		x.abandon()
	}
	close(x.out)
	writer.Wait()
	x.settle()
	return err
}

// rejected is the published text of a handshake error, the same for all. What
// was wrong with the hello stands in the log.
const rejected = "operation rejected"

// handshake reads the hello and answers it. What is wrong with it is answered
// too, and then the connection ends.
func (x *session) handshake() error {
	raw, err := x.opening()
	var hello control.Hello
	if err == nil {
		hello, err = parseHello(raw)
	}
	var refusal *control.Error
	switch {
	case errors.As(err, &refusal):
		wire, aerr := control.AppendFrame(nil, 0, frame.FlagTerminal, control.Generation, control.TypeError,
			&control.Error{Code: refusal.Code, Message: rejected, Effect: control.EffectNone})
		if aerr != nil {
			return aerr
		}
		x.c.SetWriteDeadline(time.Now().Add(x.s.opts.Stall))
		_, _ = x.c.Write(wire) // it ends either way
		return err
	case err != nil:
		return errGone
	}
	x.generation = control.Generation
	x.maxFrame = int(hello.MaxFrameSize)
	x.maxFlight = int(min(hello.MaxInFlight, control.DefaultMaxFlight))
	wire, err := control.AppendFrame(nil, 0, frame.FlagTerminal, control.Generation, control.TypeWelcome, control.Welcome{
		Protocol: control.ProtocolName, Generation: x.generation,
		MaxFrameSize: hello.MaxFrameSize, MaxInFlight: uint32(x.maxFlight),
	})
	if err != nil {
		return err
	}
	x.c.SetDeadline(time.Now().Add(x.s.opts.Stall))
	if _, err := x.c.Write(wire); err != nil {
		return errGone
	}
	return x.c.SetDeadline(time.Time{})
}

// opening reads the first frame.
func (x *session) opening() ([]byte, error) {
	var prefix [frame.PrefixSize]byte
	if _, err := io.ReadFull(x.r, prefix[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(prefix[:])
	if length < frame.HeaderSize || length > control.MaxOpening {
		return nil, handshakeError("an opening frame of %d bytes", length)
	}
	raw := make([]byte, frame.PrefixSize+int(length))
	copy(raw, prefix[:])
	_, err := io.ReadFull(x.r, raw[frame.PrefixSize:])
	return raw, err
}

func parseHello(raw []byte) (h control.Hello, err error) {
	f, err := frame.Parse(raw)
	if err != nil {
		return h, handshakeError("%v", err)
	}
	e, err := control.ParseEnvelope(f.Body)
	switch {
	case err != nil:
		return h, handshakeError("%v", err)
	case e.T != control.TypeHello:
		return h, handshakeError("the first message is %q", cut(e.T, 64))
	case f.ID != 0 || f.Flags != 0 || e.V != control.Generation:
		return h, handshakeError("a hello with id %d, flags 0x%02x, generation %d", f.ID, f.Flags, e.V)
	}
	if err := record.DecodeStrict(e.P, &h); err != nil {
		return h, handshakeError("%v", err)
	}
	if err := h.Check(); err != nil {
		return h, handshakeError("%v", err)
	}
	if h.MinGeneration > control.Generation {
		return h, &control.Error{Code: control.CodeUnsupportedGeneration, Effect: control.EffectNone,
			Message: fmt.Sprintf("this runtime speaks control generation %d, offered were %d to %d", control.Generation, h.MinGeneration, h.MaxGeneration)}
	}
	return h, nil
}

func handshakeError(format string, args ...any) error {
	return &control.Error{Code: control.CodeInvalidHandshake, Message: fmt.Sprintf(format, args...), Effect: control.EffectNone}
}

// errMisuse is why a client that breaks the rules loses its connection.
var errMisuse = errors.New("protocol violation")

func misuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errMisuse}, args...)...)
}

// read takes requests until the stream ends (io.EOF between frames) or a rule
// is broken.
func (x *session) read() error {
	for {
		if err := x.c.SetReadDeadline(time.Time{}); err != nil {
			return errGone
		}
		if _, err := x.r.Peek(1); err != nil { // may take for ever
			if err == io.EOF {
				return io.EOF
			}
			return errGone
		}
		if err := x.c.SetReadDeadline(time.Now().Add(x.s.opts.Frame)); err != nil {
			return errGone
		}
		if err := x.request(); err != nil {
			return err
		}
	}
}

// request reads one frame and admits it.
func (x *session) request() error {
	var head [frame.Overhead]byte
	if _, err := io.ReadFull(x.r, head[:]); err != nil {
		return cutOff(err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if int64(length) > int64(x.maxFrame) || length < frame.HeaderSize {
		return misuse("a frame of %d bytes, agreed are at most %d", length, x.maxFrame)
	}
	id, flags := binary.BigEndian.Uint32(head[4:]), head[8]
	if id == 0 {
		return misuse("a request with id 0")
	}
	body, held, err := x.body(int(length) - frame.HeaderSize)
	if err != nil {
		x.give(held)
		return cutOff(err)
	}
	if err := x.begin(id, held); err != nil {
		x.give(held)
		return err
	}
	if body == nil {
		x.reply(id, "", errBusy)
		return nil
	}
	e, err := control.ParseEnvelope(body)
	switch {
	case err != nil:
		return misuse("%v", err)
	case e.T == control.TypeHello || e.T == control.TypeWelcome:
		return misuse("a second %s", e.T)
	case e.V != x.generation || flags != 0:
		x.reply(id, "", &control.Error{Code: control.CodeInvalidRequest, Effect: control.EffectNone,
			Message: fmt.Sprintf("a request of generation %d with flags 0x%02x, agreed are %d and 0", e.V, flags, x.generation)})
		return nil
	}
	do, err := x.s.operation(e)
	if err != nil {
		x.reply(id, "", err)
		return nil
	}
	x.jobs.Add(1)
	if !x.s.queue.push(x.lane, func(ctx context.Context) {
		defer x.jobs.Done()
		if payload, err := do(ctx); err != nil {
			x.reply(id, "", err)
		} else {
			x.reply(id, control.ReplyType(e.T), payload)
		}
	}) {
		x.jobs.Done()
		x.reply(id, "", errBusy)
	}
	return nil
}

// body reads n bytes, holding them as they come. It returns nil without an
// error when there is no room for them, and passes over them then.
func (x *session) body(n int) (body []byte, held int, err error) {
	const piece = 64 << 10
	body = make([]byte, 0, min(n, piece))
	for len(body) < n {
		more := min(n-len(body), piece)
		if !x.take(more) {
			_, err := io.CopyN(io.Discard, x.r, int64(n-len(body)))
			return nil, held, err
		}
		held += more
		at := len(body)
		body = append(body, make([]byte, more)...)
		if _, err := io.ReadFull(x.r, body[at:]); err != nil {
			return nil, held, err
		}
	}
	return body, held, nil
}

func (x *session) take(n int) bool {
	if !x.held.take(n) {
		return false
	}
	if !x.s.frames.take(n) {
		x.held.give(n)
		return false
	}
	return true
}

func (x *session) give(n int) {
	x.held.give(n)
	x.s.frames.give(n)
}

// begin takes an id for a request that holds so many bytes.
func (x *session) begin(id uint32, held int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, taken := x.flight[id]; taken {
		return misuse("id %d is in flight already", id)
	}
	if len(x.flight) >= x.maxFlight {
		return misuse("more than %d requests in flight", x.maxFlight)
	}
	x.flight[id] = held
	return nil
}

// end gives an id and its bytes back. It comes before the reply is written: the
// client may use the id again as soon as it has read that.
func (x *session) end(id uint32) {
	x.mu.Lock()
	held := x.flight[id]
	delete(x.flight, id)
	x.mu.Unlock()
	x.give(held)
}

// reply hands the reply to a request to the writer; with err it is an error.
func (x *session) reply(id uint32, name string, payload any) {
	if err, ok := payload.(error); ok {
		name, payload = control.TypeError, problem(err, control.EffectUnknown)
	}
	wire, err := control.AppendFrame(nil, id, frame.FlagTerminal, x.generation, name, payload)
	if err != nil || len(wire) > maxReply {
		wire, _ = control.AppendFrame(nil, id, frame.FlagTerminal, x.generation, control.TypeError,
			&control.Error{Code: control.CodeInternal, Message: "the reply is too large", Effect: control.EffectUnknown})
	}
	x.out <- reply{id, wire}
}

// write sends replies. When the client does not take one in time it ends the
// connection and only gives ids back from there on.
func (x *session) write() {
	for r := range x.out {
		x.end(r.id)
		if x.broken.Load() {
			continue
		}
		x.c.SetWriteDeadline(time.Now().Add(x.s.opts.Stall))
		if _, err := x.c.Write(r.wire); err != nil {
			x.broken.Store(true)
			x.c.Close()
		}
	}
}

// finish waits for the requests that are under way, unless the server ends.
func (x *session) finish(ctx context.Context) {
	stop := context.AfterFunc(ctx, x.drop)
	defer stop()
	x.jobs.Wait()
}

// drop forgets the requests that nobody has begun to carry out.
func (x *session) drop() {
	for range x.s.queue.drop(x.lane) {
		x.jobs.Done()
	}
}

// abandon ends a session whose client has gone or broke a rule.
func (x *session) abandon() {
	x.broken.Store(true)
	x.c.Close()
	x.drop()
	x.jobs.Wait()
}

// settle gives back what the dropped requests held.
func (x *session) settle() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, held := range x.flight {
		x.give(held)
	}
	clear(x.flight)
}

// cutOff tells a frame that never came whole from a connection that is gone.
func cutOff(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return misuse("a frame that was begun did not come in time")
	}
	return errGone
}
