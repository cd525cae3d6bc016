package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"msb/vmm/engine"
	"msb/vmm/engine/child"
	"msb/vmm/engine/console"
	"msb/vmm/qemu/qmp"
)

// machine is one QEMU process.
type machine struct {
	spec   engine.Spec
	accel  string
	notice string
	memory memory

	child   *child.Child
	qmp     *qmp.Client
	log     *console.Log
	logged  chan struct{} // the console is read to its end
	control *net.UnixConn
	bulk    *net.UnixConn
	events  *engine.EventQueue

	limiting sync.Mutex // one LimitCPUs at a time
	cgroup   *cgroup    // nil until it bounds the CPUs

	mu       sync.Mutex
	killed   bool
	shutdown shutdownEvent

	done chan struct{}
	exit engine.Exit
}

var (
	_ engine.VM      = (*machine)(nil)
	_ engine.Resizer = (*machine)(nil)
	_ engine.Limiter = (*machine)(nil)
)

type shutdownEvent struct {
	Guest  bool   `json:"guest"`
	Reason string `json:"reason"`
}

func (m *machine) Control() io.ReadWriteCloser { return m.control }

func (m *machine) Bulk() io.ReadWriteCloser {
	if m.bulk == nil {
		return nil
	}
	return m.bulk
}

func (m *machine) PID() int                       { return m.child.PID() }
func (m *machine) Accel() string                  { return m.accel }
func (m *machine) Notice() string                 { return m.notice }
func (m *machine) Done() <-chan struct{}          { return m.done }
func (m *machine) Exit() engine.Exit              { return m.exit }
func (m *machine) Events() <-chan engine.Event    { return m.events.C() }
func (m *machine) Pause(c context.Context) error  { return m.qmp.Do(c, "stop", nil, nil) }
func (m *machine) Resume(c context.Context) error { return m.qmp.Do(c, "cont", nil, nil) }

func (m *machine) Device() string {
	if m.spec.Disk == "" {
		return ""
	}
	return "/dev/vda"
}

func (m *machine) Kill() error {
	m.mu.Lock()
	m.killed = true
	m.mu.Unlock()
	return m.child.Kill()
}

// watch ends with the machine, and says how it ended.
func (m *machine) watch() {
	select {
	case <-m.child.Done():
	case <-m.qmp.Done():
		// QEMU closes the connection when it ends. If it goes on without one, nobody is in control of it.
		if !m.endsSoon() {
			_ = m.child.Kill()
		}
		<-m.child.Done()
	}
	<-m.qmp.Done()
	<-m.logged
	m.exit = m.verdict()
	if line := m.log.Panic(); line != "" && !m.exit.PoweredOff {
		m.events.Post(engine.Event{Kind: engine.EventPanic, Text: line})
	}
	m.limiting.Lock()
	m.cgroup.remove()
	m.limiting.Unlock()
	m.events.Close()
	close(m.done)
}

func (m *machine) verdict() engine.Exit {
	m.mu.Lock()
	killed, why := m.killed, m.shutdown
	m.mu.Unlock()
	code, sig, err := m.child.State()
	if why.Guest && why.Reason == "guest-shutdown" && code == 0 {
		return engine.Exit{PoweredOff: true}
	}
	return engine.Exit{Err: func() error {
		switch {
		case killed:
			return errors.New("the virtual machine was killed")
		case sig != 0:
			return fmt.Errorf("QEMU ended by signal %v%s", sig, m.printed())
		case m.log.Panic() != "" && why.Reason == "guest-reset":
			return fmt.Errorf("the guest's kernel panicked: %s", m.log.Panic())
		case why.Reason == "guest-reset":
			return errors.New("the guest reset itself (virtual machines do not reboot: start it again)")
		case why.Reason != "" && code == 0:
			return fmt.Errorf("the virtual machine was shut down (%s)", child.Printable(why.Reason))
		case err != nil:
			return fmt.Errorf("QEMU failed: %w%s", err, m.printed())
		}
		return fmt.Errorf("QEMU ended without a reason%s", m.printed())
	}()}
}

func (m *machine) printed() string {
	if text := m.child.Stderr(); text != "" {
		return ": " + text
	}
	return ""
}

// event runs in the QMP reader and must not block.
func (m *machine) event(e qmp.Event) {
	switch e.Name {
	case "SHUTDOWN":
		var why shutdownEvent
		if json.Unmarshal(e.Data, &why) == nil {
			m.mu.Lock()
			m.shutdown = why
			m.mu.Unlock()
		}
	case "BLOCK_IO_ERROR":
		var d struct {
			Operation string `json:"operation"`
			Reason    string `json:"reason"`
			NoSpace   bool   `json:"nospace"`
		}
		if json.Unmarshal(e.Data, &d) != nil {
			return
		}
		text := fmt.Sprintf("%s error on the disk of the sandbox: %s", d.Operation, d.Reason)
		// QEMU sets nospace only where it stops the guest for it; the reason is strerror in the C locale.
		d.NoSpace = d.NoSpace || d.Reason == "No space left on device"
		if d.NoSpace {
			text += " (the host's disk is full: free some space; the guest saw an I/O error)"
		}
		m.events.Post(engine.Event{Kind: engine.EventDiskError, Text: child.Printable(text), NoSpace: d.NoSpace})
	case "STOP":
		m.events.Post(engine.Event{Kind: engine.EventPaused, Text: "paused"})
	case "RESUME":
		m.events.Post(engine.Event{Kind: engine.EventResumed, Text: "running"})
	case "MEMORY_DEVICE_SIZE_CHANGE":
		var d struct {
			Size int64 `json:"size"`
		}
		if json.Unmarshal(e.Data, &d) == nil {
			total := int64(m.memory.boot) + d.Size>>20
			m.events.Post(engine.Event{Kind: engine.EventResized, Text: fmt.Sprintf("the guest has %d MiB of memory", total)})
		}
	}
}

// endsSoon waits for a QEMU that has closed its control connection.
func (m *machine) endsSoon() bool {
	select {
	case <-m.child.Done():
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}
