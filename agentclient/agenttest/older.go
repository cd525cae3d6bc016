// Package agenttest makes sandboxes of any generation for tests: a relay in front of the relay of a real sandbox that
// looks like an older one and complains of whatever no host may send to that.
package agenttest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Older is how a sandbox of another generation looks. It offers no extension: neither does a guest of a stock
// installation.
type Older struct {
	Generation uint8  // of the guest, 1 to 9
	Legacy     bool   // the prologue of releases before 0.5
	Upstream   string // agent socket of the sandbox that does the work

	// Complain is told of everything that a host may not send to such a guest. Several goroutines call it.
	Complain func(format string, args ...any)
}

// Serve serves connections until ctx ends; then it closes l and every connection.
func (o *Older) Serve(ctx context.Context, l net.Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer c.Close()
			up, err := net.Dial("unix", o.Upstream)
			if err != nil {
				return // nor would a relay be there whose sandbox is gone
			}
			defer up.Close()
			stop := context.AfterFunc(ctx, func() { c.Close(); up.Close() })
			defer stop()
			if err := o.carry(c, up); err != nil {
				o.Complain("generation %d: %v", o.Generation, err)
			}
		})
	}
}

// carry carries one connection until either end closes it.
func (o *Older) carry(client, guest net.Conn) error {
	in := frame.NewReader(guest)
	var ids [8]byte
	if err := in.ReadFull(ids[:]); err != nil {
		return nil // the sandbox has gone
	}
	ready, err := in.Next()
	if err != nil {
		return nil
	}
	hello, err := o.prologue(ids, ready)
	if err != nil {
		return err
	}
	if _, err := client.Write(hello); err != nil {
		return nil
	}
	var work sync.WaitGroup
	defer work.Wait()
	var bad error
	work.Go(func() {
		bad = o.toGuest(guest, frame.NewReader(client))
		guest.Close()
	})
	err = o.toClient(client, in)
	client.Close()
	work.Wait()
	return errors.Join(err, bad)
}

// prologue is what a relay of that age says first.
func (o *Older) prologue(ids [8]byte, ready frame.Frame) ([]byte, error) {
	e, err := agent.ParseEnvelope(ready.Body)
	if err != nil {
		return nil, err
	}
	var now, then agent.ReadyPayload
	if err := agent.DecodePayload(e.P, &now); err != nil {
		return nil, err
	}
	then = agent.ReadyPayload{BootTimeNS: now.BootTimeNS, InitTimeNS: now.InitTimeNS, ReadyTimeNS: now.ReadyTimeNS, AgentVersion: "older"}
	if o.Generation >= 8 {
		then.RelayLease = &agent.FormatLimit{MaxFormat: 1}
	}
	if o.Generation >= 9 {
		barrier := agent.BarrierVersion
		then.BarrierVersion = &barrier
	}
	hello := ids[:]
	if o.Legacy {
		hello = binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(ids[:4])-1)
	}
	return agent.AppendFrame(hello, 0, agent.Ready, o.Generation, then)
}

// toClient passes the guest's frames on, as of its generation.
func (o *Older) toClient(client io.Writer, in *frame.Reader) error {
	for {
		f, err := in.Next()
		if err != nil {
			return nil
		}
		var raw []byte
		if f.Flags == frame.FlagBulk {
			raw, err = frame.Append(nil, f.ID, f.Flags, f.Body)
		} else {
			var e agent.Envelope
			if e, err = agent.ParseEnvelope(f.Body); err == nil {
				raw, err = agent.AppendEncoded(nil, f.ID, f.Flags, o.Generation, e.T, e.P)
			}
		}
		if err != nil {
			return err
		}
		if _, err := client.Write(raw); err != nil {
			return nil
		}
	}
}

// toGuest passes the host's frames on, those excepted that such a guest would not survive.
func (o *Older) toGuest(guest io.Writer, in *frame.Reader) error {
	for {
		f, err := in.Next()
		if err != nil {
			return nil
		}
		if err := o.check(f); err != nil {
			return err
		}
		raw, err := frame.Append(nil, f.ID, f.Flags, f.Body)
		if err != nil {
			return err
		}
		if _, err := guest.Write(raw); err != nil {
			return nil
		}
	}
}

// check says what is wrong with a frame for a guest of this generation.
func (o *Older) check(f frame.Frame) error {
	if f.Flags == frame.FlagBulk {
		if o.Generation < agent.BulkGeneration {
			return errors.New("got a raw record")
		}
		return nil
	}
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil {
		return err
	}
	emitted := agent.Generation
	if o.Legacy {
		emitted = agent.LegacyGeneration
	}
	t, known := e.Type()
	switch {
	case !known || !t.AvailableTo(o.Generation, nil):
		return fmt.Errorf("got %s", e.T)
	case e.V != emitted:
		return fmt.Errorf("got %s with v %d, not %d", e.T, e.V, emitted)
	case o.Generation < agent.BulkGeneration && offersBulk(t, e.P):
		return fmt.Errorf("got %s with an offer of raw bulk", e.T)
	}
	return nil
}

func offersBulk(t agent.Type, p []byte) bool {
	switch t {
	case agent.FSRequest:
		var q agent.FSRequestPayload
		return agent.DecodePayload(p, &q) == nil && q.Bulk != nil
	case agent.TCPConnect:
		var q agent.TCPConnectPayload
		return agent.DecodePayload(p, &q) == nil && q.Bulk != nil
	}
	return false
}
