package agent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/guest/exec"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// freezable is a machine whose freezer always says what is wanted.
func freezable(t *testing.T) Machine {
	t.Helper()
	dir := filepath.Join(t.TempDir(), exec.WorkloadName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.freeze": "0", "cgroup.events": "frozen 0\nfrozen 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Machine{Workload: func() (*exec.Workload, error) { return exec.OpenWorkload(filepath.Dir(dir)) }}
}

// counting is a host that keeps its position and hears of its limits.
type counting struct {
	*host
	sent, limit agent.Position
	reports     int // msb.input.consumed
}

func (c *counting) send(id uint32, t agent.Type, payload any) {
	c.t.Helper()
	raw, err := agent.AppendFrame(nil, id, t, agent.Generation, payload)
	if err != nil {
		c.t.Fatal(err)
	}
	switch {
	case id == frame.IDLifecycle:
	case t.IsDataClass():
		c.sent.BulkBytes += uint64(len(raw))
		c.sent.BulkFrames++
	default:
		c.sent.ControlBytes += uint64(len(raw))
		c.sent.ControlFrames++
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := c.conn.Write(raw); err != nil {
		c.t.Fatal(err)
	}
}

// expect reads up to a message of this type, and takes note of credit and reports on the way.
func (c *counting) expect(id uint32, want agent.Type) []byte {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		f, err := c.r.Next()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", want, err)
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			c.t.Fatal(err)
		}
		switch typ, _ := e.Type(); {
		case typ == agent.TransportCredit:
			c.limit = payload[agent.Position](c.t, e.P)
			if want == typ {
				return e.P
			}
		case typ == agent.InputConsumed:
			c.reports++
		case typ == want && f.ID == id:
			return e.P
		default:
			c.t.Fatalf("got %s for id %d, want %s", e.T, f.ID, want)
		}
	}
}

func (c *counting) freeze(attempt string, at agent.Position) {
	c.send(frame.IDLifecycle, agent.WorkloadFreeze, agent.FreezePayload{AttemptID: attempt, ExternalMountTags: []string{}, HostInput: at})
}

// A guest that was frozen and is restored goes on counting where it was: the new host gets no fresh window, and what was
// not consumed stays charged.
func TestRestoreCarriesTheCountersOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := &counting{host: serve(t, freezable(t)), limit: agent.InitialGrants}
	h.boot()
	h.send(frame.IDLifecycle, agent.InputWatch, agent.InputWatchPayload{})
	const id = 1
	h.send(id, agent.TCPConnect, agent.TCPConnectPayload{Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port)})
	stuck, err := l.Accept() // and never reads
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	h.expect(id, agent.TCPConnected)
	data := agent.Data{Data: make([]byte, 128<<10)}
	for range 200 { // more than sockets hold
		h.send(id, agent.TCPData, data)
	}
	for h.limit.BulkFrames == agent.InitialGrants.BulkFrames {
		h.expect(frame.IDLifecycle, agent.TransportCredit)
	}
	if h.reports == 0 {
		t.Error("no report of what was consumed")
	}
	h.freeze("first", h.sent)
	frozen := payload[agent.FrozenPayload](t, h.expect(frame.IDLifecycle, agent.WorkloadFrozen))

	// From here on it is another host, which knows the position and the grants and has asked for nothing.
	h.reports, h.limit = 0, agent.Position{}
	h.send(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "first", Mode: agent.ThawRestore})
	h.expect(frame.IDLifecycle, agent.WorkloadThawed)
	if h.limit.BulkBytes < frozen.InputCredit.BulkBytes || h.limit.ControlFrames < frozen.InputCredit.ControlFrames {
		t.Errorf("limits went back: %+v after %+v", h.limit, frozen.InputCredit)
	}
	if h.limit.BulkBytes >= h.sent.BulkBytes+agent.InitialGrants.BulkBytes || h.limit.BulkFrames >= h.sent.BulkFrames+agent.InitialGrants.BulkFrames {
		t.Errorf("a fresh window: limits %+v at position %+v", h.limit, h.sent)
	}
	// A position that begins anew is not the guest's; the one that goes on is.
	h.freeze("second", agent.Position{})
	if e := payload[agent.ErrorPayload](t, h.expect(frame.IDLifecycle, agent.Error)); e.WorkloadFailure == nil {
		t.Errorf("%+v", e)
	}
	h.send(9, agent.Ping, agent.Empty{})
	h.expect(9, agent.Pong)
	h.freeze("third", h.sent)
	h.expect(frame.IDLifecycle, agent.WorkloadFrozen)
	h.send(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "third", Mode: agent.ThawContinue})
	h.expect(frame.IDLifecycle, agent.WorkloadThawed)
	// Past the limit, the stream ends as it would have before.
	for n := h.limit.BulkFrames - h.sent.BulkFrames + agent.InitialGrants.BulkFrames/2; n > 0; n-- {
		h.send(id, agent.TCPData, agent.Data{Data: []byte("x")})
	}
	if e := payload[agent.ErrorPayload](t, h.expect(id, agent.Error)); !strings.Contains(e.Message, "transport admission credit") {
		t.Errorf("%+v", e)
	}
	if h.reports > 0 {
		t.Errorf("%d reports that the new host has not asked for", h.reports)
	}
}

// restore ends only a freeze that was answered, and repeats its answer.
func TestRestoreNeedsAnAnsweredFreeze(t *testing.T) {
	h := &counting{host: serve(t, freezable(t)), limit: agent.InitialGrants}
	h.boot()
	restore := func(attempt string) {
		h.send(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: attempt, Mode: agent.ThawRestore})
	}
	restore("a")
	h.expect(frame.IDLifecycle, agent.Error)
	h.freeze("a", h.sent)
	h.expect(frame.IDLifecycle, agent.WorkloadFrozen)
	restore("b")
	h.expect(frame.IDLifecycle, agent.Error)
	for range 2 {
		restore("a")
		h.expect(frame.IDLifecycle, agent.WorkloadThawed)
	}
}
