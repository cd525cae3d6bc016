package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"msb/vmm/engine"
	"msb/vmm/engine/child"
	"msb/vmm/engine/console"
)

// sandbox is one pid namespace and all that is in it.
type sandbox struct {
	spec    engine.Spec
	child   *child.Child
	loop    *loop   // nil without a disk
	cgroup  *cgroup // nil where the host has none to give
	log     *console.Log
	logged  chan struct{} // what it prints is read to its end
	control *net.UnixConn
	bulk    *net.UnixConn
	events  *engine.EventQueue

	mu     sync.Mutex
	killed bool
	frozen bool

	done chan struct{}
	exit engine.Exit
}

var _ engine.VM = (*sandbox)(nil)

func (m *sandbox) Control() io.ReadWriteCloser { return m.control }

func (m *sandbox) Bulk() io.ReadWriteCloser {
	if m.bulk == nil {
		return nil
	}
	return m.bulk
}

func (m *sandbox) Device() string {
	if m.loop == nil {
		return ""
	}
	return m.loop.path
}

func (m *sandbox) PID() int                    { return m.child.PID() }
func (m *sandbox) Accel() string               { return engine.AccelNone }
func (m *sandbox) Notice() string              { return "" }
func (m *sandbox) Done() <-chan struct{}       { return m.done }
func (m *sandbox) Exit() engine.Exit           { return m.exit }
func (m *sandbox) Events() <-chan engine.Event { return m.events.C() }

// Kill kills the first process, and the kernel kills the rest of its pid namespace.
func (m *sandbox) Kill() error {
	m.mu.Lock()
	m.killed = true
	m.mu.Unlock()
	return m.child.Kill()
}

func (m *sandbox) Pause(ctx context.Context) error  { return m.freeze(ctx, true) }
func (m *sandbox) Resume(ctx context.Context) error { return m.freeze(ctx, false) }

func (m *sandbox) freeze(ctx context.Context, stop bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cgroup == nil {
		return fmt.Errorf("pause: this host gives no control group (cgroup2) to freeze: %w", errors.ErrUnsupported)
	}
	if m.frozen == stop {
		return nil
	}
	if err := m.cgroup.freeze(ctx, stop); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	m.frozen = stop
	if stop {
		m.events.Post(engine.Event{Kind: engine.EventPaused, Text: "paused"})
	} else {
		m.events.Post(engine.Event{Kind: engine.EventResumed, Text: "running"})
	}
	return nil
}

// watch ends when all the sandbox held is released: a new one may then use the disk.
func (m *sandbox) watch() {
	<-m.child.Done()
	<-m.logged
	var left error
	if m.loop != nil {
		left = m.loop.release()
	}
	if m.cgroup != nil {
		left = errors.Join(left, m.cgroup.release())
	}
	m.exit = m.verdict(left)
	m.events.Close()
	close(m.done)
}

// verdict: status 0 is what the guest ends with after an orderly shutdown, and a process 1 that asks its kernel to
// power off gets SIGINT in a pid namespace.
func (m *sandbox) verdict(left error) engine.Exit {
	m.mu.Lock()
	killed := m.killed
	m.mu.Unlock()
	code, sig, _ := m.child.State()
	switch {
	case code == 0 || sig == syscall.SIGINT:
		return engine.Exit{PoweredOff: left == nil, Err: left}
	case killed:
		return engine.Exit{Err: errors.Join(errors.New("the sandbox was killed"), left)}
	case sig == syscall.SIGHUP:
		return engine.Exit{Err: errors.Join(errors.New("the guest reset itself (sandboxes do not reboot: start it again)"), left)}
	case sig != 0:
		return engine.Exit{Err: errors.Join(fmt.Errorf("the guest agent ended by signal %v%s", sig, m.printed()), left)}
	}
	return engine.Exit{Err: errors.Join(fmt.Errorf("the guest agent ended with status %d%s", code, m.printed()), left)}
}

func (m *sandbox) printed() string {
	if text := m.log.Tail(); text != "" {
		return ": " + text
	}
	return ""
}
