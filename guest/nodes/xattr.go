package nodes

import (
	"bytes"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// Sizes that the kernel itself allows.
const (
	maxXattr     = 64 << 10
	maxXattrName = 255
)

func xattrName(name []byte) (string, error) {
	switch {
	case len(name) == 0 || bytes.IndexByte(name, 0) >= 0:
		return "", unix.EINVAL
	case len(name) > maxXattrName:
		return "", unix.ERANGE
	}
	return string(name), nil
}

// sized calls get with buffers until one is large enough.
func (r *request) sized(get func(buf []byte) (int, error)) (agent.NodeResult, error) {
	for size := 1 << 10; ; size = maxXattr {
		buf := make([]byte, size)
		n := 0
		err := r.as(func() (err error) {
			n, err = get(buf)
			return err
		})
		if err == unix.ERANGE && size < maxXattr {
			continue
		}
		if err == nil {
			err = r.reserve(n)
		}
		if err != nil {
			return nil, err
		}
		return &agent.NodeBytesResult{Data: buf[:n]}, nil
	}
}

func (r *request) getXattr(op *agent.NodeGetXattr) (agent.NodeResult, error) {
	name, err := xattrName(op.Name)
	if err != nil {
		return nil, err
	}
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	return r.sized(func(buf []byte) (int, error) { return unix.Getxattr(procPath(fd), name, buf) })
}

func (r *request) listXattr(op *agent.NodeListXattr) (agent.NodeResult, error) {
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	return r.sized(func(buf []byte) (int, error) { return unix.Listxattr(procPath(fd), buf) })
}

func (r *request) setXattr(op *agent.NodeSetXattr) (agent.NodeResult, error) {
	name, err := xattrName(op.Name)
	if err != nil {
		return nil, err
	}
	if len(op.Value) > maxXattr {
		return nil, unix.E2BIG
	}
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	if err := r.as(func() error { return unix.Setxattr(procPath(fd), name, op.Value, int(op.Flags)) }); err != nil {
		return nil, err
	}
	return none, nil
}

func (r *request) removeXattr(op *agent.NodeRemoveXattr) (agent.NodeResult, error) {
	name, err := xattrName(op.Name)
	if err != nil {
		return nil, err
	}
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	if err := r.as(func() error { return unix.Removexattr(procPath(fd), name) }); err != nil {
		return nil, err
	}
	return none, nil
}
