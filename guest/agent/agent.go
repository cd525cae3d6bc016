// Package agent is the guest's side of the agent protocol, generation 9: the loop over the control port (and the bulk
// port), the boot handshake, output with priorities, transport credit, leases, freeze and thaw. Commands, files and
// TCP streams are services that it feeds.
//
// A stock agent ends when it is sent something that it does not understand. This one answers core.error and goes on;
// only a byte stream whose frames cannot be told apart any more, and a lost port, end it.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/exec"
	"msb/guest/nodes"
	"msb/guest/watch"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Version is what core.ready says about this build. The linker may set it.
var Version = "0.1.0"

// handshakeTimeout bounds the wait for core.bootstrap and for core.init.ack.
const handshakeTimeout = 60 * time.Second

// Ports are the byte streams to the host. Close ends a Read and a Write that wait.
type Ports struct {
	Control io.ReadWriteCloser
	// Bulk is asked for once, after the handshake; nil means combined mode, where raw records share Control.
	Bulk func() (io.ReadWriteCloser, error)
	// Files accepts connections that carry msb.fs only, straight from mounts; nil = there are none.
	Files net.Listener
}

// Machine is what the agent asks of the machine it runs on. Functions may be nil where noted.
type Machine struct {
	// Root mounts the root file system, before core.init.resolved.
	Root func(ctx context.Context, b *agent.BootstrapPayload) error
	// Setup does the rest of the boot, after core.init.ack: mounts, host name, network.
	Setup func(ctx context.Context, b *agent.BootstrapPayload) error
	// Workload opens the cgroup of all commands. An error means that the workload cannot be frozen.
	Workload func() (*exec.Workload, error)
	// SetClock steps the wall clock; nil = never.
	SetClock func(t time.Time) error
	// RootDisk grows the root file system to sizeBytes, or only looks if that is 0; nil = there is none.
	RootDisk func(sizeBytes uint64) (filesystem, device uint64, err error)
	// Ready is called once core.ready has been sent; nil = nothing to do.
	Ready func()
	// Heartbeat is the folder for heartbeat.json; "" = none.
	Heartbeat string
	// Logf prints on the console.
	Logf func(format string, args ...any)
	// Started is CLOCK_BOOTTIME at the start of the program, in ns.
	Started uint64
}

// Serve runs the agent until the host asks for a shutdown (nil), the port is lost, or the boot fails. All commands
// have ended then, and nothing of the agent runs any more.
func Serve(ctx context.Context, ports Ports, m Machine, reaper *exec.Reaper) error {
	if m.Logf == nil {
		m.Logf = func(string, ...any) {}
	}
	a := &server{machine: m, ports: ports, control: newInput(ports.Control), reaper: reaper}
	a.credit = newCredit(func() { a.out.tell() })
	a.out = newOutput(ports.Control, a.credit.news)
	a.freezer.init(a)

	stop := context.AfterFunc(ctx, func() { ports.Control.Close() })
	defer stop()
	err := a.run(ctx)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	a.end()
	return err
}

// server is one run of the agent.
type server struct {
	machine Machine
	ports   Ports
	reaper  *exec.Reaper
	control *input
	out     *output
	credit  *credit

	bulkPort   io.ReadWriteCloser
	bulkOut    *output // nil in combined mode
	bulkID     frame.Incarnation
	bulkReader sync.WaitGroup

	exec     *exec.Service
	files    fileService
	tcp      tcpService
	nodes    *nodes.Service
	watch    *watch.Service
	actors   watch.Actors
	workload *exec.Workload
	freezer  freezer
	leases   leases
	activity activity
	helpers  sync.WaitGroup
	admitMu  sync.Mutex // one frame at a time goes to the services, whatever port it came from
	closing  atomic.Bool
}

var errShutdown = errors.New("shutdown")

func (a *server) run(ctx context.Context) error {
	boot, err := a.handshake(ctx)
	if errors.Is(err, errShutdown) {
		return nil
	}
	if err != nil {
		return err
	}
	a.startServices(boot)
	if err := a.bindBulk(ctx); err != nil {
		return a.failBoot(err)
	}
	if err := a.ready(); err != nil {
		return err
	}
	if a.machine.Ready != nil {
		a.machine.Ready()
	}
	if a.ports.Files != nil {
		a.helpers.Go(func() {
			if err := a.nodes.ServeDirect(a.ports.Files); err != nil {
				a.machine.Logf("direct connections: %v", err)
			}
		})
	}
	stopHeartbeat := a.startHeartbeat()
	defer stopHeartbeat()
	if a.bulkOut != nil {
		a.bulkReader.Go(a.readBulk)
	}
	err = a.loop()
	if errors.Is(err, errShutdown) {
		return nil
	}
	return err
}

