package runtime

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
	"msb/vmm/engine"
	"msb/vmm/relay"
)

// pausable is a machine and its guest, both scripted. They write down what they are asked for.
type pausable struct {
	engine.VM
	mu       sync.Mutex
	asked    []string
	stopErr  error // of Pause
	noFreeze bool  // the guest refuses
	noThaw   bool
}

func (m *pausable) note(s string) {
	m.mu.Lock()
	m.asked = append(m.asked, s)
	m.mu.Unlock()
}

func (m *pausable) Pause(context.Context) error  { m.note("stop"); return m.stopErr }
func (m *pausable) Resume(context.Context) error { m.note("cont"); return nil }

func (m *pausable) took(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.asked, want) {
		t.Errorf("asked %q, want %q", m.asked, want)
	}
	m.asked = nil
}

func (m *pausable) guest(conn net.Conn, generation uint8, barrier *uint8) {
	defer conn.Close()
	frames := frame.NewReader(conn)
	send := func(id uint32, typ agent.Type, payload any) {
		if b, err := agent.AppendFrame(nil, id, typ, generation, payload); err == nil {
			conn.Write(b)
		}
	}
	frames.Next() // bootstrap
	send(0, agent.InitResolved, agent.InitResolvedPayload{})
	frames.Next() // ack
	send(0, agent.Ready, agent.ReadyPayload{BarrierVersion: barrier})
	for {
		f, err := frames.Next()
		if err != nil {
			return
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			return
		}
		m.mu.Lock()
		noFreeze, noThaw := m.noFreeze, m.noThaw
		m.mu.Unlock()
		refuse := func() { send(f.ID, agent.Error, agent.ErrorPayload{Kind: agent.KindInvalidSession, Message: "no"}) }
		switch typ, _ := e.Type(); typ {
		case agent.ClockSync:
			m.note("clock")
		case agent.WorkloadFreeze:
			m.note("freeze")
			var p agent.FreezePayload
			agent.DecodePayload(e.P, &p)
			if noFreeze {
				refuse()
				continue
			}
			send(f.ID, agent.WorkloadFrozen, agent.FrozenPayload{AttemptID: p.AttemptID, InputCredit: agent.Position{ControlBytes: 1 << 30, ControlFrames: 1 << 20}})
		case agent.WorkloadThaw:
			m.note("thaw")
			var p agent.ThawPayload
			agent.DecodePayload(e.P, &p)
			if noThaw {
				refuse()
				continue
			}
			send(f.ID, agent.WorkloadThawed, agent.ThawedPayload{AttemptID: p.AttemptID})
		}
	}
}

// bootPausable returns the machine and its pauser.
func bootPausable(t *testing.T, generation uint8, barrier *uint8) (*pausable, *Pauser) {
	t.Helper()
	m := &pausable{}
	ours, theirs := net.Pipe()
	var work sync.WaitGroup
	work.Go(func() { m.guest(theirs, generation, barrier) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := relay.Boot(ctx, ours, nil, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(g, relay.Options{})
	t.Cleanup(func() { r.Close(); work.Wait() })
	return m, newPauser(r, m, slog.New(slog.DiscardHandler))
}

func TestPauseNeedsAGuestThatCanFreeze(t *testing.T) {
	one, two := uint8(1), uint8(2)
	for _, tt := range []struct {
		name       string
		generation uint8
		barrier    *uint8
		ok         bool
	}{
		{"generation 8", 8, &two, false},
		{"no barrier", 9, nil, false},
		{"another barrier", 9, &one, false},
		{"generation 9", 9, &two, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, p := bootPausable(t, tt.generation, tt.barrier)
			err := p.Pause(t.Context())
			if (err == nil) != tt.ok || p.Paused() != tt.ok || !tt.ok && !errors.Is(err, relay.ErrNoFreeze) {
				t.Errorf("paused %v, %v", p.Paused(), err)
			}
			if !tt.ok {
				m.took(t) // nothing
			}
		})
	}
}

func TestPauseAndResume(t *testing.T) {
	two := uint8(2)
	m, p := bootPausable(t, 9, &two)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(p.Resume(t.Context())) // of one that runs
	m.took(t)
	must(p.Pause(t.Context()))
	must(p.Pause(t.Context()))
	m.took(t, "freeze", "stop")
	must(p.Resume(t.Context()))
	must(p.Resume(t.Context()))
	eventually(t, m, "cont", "thaw", "clock")

	m.noFreeze = true
	if err := p.Pause(t.Context()); err == nil || p.Paused() {
		t.Errorf("paused %v, %v", p.Paused(), err)
	}
	m.took(t, "freeze")
	m.noFreeze = false

	m.stopErr = errors.New("no")
	if err := p.Pause(t.Context()); err == nil || p.Paused() {
		t.Errorf("paused %v, %v", p.Paused(), err)
	}
	eventually(t, m, "freeze", "stop", "cont", "thaw", "clock")
	m.stopErr = nil

	must(p.Pause(t.Context()))
	m.noThaw = true
	if err := p.Resume(t.Context()); err == nil || !p.Paused() {
		t.Errorf("paused %v, %v", p.Paused(), err)
	}
	m.noThaw = false
	must(p.end(t.Context()))
	if p.Paused() {
		t.Error("still paused")
	}
	if err := p.Pause(t.Context()); err == nil {
		t.Error("a sandbox that shuts down is paused")
	}
}

// eventually is took for what the guest may see a moment later: the clock follows the thaw.
func eventually(t *testing.T, m *pausable, want ...string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		m.mu.Lock()
		n := len(m.asked)
		m.mu.Unlock()
		if n >= len(want) {
			break
		}
	}
	m.took(t, want...)
}
