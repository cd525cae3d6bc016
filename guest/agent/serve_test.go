package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"msb/guest/exec"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

var reaper *exec.Reaper

func TestMain(m *testing.M) {
	exec.LimitedMain()
	syscall.Umask(0o022)
	exec.HideDescriptors()
	reaper = exec.NewReaper()
	os.Exit(m.Run())
}

// host is the host's side of an agent that serves in this process.
type host struct {
	t    testing.TB
	conn net.Conn
	r    *frame.Reader
	end  chan error
}

// serve runs the agent over a connection like a port's. Nothing of it is left when the test is over.
func serve(t testing.TB, m Machine) *host {
	t.Helper()
	ours, theirs := socketPair(t)
	h := &host{t: t, conn: ours, r: frame.NewReader(ours), end: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { h.end <- Serve(ctx, Ports{Control: theirs}, m, reaper) }()
	t.Cleanup(func() {
		cancel()
		ours.Close()
		select {
		case <-h.end:
		case <-time.After(time.Minute):
			t.Error("the agent did not end")
		}
	})
	return h
}

func socketPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", "") // at an address of the kernel's choice
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	if a, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	return a, <-accepted
}

func (h *host) send(id uint32, t agent.Type, payload any) {
	h.t.Helper()
	raw, err := agent.AppendFrame(nil, id, t, agent.Generation, payload)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.conn.Write(raw); err != nil {
		h.t.Fatal(err)
	}
}

// next returns the next message that is not transport credit.
func (h *host) next() (uint32, agent.Type, []byte) {
	h.t.Helper()
	_ = h.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		f, err := h.r.Next()
		if err != nil {
			h.t.Fatal(err)
		}
		env, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			h.t.Fatal(err)
		}
		ty, _ := env.Type()
		if ty != agent.TransportCredit {
			return f.ID, ty, bytes.Clone(env.P)
		}
	}
}

func (h *host) expect(id uint32, want agent.Type) []byte {
	h.t.Helper()
	gotID, got, p := h.next()
	if gotID != id || got != want {
		h.t.Fatalf("got %d %s %q, want %d %s", gotID, got, p, id, want)
	}
	return p
}

func (h *host) boot() {
	h.t.Helper()
	h.send(0, agent.Bootstrap, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	h.expect(0, agent.InitResolved)
	h.send(0, agent.InitAck, agent.Empty{})
	h.expect(0, agent.Ready)
}

func payload[P any](t testing.TB, p []byte) P {
	t.Helper()
	var v P
	if err := agent.DecodePayload(p, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHandshakeAndShutdown(t *testing.T) {
	var order []string
	m := Machine{
		Root:  func(context.Context, *agent.BootstrapPayload) error { order = append(order, "root"); return nil },
		Setup: func(context.Context, *agent.BootstrapPayload) error { order = append(order, "setup"); return nil },
		Ready: func() { order = append(order, "ready") },
	}
	h := serve(t, m)
	h.send(7, agent.Ping, agent.Empty{}) // too early: answered, and forgotten
	h.expect(7, agent.Error)
	h.boot()
	h.send(1, agent.Ping, agent.Empty{})
	h.expect(1, agent.Pong)
	raw, err := frame.Append(nil, 0, frame.FlagShutdown, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.conn.Write(raw); err != nil { // the shortest shutdown there is
		t.Fatal(err)
	}
	err = <-h.end
	h.end <- err
	if err != nil {
		t.Errorf("ended with %v", err)
	}
	if len(order) != 3 || order[0] != "root" || order[1] != "setup" || order[2] != "ready" {
		t.Errorf("order %v", order)
	}
}

func TestLostPortEndsTheAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the agent starts commands as other users, which needs root")
	}
	h := serve(t, Machine{})
	h.boot()
	h.send(1, agent.ExecRequest, agent.ExecRequestPayload{Cmd: "sleep", Args: []string{"100"}})
	h.expect(1, agent.ExecStarted)
	h.conn.Close()
	err := <-h.end
	h.end <- err
	if err == nil {
		t.Error("ended without a reason")
	}
}

func TestClock(t *testing.T) {
	var mu sync.Mutex
	var set []time.Time
	h := serve(t, Machine{SetClock: func(at time.Time) error {
		mu.Lock()
		defer mu.Unlock()
		set = append(set, at)
		return nil
	}})
	h.boot()
	sync := func(nanos uint64) int {
		mu.Lock()
		before := len(set)
		mu.Unlock()
		h.send(0, agent.ClockSync, agent.ClockSyncPayload{UnixTimeNanos: nanos})
		h.send(1, agent.Ping, agent.Empty{})
		h.expect(1, agent.Pong)
		mu.Lock()
		defer mu.Unlock()
		return len(set) - before
	}
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		if n := sync(uint64(time.Now().Add(off).UnixNano())); n != 1 {
			t.Errorf("%v off: set %d times", off, n)
		}
	}
	if n := sync(1<<64 - 1); n != 0 { // no such time
		t.Errorf("no time at all: set %d times", n)
	}
	for _, off := range []time.Duration{0, 20 * time.Millisecond} {
		for tries := 0; sync(uint64(time.Now().Add(off).UnixNano())) > 0; tries++ { // a busy machine may be late
			if tries == 100 {
				t.Fatalf("%v off: set each time, at last to %v", off, set)
			}
		}
	}
}

func TestHeartbeat(t *testing.T) {
	dir := t.TempDir()
	h := serve(t, Machine{Heartbeat: dir})
	h.boot()
	h.send(1, agent.Touch, agent.Empty{})
	if p := payload[agent.TouchedPayload](t, h.expect(1, agent.Touched)); p.ActivitySeq != 1 {
		t.Errorf("touched %+v", p)
	}
	h.send(2, agent.Ping, agent.Empty{}) // no activity
	h.expect(2, agent.Pong)
	h.send(3, agent.Touch, agent.Empty{})
	if p := payload[agent.TouchedPayload](t, h.expect(3, agent.Touched)); p.ActivitySeq != 2 {
		t.Errorf("touched %+v", p)
	}
	var b []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, _ = os.ReadFile(filepath.Join(dir, "heartbeat.json")); len(b) > 0 {
			break
		}
	}
	var beat map[string]any
	if err := json.Unmarshal(b, &beat); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	for _, key := range []string{"heartbeat_seq", "activity_seq", "timestamp", "last_activity", "active_exec_sessions",
		"active_fs_streams", "active_tcp_streams", "activity_counters"} {
		if _, ok := beat[key]; !ok {
			t.Errorf("no %s in %s", key, b)
		}
	}
}

