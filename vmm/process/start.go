package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"msb/vmm/engine"
	"msb/vmm/engine/child"
	"msb/vmm/engine/console"
)

// Start runs `GUEST ns --control-fd N [--bulk-fd N] [--files-fd N] [--device PATH]` as the first process of new namespaces, with what
// it prints in the kernel log. CPUs and memory are the host's: the numbers of s are not enforced.
func (e *Engine) Start(ctx context.Context, s engine.Spec) (_ engine.VM, err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := e.Check(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the sandbox's processes: %w", err)
		}
	}()
	switch {
	case s.Guest == "":
		return nil, errors.New("no guest agent is given")
	case s.Net:
		return nil, errors.New("the process engine has no network to give: use --engine qemu for that")
	case s.DiskFormat == engine.Qcow2:
		return nil, errors.New("the process engine cannot use a qcow2 disk")
	}
	m := &sandbox{spec: s, events: engine.NewEventQueue(16), done: make(chan struct{}), logged: make(chan struct{})}
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	if s.Disk != "" {
		if m.loop, err = attach(ctx, s.Disk); err != nil {
			return nil, err
		}
		undo = append(undo, func() { m.loop.release() })
	}
	if m.log, err = console.Open(s.KernelLog); err != nil {
		return nil, err
	}

	cmd := exec.Command(s.Guest, "ns")
	names := []string{"agent"}
	if s.DualPort {
		names = append(names, "agent-bulk")
	}
	var pairs []*child.Pair
	for _, name := range names {
		p, err := child.SocketPair(name)
		if err != nil {
			return nil, err
		}
		undo = append(undo, p.Close)
		pairs = append(pairs, p)
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.Theirs)
	}
	if s.FilesSocket != "" {
		l, err := listen(s.FilesSocket)
		if err != nil {
			return nil, err
		}
		defer l.Close() // the guest has its own
		cmd.Args = append(cmd.Args, "--files-fd", strconv.Itoa(firstFD+len(cmd.ExtraFiles)))
		cmd.ExtraFiles = append(cmd.ExtraFiles, l)
	}
	cmd.Args = append(cmd.Args, "--control-fd", strconv.Itoa(firstFD))
	m.control = pairs[0].Ours
	if s.DualPort {
		cmd.Args = append(cmd.Args, "--bulk-fd", strconv.Itoa(firstFD+1))
		m.bulk = pairs[1].Ours
	}
	if m.loop != nil {
		cmd.Args = append(cmd.Args, "--device", m.loop.path)
	}
	printed, print, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { printed.Close(); print.Close() })
	cmd.Stdout, cmd.Stderr = print, print
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if m.cgroup = newCgroup(); m.cgroup != nil {
		undo = append(undo, func() { m.cgroup.release() })
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(m.cgroup.dir.Fd())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.child, err = child.Start(cmd); err != nil {
		return nil, err
	}
	print.Close()
	for _, p := range pairs {
		p.Theirs.Close() // so that the end of the guest is the end of the streams
	}
	go func() {
		defer close(m.logged)
		m.log.Copy(printed)
		printed.Close()
	}()
	go m.watch()
	return m, nil
}

// firstFD is what the first of exec.Cmd.ExtraFiles becomes in the child.
const firstFD = 3

const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
	syscall.CLONE_NEWNET | syscall.CLONE_NEWCGROUP
