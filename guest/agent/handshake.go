package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"msb/guest/exec"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// handshake is the boot: bootstrap, root, init.resolved, init.ack, setup.
func (a *server) handshake(ctx context.Context) (*agent.BootstrapPayload, error) {
	begin := bootTime()
	b, err := a.bootstrap()
	if err != nil {
		return nil, a.failBoot(err)
	}
	if a.machine.Root != nil {
		if err := a.machine.Root(ctx, b); err != nil {
			return nil, a.failBoot(fmt.Errorf("root file system: %w", err))
		}
	}
	var accounts exec.Accounts
	user, err := accounts.Lookup(b.User)
	if err != nil {
		return nil, a.failBoot(fmt.Errorf("default user: %w", err))
	}
	resolved := agent.InitResolvedPayload{DefaultUser: agent.ResolvedUser{UID: user.UID, GID: user.GID}}
	if err := a.out.send(0, agent.InitResolved, resolved); err != nil {
		return nil, err
	}
	if err := a.awaitAck(); err != nil {
		return nil, a.failBoot(err)
	}
	if a.machine.Setup != nil {
		if err := a.machine.Setup(ctx, b); err != nil {
			return nil, a.failBoot(err)
		}
	}
	a.activity.initTime = bootTime() - begin
	return b, nil
}

// failBoot tells the host why the boot failed; the error is also the caller's.
func (a *server) failBoot(err error) error {
	if errors.Is(err, errShutdown) {
		return err
	}
	_ = a.out.send(0, agent.Error, agent.ErrorPayload{Kind: agent.KindInvalidSession, Message: port.Clip("guest boot: " + err.Error())})
	return err
}

func (a *server) bootstrap() (*agent.BootstrapPayload, error) {
	env, err := a.expect(agent.Bootstrap)
	if err != nil {
		return nil, err
	}
	if env.V < agent.MinBootstrapGeneration {
		err := fmt.Errorf("the host speaks agent generation %d, this guest needs %d or newer: update the host", env.V, agent.MinBootstrapGeneration)
		_ = a.out.send(0, agent.Error, agent.ErrorPayload{Kind: agent.KindUnsupportedGeneration, Message: err.Error()})
		return nil, err
	}
	var b agent.BootstrapPayload
	if err := agent.DecodePayload(env.P, &b); err != nil {
		return nil, fmt.Errorf("decode payload for core.bootstrap: %w", err)
	}
	switch b.SecurityProfile {
	case agent.SecurityDefault, agent.SecurityRestricted:
	default:
		return nil, fmt.Errorf("security profile %q is unknown", b.SecurityProfile)
	}
	if b.HandoffInit != nil {
		return nil, fmt.Errorf("hand-over to the init program %s is not supported by this guest", b.HandoffInit.Cmd)
	}
	return &b, nil
}

func (a *server) awaitAck() error {
	_, err := a.expect(agent.InitAck)
	return err
}

// expect reads frames until one of type t arrives, for at most handshakeTimeout. Nothing else may come that early;
// what does is answered and dropped.
func (a *server) expect(t agent.Type) (agent.Envelope, error) {
	timeout := time.AfterFunc(handshakeTimeout, func() { a.ports.Control.Close() })
	defer timeout.Stop()
	for {
		f, owned, err := a.control.next()
		if err != nil {
			if !timeout.Stop() {
				err = fmt.Errorf("no %s within %s", t, handshakeTimeout)
			}
			return agent.Envelope{}, portError("agent", err)
		}
		env, err := agent.ParseEnvelope(f.Body)
		if err == nil && env.T == t.String() && f.Flags == t.Flags() {
			env.P = append([]byte(nil), env.P...)
			owned.give()
			return env, nil
		}
		owned.give()
		if f.Flags == frame.FlagShutdown {
			return agent.Envelope{}, errShutdown
		}
		_ = a.out.send(f.ID, agent.Error, agent.ErrorPayload{
			Kind:    agent.KindInvalidSession,
			Message: fmt.Sprintf("the guest is booting and waits for %s", t),
		})
	}
}
