package vmm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/frame"
	"msb/vmm/engine"
	"msb/vmm/runtime"
	"msb/vmm/store"
)

// The test binary is its own "msb": as `runtime NAME` it runs a sandbox on an engine whose guests are
// scripted by the image's name.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "runtime" {
		home, err := store.Open()
		if err == nil {
			err = runtime.Run(context.Background(), home, os.Args[2], runtime.Deps{Machine: func(_ context.Context, c store.Config) (engine.Engine, engine.Spec, error) {
				if c.Image == "no-kernel" {
					return nil, engine.Spec{}, errors.New("no kernel: run `msb image build`")
				}
				return scripted{c.Image}, engine.Spec{}, nil
			}})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// scripted is an engine without a machine; its image says how the guest behaves.
type scripted struct{ image string }

func (e scripted) Name() string                      { return "qemu" }
func (e scripted) Capabilities() engine.Capabilities { return engine.Capabilities{DiskFormat: "qcow2"} }
func (e scripted) Check(context.Context) error       { return nil }
func (e scripted) CreateDisk(context.Context, string, string, int64) error {
	return errors.ErrUnsupported
}

func (e scripted) Start(_ context.Context, s engine.Spec) (engine.VM, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		if ends[i], err = net.FileConn(f); err != nil {
			return nil, err
		}
		f.Close()
	}
	os.WriteFile(s.KernelLog, []byte("[    0.000000] Linux version\r\n\x1b[31mred\r\n"), 0o600)
	m := &machine{host: ends[0], guest: ends[1], done: make(chan struct{}), events: make(chan engine.Event)}
	go m.run(e.image)
	return m, nil
}

// machine is one scripted guest.
type machine struct {
	host, guest net.Conn
	done        chan struct{}
	events      chan engine.Event
	once        sync.Once
	exit        engine.Exit
}

func (m *machine) end(x engine.Exit) {
	m.once.Do(func() {
		m.exit = x
		m.guest.Close()
		close(m.done)
		close(m.events)
	})
}

func (m *machine) run(image string) {
	frames := frame.NewReader(m.guest)
	send := func(id uint32, t agent.Type, payload any) {
		if b, err := agent.AppendFrame(nil, id, t, 9, payload); err == nil {
			m.guest.Write(b)
		}
	}
	if _, err := frames.Next(); err != nil {
		return
	}
	switch image {
	case "dies-at-boot":
		m.end(engine.Exit{Err: errors.New("kernel panic: no init")})
		return
	case "silent":
		frames.Next()
		return
	}
	send(0, agent.InitResolved, agent.InitResolvedPayload{})
	frames.Next()
	send(0, agent.Ready, agent.ReadyPayload{AgentVersion: "scripted\x1b[2J"})
	for {
		f, err := frames.Next()
		if err != nil {
			return
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			return
		}
		switch t, _ := e.Type(); t {
		case agent.Shutdown:
			if image != "never-stops" {
				m.end(engine.Exit{PoweredOff: true})
				return
			}
		case agent.Ping:
			send(f.ID, agent.Pong, agent.Empty{})
		case agent.ExecRequest:
			var r agent.ExecRequestPayload
			agent.DecodePayload(e.P, &r)
			switch r.Cmd {
			case "panic":
				m.end(engine.Exit{Err: errors.New("kernel panic: test")})
				return
			case "poweroff":
				m.end(engine.Exit{PoweredOff: true})
				return
			case "disk-full":
				m.events <- engine.Event{Kind: engine.EventDiskError, Text: "write error: No space left on device", NoSpace: true}
				m.events <- engine.Event{Kind: engine.EventResumed} // taken only after the first was
				send(f.ID, agent.ExecStarted, agent.ExecStartedPayload{PID: 7})
			case "hang-up":
				m.guest.Close()
				return
			default:
				send(f.ID, agent.ExecStarted, agent.ExecStartedPayload{PID: 7})
				send(f.ID, agent.ExecStdout, agent.Data{Data: []byte("hello\xff\n")})
			}
		}
	}
}

func (m *machine) Control() io.ReadWriteCloser {
	return m.host
}
func (m *machine) Bulk() io.ReadWriteCloser {
	return nil
}
func (m *machine) Device() string               { return "/dev/vda" }
func (m *machine) PID() int                     { return os.Getpid() }
func (m *machine) Accel() string                { return "tcg" }
func (m *machine) Notice() string               { return "no working KVM here, using emulation (slower)" }
func (m *machine) Done() <-chan struct{}        { return m.done }
func (m *machine) Exit() engine.Exit            { return m.exit }
func (m *machine) Pause(context.Context) error  { return nil }
func (m *machine) Resume(context.Context) error { return nil }
func (m *machine) Events() <-chan engine.Event  { return m.events }
func (m *machine) Kill() error {
	m.end(engine.Exit{Err: errors.New("killed")})
	return nil
}

// newHost is a home of its own with disks of nothing.
func newHost(t *testing.T) *Host {
	t.Helper()
	dir, err := os.MkdirTemp("", "v") // short: the path holds a socket
	if err != nil {
		t.Fatal(err)
	}
	home, err := store.At(dir)
	if err != nil {
		t.Fatal(err)
	}
	h := New(home, Deps{Executable: os.Args[0], Disk: func(_ context.Context, c *store.Config, path string, report Progress) error {
		if c.Image == "missing" {
			return errors.New("image missing: no such image")
		}
		c.ImageSHA256 = "5eed"
		return os.WriteFile(path, []byte(time.Now().String()), 0o600)
	}})
	t.Cleanup(func() {
		all, err := h.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, s := range all {
			if err := h.Remove(context.Background(), s.Name, RemoveOptions{Force: true}); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(dir)
	})
	return h
}
