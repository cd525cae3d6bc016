package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// never is no deadline.
var never time.Time

// patience bounds every wait of a test; nothing waits for it in a test that passes.
const patience = time.Minute

// pair returns both ends of a Unix socket pair, as QEMU's character devices are.
func pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		conns[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { conns[0].Close(); conns[1].Close() })
	return conns[0], conns[1]
}

// kind is what a scripted guest says about itself.
type kind struct {
	generation uint8
	leases     bool
	barrier    bool
	dual       bool
	exact      bool // it says whose input it has consumed
	opts       Options
}

// rig is a relay between a scripted guest and clients on a real socket.
type rig struct {
	t      testing.TB
	relay  *Relay
	socket string
	guest  *guest
}

// guest is the scripted end of the ports.
type guest struct {
	t       testing.TB
	control net.Conn
	bulk    net.Conn
	frames  *frame.Reader
	ready   []byte
	v       uint8
	answers func(wire []byte) // how an obliging guest writes, when others write too
}

func newRig(t testing.TB, k kind) *rig {
	t.Helper()
	hostControl, control := pair(t)
	g := &guest{t: t, control: control, frames: frame.NewReader(control), v: k.generation}
	var hostBulk net.Conn
	var bulk io.ReadWriteCloser
	var binding frame.Incarnation
	ready := agent.ReadyPayload{BootTimeNS: 1, InitTimeNS: 2, ReadyTimeNS: 3, AgentVersion: "test"}
	if k.leases || k.dual {
		ready.RelayLease = &agent.FormatLimit{MaxFormat: 1}
	}
	if k.barrier {
		two := agent.BarrierVersion
		ready.BarrierVersion = &two
	}
	if k.exact {
		ready.Extensions = agent.Extensions{agent.ExtInput: 1}
	}
	if k.dual {
		hostBulk, g.bulk = pair(t)
		bulk = hostBulk
		binding[0] = 7
		ready.Bulk = &agent.BulkTransport{Profile: agent.DualPortProfile, Port: agent.BulkPortName, ConnectionID: binding[:]}
	}
	g.ready = encode(t, 0, agent.Ready, k.generation, ready)
	script := make(chan error, 1)
	go func() { script <- g.boot(binding) }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	booted, err := Boot(ctx, hostControl, bulk, agent.BootstrapPayload{Hostname: "box", SecurityProfile: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-script; err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, guest: g, relay: New(booted, k.opts), socket: filepath.Join(t.TempDir(), "s")}
	if k.exact {
		g.want(encode(t, frame.IDLifecycle, agent.InputWatch, 9, agent.InputWatchPayload{}))
	}
	l, err := Listen(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.relay.Serve(l) }()
	t.Cleanup(func() {
		r.relay.Close()
		if err := <-served; !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

func (g *guest) boot(binding frame.Incarnation) error {
	f, err := g.frames.Next()
	if err != nil {
		return err
	}
	if e, err := agent.ParseEnvelope(f.Body); err != nil || e.T != "core.bootstrap" || f.ID != 0 {
		return errors.New("no bootstrap")
	}
	if g.bulk != nil {
		if _, err := g.bulk.Write(frame.BindHello(binding)); err != nil {
			return err
		}
		answer := make([]byte, frame.BindSize)
		if _, err := io.ReadFull(g.bulk, answer); err != nil || !bytes.Equal(answer, frame.BindReply(binding)) {
			return errors.New("bad binding")
		}
	}
	if _, err := g.control.Write(encode(g.t, 0, agent.InitResolved, g.v, agent.InitResolvedPayload{DefaultUser: agent.ResolvedUser{UID: 1000, GID: 1000}})); err != nil {
		return err
	}
	if f, err = g.frames.Next(); err != nil {
		return err
	}
	_, err = g.control.Write(g.ready)
	return err
}

func encode(t testing.TB, id uint32, typ agent.Type, v uint8, payload any) []byte {
	t.Helper()
	b, err := agent.AppendFrame(nil, id, typ, v, payload)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encodeBulk(t testing.TB, id uint32, kind, flow uint8, offset uint64, payload []byte) []byte {
	t.Helper()
	b, err := frame.AppendBulk(nil, frame.Bulk{ID: id, Kind: kind, Flow: flow, Offset: offset, Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// next reads the next frame at the guest.
func (g *guest) next() frame.Frame {
	g.t.Helper()
	g.control.SetReadDeadline(time.Now().Add(patience))
	f, err := g.frames.Next()
	if err != nil {
		g.t.Fatalf("guest: %v", err)
	}
	f.Raw = bytes.Clone(f.Raw)
	f.Body = f.Raw[frame.Overhead:]
	return f
}

// want reads the next frame and checks that it is exactly wire.
func (g *guest) want(wire []byte) {
	g.t.Helper()
	if f := g.next(); !bytes.Equal(f.Raw, wire) {
		g.t.Fatalf("guest got %x (%s), want %x", clip(f.Raw), name(f), clip(wire))
	}
}

// lease reads a lease record.
func (g *guest) lease() frame.Lease {
	g.t.Helper()
	l, err := frame.ParseLease(g.next())
	if err != nil {
		g.t.Fatal(err)
	}
	return l
}

// gone reads the end of a client: the kills of its commands, then the disconnection.
func (g *guest) gone() (killed []uint32, d agent.ClientDisconnectedPayload) {
	g.t.Helper()
	for {
		f := g.next()
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			g.t.Fatal(err)
		}
		switch t, _ := e.Type(); t {
		case agent.ExecSignal:
			var s agent.ExecSignalPayload
			if err := agent.DecodePayload(e.P, &s); err != nil || s.Signal != 9 {
				g.t.Fatalf("signal %+v, %v", s, err)
			}
			killed = append(killed, f.ID)
		case agent.ClientDisconnected:
			if err := agent.DecodePayload(e.P, &d); err != nil || f.ID != 0 {
				g.t.Fatalf("disconnected: %v, id %d", err, f.ID)
			}
			return killed, d
		default:
			g.t.Fatalf("guest got %s while a client leaves", e.T)
		}
	}
}

func (g *guest) send(wire ...[]byte) {
	g.t.Helper()
	g.control.SetWriteDeadline(time.Now().Add(patience))
	if _, err := g.control.Write(bytes.Join(wire, nil)); err != nil {
		g.t.Fatalf("guest: %v", err)
	}
}

// peer is a client.
type peer struct {
	t          testing.TB
	conn       net.Conn
	frames     *frame.Reader
	start, end uint32
}

// dial connects a client and reads the prologue.
func (r *rig) dial() *peer {
	r.t.Helper()
	p := r.connect()
	p.prologue(r.guest.ready)
	return p
}

func (r *rig) connect() *peer {
	r.t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return &peer{t: r.t, conn: conn, frames: frame.NewReader(conn)}
}

func (p *peer) prologue(ready []byte) {
	p.t.Helper()
	var ids [8]byte
	if err := p.frames.ReadFull(ids[:]); err != nil {
		p.t.Fatalf("prologue: %v", err)
	}
	p.start, p.end = binary.BigEndian.Uint32(ids[:]), binary.BigEndian.Uint32(ids[4:])
	f, err := p.frames.Next()
	if err != nil || !bytes.Equal(f.Raw, ready) {
		p.t.Fatalf("ready frame %x, %v", f.Raw, err)
	}
}

func (p *peer) send(wire ...[]byte) {
	p.t.Helper()
	if _, err := p.conn.Write(bytes.Join(wire, nil)); err != nil {
		p.t.Fatalf("client: %v", err)
	}
}

func (p *peer) next() frame.Frame {
	p.t.Helper()
	f, err := p.frames.Next()
	if err != nil {
		p.t.Fatalf("client: %v", err)
	}
	return f
}

func (p *peer) want(wire []byte) {
	p.t.Helper()
	if f := p.next(); !bytes.Equal(f.Raw, wire) {
		p.t.Fatalf("client got %x (%s), want %x", clip(f.Raw), name(f), clip(wire))
	}
}

// message reads a frame and decodes its payload.
func (p *peer) message(t agent.Type, payload any) frame.Frame {
	p.t.Helper()
	f := p.next()
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil || e.T != t.String() {
		p.t.Fatalf("client got %q, %v, want %s", e.T, err, t)
	}
	if f.Flags != t.Flags() {
		p.t.Fatalf("%s with flags %#x", e.T, f.Flags)
	}
	if err := agent.DecodePayload(e.P, payload); err != nil {
		p.t.Fatal(err)
	}
	return f
}

// dropped waits until the relay has closed the connection.
func (p *peer) dropped() {
	p.t.Helper()
	for {
		f, err := p.frames.Next()
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				p.t.Fatal("the relay kept the connection")
			}
			return
		}
		p.t.Logf("before the end: %s", name(f))
	}
}

// alive checks that a client is served: ping there and pong back.
func (r *rig) alive(p *peer, id uint32) {
	r.t.Helper()
	ping := encode(r.t, id, agent.Ping, 9, agent.Empty{})
	pong := encode(r.t, id, agent.Pong, r.guest.v, agent.Empty{})
	p.send(ping)
	r.guest.want(ping)
	r.guest.send(pong)
	p.want(pong)
}

// unhex decodes hexadecimal digits with blanks between them.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

func name(f frame.Frame) string {
	if f.Flags == frame.FlagBulk {
		return "raw record"
	}
	if e, err := agent.ParseEnvelope(f.Body); err == nil {
		return e.T
	}
	return "not a message"
}

func clip(b []byte) []byte { return b[:min(len(b), 80)] }
