package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Guest is a booted guest: its ports, and what it said about itself.
type Guest struct {
	Generation uint8 // of its agent
	Ready      agent.ReadyPayload
	ReadyFrame []byte // as it was on the wire
	User       agent.ResolvedUser

	pool        *pool
	control     *source
	bulk        *source // nil unless the bulk port is bound
	controlPort io.ReadWriteCloser
	bulkPort    io.ReadWriteCloser
}

// Dual says whether raw records travel on a port of their own.
func (g *Guest) Dual() bool { return g.bulk != nil }

// Boot brings a guest up over its ports: bootstrap, init.resolved, init.ack, the binding of the bulk port
// (nil when there is none), and ready. It returns as soon as the guest is ready. When ctx ends, and on any
// failure, both ports are closed.
func Boot(ctx context.Context, control, bulk io.ReadWriteCloser, payload agent.BootstrapPayload) (_ *Guest, err error) {
	closePorts := func() {
		control.Close()
		if bulk != nil {
			bulk.Close()
		}
	}
	stop := context.AfterFunc(ctx, closePorts)
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			closePorts()
			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
		}
	}()
	g := &Guest{pool: &pool{}, controlPort: control}
	g.control = newSource(control, g.pool)

	bound := make(chan binding, 1)
	if bulk != nil {
		go func() { bound <- bind(bulk) }()
		defer func() {
			if err != nil {
				closePorts()
			}
			if g.bulk == nil {
				bulk.Close()
				<-bound
			}
		}()
	}
	if err := g.send(agent.Bootstrap, payload); err != nil {
		return nil, fmt.Errorf("send bootstrap to the guest: %w", err)
	}
	var resolved agent.InitResolvedPayload
	if _, err := g.expect(agent.InitResolved, &resolved); err != nil {
		return nil, err
	}
	g.User = resolved.DefaultUser
	if err := g.send(agent.InitAck, agent.Empty{}); err != nil {
		return nil, fmt.Errorf("acknowledge the guest's init: %w", err)
	}
	raw, err := g.expect(agent.Ready, &g.Ready)
	if err != nil {
		return nil, err
	}
	g.ReadyFrame = raw
	if e, err := agent.ParseEnvelope(raw[frame.Overhead:]); err == nil {
		g.Generation = e.V
	}
	return g, g.bindTo(ctx, bulk, bound)
}

// bindTo checks that ready and the binding of the bulk port say the same.
func (g *Guest) bindTo(ctx context.Context, bulk io.ReadWriteCloser, bound chan binding) error {
	t := g.Ready.Bulk
	if t == nil {
		select {
		case b := <-bound:
			bound <- b
			if b.err == nil {
				return errors.New("guest bound its bulk port but its ready does not name it")
			}
		default:
		}
		return nil // it does not know the bulk port: everything goes over one
	}
	if bulk == nil {
		return fmt.Errorf("guest wants raw records on a port of their own (%q), which this sandbox does not have", t.Profile)
	}
	if t.Profile != agent.DualPortProfile || t.Port != agent.BulkPortName {
		return fmt.Errorf("guest names an unknown bulk transport %q on port %q", t.Profile, t.Port)
	}
	if g.Ready.RelayLease == nil || g.Ready.RelayLease.MaxFormat < 1 {
		return errors.New("guest has a bulk port but no range leases")
	}
	select {
	case b := <-bound:
		bound <- b
		if b.err != nil {
			return b.err
		}
		if !slices.Equal(b.id[:], t.ConnectionID) {
			return errors.New("guest's ready names another binding of the bulk port")
		}
	case <-ctx.Done():
		return fmt.Errorf("guest did not bind its bulk port")
	}
	g.bulkPort = bulk
	g.bulk = newSource(bulk, g.pool)
	g.bulk.prefix = frame.IncarnationSize
	return nil
}

type binding struct {
	id  frame.Incarnation
	err error
}

// bind answers the guest's hello on the bulk port.
func bind(bulk io.ReadWriter) binding {
	hello := make([]byte, frame.BindSize)
	if _, err := io.ReadFull(bulk, hello); err != nil {
		return binding{err: fmt.Errorf("bulk port: %w", err)}
	}
	id, err := frame.ParseBindHello(hello)
	if err != nil {
		return binding{err: fmt.Errorf("bulk port: %w", err)}
	}
	if _, err := bulk.Write(frame.BindReply(id)); err != nil {
		return binding{err: fmt.Errorf("bulk port: %w", err)}
	}
	return binding{id: id}
}

func (g *Guest) send(t agent.Type, payload any) error {
	wire, err := agent.AppendFrame(nil, 0, t, agent.Generation, payload)
	if err != nil {
		return err
	}
	_, err = g.controlPort.Write(wire)
	return err
}

// expect reads the next message, which must be of type t.
func (g *Guest) expect(t agent.Type, payload any) ([]byte, error) {
	p, err := g.control.next()
	if err != nil {
		return nil, fmt.Errorf("guest ended before %s: %w", t, err)
	}
	defer p.free()
	e, err := agent.ParseEnvelope(p.body())
	if err != nil {
		return nil, fmt.Errorf("waiting for %s: %w", t, err)
	}
	got, _ := e.Type()
	if got == agent.Error {
		var why agent.ErrorPayload
		if agent.DecodePayload(e.P, &why) == nil {
			return nil, fmt.Errorf("guest cannot start: %.500q (%.60q)", why.Message, why.Kind)
		}
	}
	if got != t {
		return nil, fmt.Errorf("guest sent %.60q where %s was due", e.T, t)
	}
	if err := agent.DecodePayload(e.P, payload); err != nil {
		return nil, fmt.Errorf("%s of the guest: %w", t, err)
	}
	return slices.Clone(p.wire()), nil
}
