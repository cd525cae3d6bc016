package agentclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// Protocol plugs the agent protocol into the client engine. Its ids are used
// once, as relays require.
type Protocol struct{ ready Ready }

var _ client.Protocol = (*Protocol)(nil)

// Ready returns what the handshake brought.
func (p *Protocol) Ready() *Ready { return &p.ready }

// legacyRange is how many ids a relay before 0.5 gave to each client.
const legacyRange = math.MaxUint32 / 16

// Setup reads the relay's prologue and the ready frame. It sends nothing.
func (p *Protocol) Setup(ctx context.Context, o *client.Opening) (client.IDSpace, error) {
	if err := p.setup(o); err != nil {
		return client.IDSpace{}, &HandshakeError{Err: err}
	}
	return client.IDSpace{First: p.ready.IDStart, Last: p.ready.IDEnd - 1}, nil
}

func (p *Protocol) setup(o *client.Opening) error {
	var head [8]byte
	if _, err := io.ReadFull(o, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the relay closed the connection without a word: it may be serving its maximum of 128 clients")
		}
		return fmt.Errorf("prologue: %w", err)
	}
	first, second := binary.BigEndian.Uint32(head[:4]), binary.BigEndian.Uint32(head[4:])
	r := &p.ready
	var raw []byte
	var err error
	if isLegacy(first, second) {
		r.WireFormat = WireLegacyV1
		r.IDStart = saturatingAdd(first, 1)
		r.IDEnd = saturatingAdd(first, legacyRange)
		raw, err = o.ReadFrameAfter([4]byte(head[4:]), frame.MaxLength)
	} else {
		r.IDStart, r.IDEnd = max(first, 1), second
		if first >= second || r.IDStart >= r.IDEnd {
			return fmt.Errorf("prologue: no usable ids from %d to %d", first, second)
		}
		raw, err = o.ReadFrame(frame.MaxLength)
	}
	if err != nil {
		return fmt.Errorf("ready frame: %w", err)
	}
	if r.IDStart >= r.IDEnd {
		return fmt.Errorf("prologue: no usable ids after offset %d", first)
	}
	return p.accept(raw)
}

// isLegacy tells the prologue before 0.5, an offset and then a frame, from the
// current one, the start and the end of a range.
func isLegacy(first, second uint32) bool {
	return second >= frame.HeaderSize && second <= frame.MaxLength && (first == 0 || first >= second)
}

// accept takes the ready frame.
func (p *Protocol) accept(raw []byte) error {
	f, err := frame.Parse(raw)
	if err != nil {
		return fmt.Errorf("ready frame: %w", err)
	}
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil {
		return fmt.Errorf("ready frame: %w", err)
	}
	if e.T != agent.Ready.String() {
		return fmt.Errorf("the first message is %s, not %s", printable(e.T), agent.Ready)
	}
	r := &p.ready
	if err := agent.DecodePayload(e.P, &r.Info); err != nil {
		return fmt.Errorf("%s: %w", agent.Ready, err)
	}
	r.raw = raw
	r.GuestVersion = e.V
	r.EmittedVersion = agent.Generation
	if r.WireFormat == WireLegacyV1 {
		r.EmittedVersion = agent.LegacyGeneration
	}
	r.NegotiatedVersion = min(r.EmittedVersion, e.V)
	return nil
}

// Prepare is the send gate. Names that this build does not know pass with
// flags 0: who sends them owns their meaning.
func (p *Protocol) Prepare(name string) (client.Outbound, error) {
	out := client.Outbound{Name: name, Version: p.ready.EmittedVersion}
	if t, known := agent.ParseType(name); known {
		if err := p.ready.EnsureVersionCompat(t); err != nil {
			return client.Outbound{}, err
		}
		out.Flags = t.Flags()
	}
	return out, nil
}

// Encode encodes a payload struct of package agent.
func (p *Protocol) Encode(payload any) ([]byte, error) { return agent.EncodePayload(payload) }

// AppendFrame appends the published form of a message.
func (p *Protocol) AppendFrame(dst []byte, id uint32, out client.Outbound, payload []byte) ([]byte, error) {
	return agent.AppendEncoded(dst, id, out.Flags, out.Version, out.Name, payload)
}

// Decode opens an envelope.
func (p *Protocol) Decode(h client.Header, body []byte) (client.Message, error) {
	e, err := agent.ParseEnvelope(body)
	if err != nil {
		return client.Message{}, &ProtocolError{ID: h.ID, Problem: err.Error()}
	}
	return client.Message{ID: h.ID, Flags: h.Flags, Version: e.V, Name: e.T, Payload: e.P}, nil
}

func saturatingAdd(a, b uint32) uint32 {
	if a > math.MaxUint32-b {
		return math.MaxUint32
	}
	return a + b
}
