package controlclient

import (
	"context"
	"errors"
	"fmt"
	"io"

	"msb/protocol/client"
	"msb/protocol/control"
	"msb/protocol/frame"
	"msb/protocol/record"
)

// Protocol plugs the framed control protocol into the client engine. Its ids
// come back after their reply.
type Protocol struct {
	offer   control.Hello
	welcome control.Welcome
}

var _ client.Protocol = (*Protocol)(nil)

// Setup sends the hello and reads the welcome. A refusal is a *control.Error.
func (p *Protocol) Setup(ctx context.Context, o *client.Opening) (client.IDSpace, error) {
	if err := p.setup(o); err != nil {
		return client.IDSpace{}, &HandshakeError{Err: err}
	}
	return client.AllIDs(true), nil
}

func (p *Protocol) setup(o *client.Opening) error {
	wire, err := control.AppendFrame(nil, 0, 0, control.Generation, control.TypeHello, p.offer)
	if err != nil {
		return err
	}
	if _, err := o.Write(wire); err != nil {
		return fmt.Errorf("send the hello: %w", err)
	}
	raw, err := o.ReadFrame(control.MaxOpening)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the connection was closed without a word")
		}
		return fmt.Errorf("read the welcome: %w", err)
	}
	f, err := frame.Parse(raw)
	if err != nil {
		return fmt.Errorf("read the welcome: %w", err)
	}
	e, err := control.ParseEnvelope(f.Body)
	if err != nil {
		return fmt.Errorf("read the welcome: %w", err)
	}
	if f.ID != 0 || f.Flags != frame.FlagTerminal || e.V != control.Generation {
		return fmt.Errorf("an answer with id %d, flags 0x%02x, generation %d", f.ID, f.Flags, e.V)
	}
	switch e.T {
	case control.TypeError:
		var refusal control.Error
		if err := record.DecodeStrict(e.P, &refusal); err != nil {
			return err
		}
		return &refusal
	case control.TypeWelcome:
		if err := record.DecodeStrict(e.P, &p.welcome); err != nil {
			return err
		}
		return p.welcome.Check(p.offer)
	}
	return fmt.Errorf("the first message is %.60q", e.T)
}

// Prepare admits every name: who sends one that this package does not know owns
// its meaning.
func (p *Protocol) Prepare(name string) (client.Outbound, error) {
	return client.Outbound{Name: name, Version: p.welcome.Generation}, nil
}

// Encode encodes a payload struct of package control.
func (p *Protocol) Encode(payload any) ([]byte, error) { return record.Encode(payload) }

// AppendFrame appends the published form of a request, within the agreed size.
func (p *Protocol) AppendFrame(dst []byte, id uint32, out client.Outbound, payload []byte) ([]byte, error) {
	b, err := control.AppendEncoded(dst, id, out.Flags, out.Version, out.Name, payload)
	if err == nil && len(b)-len(dst)-frame.PrefixSize > int(p.welcome.MaxFrameSize) {
		return dst, fmt.Errorf("%w: a request of %d bytes, agreed are at most %d", frame.ErrTooLarge, len(b)-len(dst), p.welcome.MaxFrameSize)
	}
	return b, err
}

// Decode opens a reply by the strict rules.
func (p *Protocol) Decode(h client.Header, body []byte) (client.Message, error) {
	e, err := control.ParseEnvelope(body)
	if err != nil {
		return client.Message{}, err
	}
	return client.Message{ID: h.ID, Flags: h.Flags, Version: e.V, Name: e.T, Payload: e.P}, nil
}
