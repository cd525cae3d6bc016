package fusefs

import (
	"bytes"
	"context"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// passed tells whether an extended attribute is the guest's: those of users and
// of root. The others mean something to the kernel: ACLs, capabilities and
// labels of the guest have no place on this host, and are refused as a file
// system without them does.
func passed(name string) bool {
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.")
}

func (s *nodeFS) onNode(ctx context.Context, id uint64, op func(node agent.NodeRef) agent.NodeOp) (agent.NodeResult, error) {
	n, errno := s.inodes.get(id)
	if errno != 0 {
		return nil, errno
	}
	p, err := s.plan()
	if err != nil {
		return nil, err
	}
	ref, err := p.sure(ctx, n)
	if err != nil {
		return nil, err
	}
	i := p.add(op(ref))
	results, err := p.run(ctx, nil)
	if err != nil {
		return nil, err
	}
	return results[i], nil
}

// GetXAttr reads an extended attribute.
func (s *nodeFS) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if !passed(name) {
		return 0, fuse.Status(syscall.EOPNOTSUPP)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	r, err := s.onNode(ctx, in.NodeId, func(node agent.NodeRef) agent.NodeOp {
		return &agent.NodeGetXattr{Node: node, Name: []byte(name)}
	})
	if err != nil {
		return 0, s.status(ctx, err)
	}
	return deliver(r.(*agent.NodeBytesResult).Data, dest)
}

func deliver(data, dest []byte) (uint32, fuse.Status) {
	if len(data) > len(dest) {
		return uint32(len(data)), fuse.ERANGE
	}
	return uint32(copy(dest, data)), fuse.OK
}

// ListXAttr lists the extended attributes that can be read.
func (s *nodeFS) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	ctx, end := s.nameOp(cancel)
	defer end()
	r, err := s.onNode(ctx, in.NodeId, func(node agent.NodeRef) agent.NodeOp { return &agent.NodeListXattr{Node: node} })
	if err != nil {
		return 0, s.status(ctx, err)
	}
	var list []byte
	for name := range bytes.SplitSeq(r.(*agent.NodeBytesResult).Data, []byte{0}) {
		if passed(string(name)) {
			list = append(append(list, name...), 0)
		}
	}
	return deliver(list, dest)
}

// SetXAttr sets an extended attribute.
func (s *nodeFS) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	switch {
	case s.opts.ReadOnly:
		return fuse.EROFS
	case !passed(name):
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	_, err := s.onNode(ctx, in.NodeId, func(node agent.NodeRef) agent.NodeOp {
		return &agent.NodeSetXattr{Node: node, Name: []byte(name), Value: data, Flags: in.Flags}
	})
	s.changedNode(in.NodeId)
	return s.status(ctx, err)
}

// RemoveXAttr removes an extended attribute.
func (s *nodeFS) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	switch {
	case s.opts.ReadOnly:
		return fuse.EROFS
	case !passed(name):
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	_, err := s.onNode(ctx, in.NodeId, func(node agent.NodeRef) agent.NodeOp {
		return &agent.NodeRemoveXattr{Node: node, Name: []byte(name)}
	})
	s.changedNode(in.NodeId)
	return s.status(ctx, err)
}

func (s *nodeFS) changedNode(id uint64) {
	if n, errno := s.inodes.get(id); errno == 0 {
		n.touch()
	}
}