func TestRootDisk(t *testing.T) {
	h := serve(t, Machine{RootDisk: func(size uint64) (uint64, uint64, error) { return 100 + size, 1000, nil }})
	h.boot()
	h.send(frame.IDLifecycle, agent.RootDiskPrepare, agent.RootDiskPayload{SizeBytes: 5})
	if p := payload[agent.RootDiskStatePayload](t, h.expect(frame.IDLifecycle, agent.RootDiskState)); p.FilesystemBytes != 100 || p.DeviceBytes != 1000 {
		t.Errorf("prepare: %+v", p)
	}
	h.send(frame.IDLifecycle, agent.RootDiskGrow, agent.RootDiskPayload{SizeBytes: 5})
	if p := payload[agent.RootDiskStatePayload](t, h.expect(frame.IDLifecycle, agent.RootDiskState)); p.FilesystemBytes != 105 {
		t.Errorf("grow: %+v", p)
	}
	h.send(3, agent.RootDiskGrow, agent.RootDiskPayload{SizeBytes: 5})
	h.expect(3, agent.Error)
}

// A freeze without a freezer is refused for what it is.
func TestFreezeUnavailable(t *testing.T) {
	h := serve(t, Machine{})
	h.boot()
	h.send(frame.IDLifecycle, agent.WorkloadFreeze, agent.FreezePayload{AttemptID: "x", ExternalMountTags: []string{}})
	p := payload[agent.ErrorPayload](t, h.expect(frame.IDLifecycle, agent.Error))
	if p.Kind != agent.KindCapabilityUnavailable || p.WorkloadFailure == nil || p.WorkloadFailure.Disposition != agent.DispositionUnavailable {
		t.Errorf("%+v", p)
	}
}

// FuzzInput sends whatever it likes after the handshake. The agent must end when the port does, and not panic.
func FuzzInput(f *testing.F) {
	ping, _ := agent.AppendFrame(nil, 1, agent.Ping, 9, agent.Empty{})
	stdin, _ := agent.AppendFrame(nil, 1, agent.ExecStdin, 9, agent.Data{Data: []byte("x")})
	stat, _ := agent.AppendFrame(nil, 2, agent.FSRequest, 9, agent.FSRequestPayload{Op: agent.OpStat{Path: "/"}})
	gone, _ := agent.AppendFrame(nil, 0, agent.ClientDisconnected, 9, agent.ClientDisconnectedPayload{IDStart: 1, IDEndExclusive: 1 << 31})
	freeze, _ := agent.AppendFrame(nil, frame.IDLifecycle, agent.WorkloadFreeze, 9, agent.FreezePayload{AttemptID: "a"})
	thaw, _ := agent.AppendFrame(nil, frame.IDLifecycle, agent.WorkloadThaw, 9, agent.ThawPayload{AttemptID: "a", Mode: "continue"})
	record, _ := frame.AppendBulk(nil, frame.Bulk{ID: 3, Kind: 1, Flow: 1, Payload: []byte("x")})
	lease := frame.AppendLease(nil, frame.Lease{Event: 1, Start: 1, End: 5, Incarnation: frame.Incarnation{1}})
	for _, seed := range [][]byte{ping, stdin, stat, gone, freeze, thaw, record, lease} {
		f.Add(append(bytes.Clone(seed), ping...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if runs(b) {
			t.Skip() // a fuzzer must not choose what is executed or written here
		}
		a := &server{machine: Machine{Logf: t.Logf}, reaper: reaper}
		ours, theirs := net.Pipe()
		go io.Copy(io.Discard, ours)
		a.ports.Control = theirs
		a.control = newInput(bytes.NewReader(b))
		a.credit = newCredit(func() { a.out.tell() })
		a.out = newOutput(theirs, a.credit.news)
		a.freezer.init(a)
		a.startServices(&agent.BootstrapPayload{})
		_ = a.loop()
		a.end()
		ours.Close()
	})
}

// runs tells whether some frame of b would start a command, or touch files or addresses of this machine.
func runs(b []byte) bool {
	r := frame.NewReader(bytes.NewReader(b))
	for {
		f, err := r.Next()
		if err != nil {
			return false
		}
		env, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			continue
		}
		switch t, _ := env.Type(); t {
		case agent.ExecRequest, agent.TCPConnect, agent.ExecOpen, agent.NodeRequest, agent.WatchRequest:
			return true
		case agent.FSRequest:
			var p agent.FSRequestPayload
			if agent.DecodePayload(env.P, &p) != nil {
				continue
			}
			switch p.Op.(type) {
			case agent.OpStat, agent.OpReadLink, agent.OpReadDir, agent.OpFStat, agent.OpRead, agent.OpWrite, agent.OpCloseHandle:
			default:
				return true
			}
		}
	}
}