// loop serves the control port.
func (a *server) loop() error {
	for {
		a.out.awaitRoom()
		f, owned, err := a.control.next()
		if err != nil {
			return portError("agent", err)
		}
		a.activity.fromHost.Add(1)
		if err := a.frame(f, owned); err != nil {
			return err
		}
	}
}

// portError says why a port can no longer be served.
func portError(name string, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("port %s: the host closed it", name)
	case errors.Is(err, frame.ErrTooLarge), errors.Is(err, frame.ErrTooShort):
		return fmt.Errorf("port %s: the host's byte stream cannot be followed any more: %w", name, err)
	}
	return fmt.Errorf("port %s: %w", name, err)
}

func (a *server) startServices(b *agent.BootstrapPayload) {
	w, err := a.machine.openWorkload()
	if err != nil {
		a.machine.Logf("commands cannot be frozen: %v", err)
	}
	a.workload = w
	out := a.sender()
	a.exec = exec.New(exec.Config{
		Out:        out,
		Reaper:     a.reaper,
		User:       b.User,
		Cwd:        b.DefaultCwd,
		Env:        exec.BaseEnv(b.DefaultEnv),
		Rlimits:    b.Rlimits,
		Restricted: b.SecurityProfile == agent.SecurityRestricted,
		Workload:   w,
	})
	a.files = newFiles(out, a.dualPort(), &a.actors)
	a.tcp = newTCP(out, a.dualPort())
	a.nodes = nodes.New(out, a.files)
	a.nodes.Report(&a.actors)
	a.watch = watch.New(out, a.nodes, &a.actors)
}

func (m *Machine) openWorkload() (*exec.Workload, error) {
	if m.Workload == nil {
		return nil, errors.New("there is no cgroup v2")
	}
	return m.Workload()
}

func (a *server) dualPort() bool { return a.ports.Bulk != nil }

// bindBulk opens the bulk port and agrees with the host on who is at its ends.
func (a *server) bindBulk(ctx context.Context) error {
	if a.ports.Bulk == nil {
		return nil
	}
	p, err := a.ports.Bulk()
	if err != nil {
		return fmt.Errorf("open port %s: %w", agent.BulkPortName, err)
	}
	stop := context.AfterFunc(ctx, func() { p.Close() })
	_ = stop // the port outlives the handshake and dies with ctx
	timeout := time.AfterFunc(handshakeTimeout, func() { p.Close() })
	defer timeout.Stop()
	if _, err := rand.Read(a.bulkID[:]); err != nil {
		return err
	}
	if _, err := p.Write(frame.BindHello(a.bulkID)); err != nil {
		return fmt.Errorf("bind port %s: %w", agent.BulkPortName, err)
	}
	var reply [frame.BindSize]byte
	if _, err := io.ReadFull(p, reply[:]); err != nil {
		return fmt.Errorf("bind port %s: %w", agent.BulkPortName, err)
	}
	if id, err := frame.ParseBindReply(reply[:]); err != nil || id != a.bulkID {
		return fmt.Errorf("bind port %s: the host answered with something else", agent.BulkPortName)
	}
	a.bulkPort = p
	a.bulkOut = newOutput(p, nil)
	return nil
}

func (a *server) ready() error {
	version := agent.BarrierVersion
	p := agent.ReadyPayload{
		BootTimeNS:   a.machine.Started,
		InitTimeNS:   a.activity.initTime,
		ReadyTimeNS:  bootTime(),
		AgentVersion: Version,
		RelayLease:   &agent.FormatLimit{MaxFormat: 1},
		Extensions:   agent.OurExtensions(),
	}
	if a.workload != nil {
		p.BarrierVersion = &version
	}
	if a.bulkOut != nil {
		p.Bulk = &agent.BulkTransport{Profile: agent.DualPortProfile, Port: agent.BulkPortName, ConnectionID: a.bulkID[:]}
	}
	return a.out.send(0, agent.Ready, p)
}

// bootTime is CLOCK_BOOTTIME in ns.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
